"""The run worker: compile, upload, run, check the numbers, keep the outputs, or say what is wrong with them.

`main` runs in the zygote's fork.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from farm.kinds.run import RunSpec
from farm.kinds.run.locate import located
from farm.model.specs import ModelTask, task_from_wire
from farm.worker.channel import DaemonChannel
from farm.worker.outputs import check_labels, output_fields, read_labels, save_arrays
from farm.worker.quality import judged_beside_quality, quality_task, run_quality
from farm.worker.session import first_run, prepare, session_to_phone
from farm.worker.textures import checked_textures

OUTPUTS = Path("outputs.npz")  # in the attempt's own folder


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Run one model once on one phone."""
    task = task_from_wire(ModelTask[RunSpec], payload)
    if task.spec.locate:
        return located(task, daemon)
    labels = read_labels(daemon.artifact(task.spec.labels)) if task.spec.labels else ()
    labelled = quality_task(task, daemon, task.spec.quality, task.spec.metric)
    inputs = labelled.inputs.first_npz() if labelled else task.spec.inputs
    build = partial(prepare, task, daemon, inputs=inputs, fill=task.spec.fill)
    built = build()
    if labels:  # before the phone is touched
        check_labels(labels, built.outputs)
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        built = checked_textures(built, session, daemon, build)
        ran = first_run(built, session, daemon.progress)
        numerics = judged_beside_quality(built, ran.outputs) if labelled else built.judged(ran.outputs)
        quality = run_quality(task, labelled, built, ran, daemon) if labelled else {}
    daemon.progress("keeping the outputs")
    save_arrays(OUTPUTS, built.output_names, ran.outputs)
    return {
        **numerics,
        **built.about(),
        **output_fields(built, ran.outputs, task.spec.fill, task.spec.top_k, labels),
        "outputs": daemon.put_artifact(OUTPUTS),
        "timings": ran.timings,
        **quality,
    }
