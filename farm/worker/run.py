"""The run worker: compile, upload, run once, check the numbers, keep the outputs. `main` is a zygote child's task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.jobs.tasks import RunTask
from farm.worker.daemon import Daemon
from farm.worker.model_run import first_run, prepare, session_to_phone
from farm.worker.outputs import save_arrays, told
from farm.worker.ranking import check_labels, read_labels

OUTPUTS = Path("outputs.npz")  # in the attempt's own folder


def main(payload: Mapping[str, Any], daemon: Daemon) -> dict[str, Any]:
    """Run one model once on one phone.

    Raises:
        ModelError: the model, its inputs or its labels cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
    task = RunTask.from_wire(payload)
    labels = read_labels(daemon.artifact(task.labels)) if task.labels else ()
    built = prepare(task, daemon, inputs=task.inputs, fill=task.fill)
    if labels:  # before the phone is touched
        check_labels(labels, built.outputs)
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        ran = first_run(built, session, daemon)
        numerics = built.judged(ran.outputs)
    daemon.progress("keeping the outputs")
    save_arrays(OUTPUTS, built.output_names, ran.outputs)
    return {
        **numerics,
        **built.about(),
        **told(built, ran.outputs, task.fill, task.top_k, labels),
        "outputs": daemon.put_artifact(OUTPUTS),
        "timings": ran.timings,
    }
