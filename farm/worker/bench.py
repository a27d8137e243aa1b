"""The bench worker: compile, upload, run, check the numbers, time. `main` is a zygote child's task."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from farm.compiler.inputs import all_inputs, import_with
from farm.compiler.load import read
from farm.compiler.reference import judge
from farm.jobs.tasks import BenchTask
from farm.measure.statistics import Summary, summarise
from farm.worker.daemon import Daemon
from farm.worker.model_run import FirstRun, first_run, prepare, session_to_phone
from farm.worker.session import on_phone

MS = 1000.0


def main(payload: Mapping[str, Any], daemon: Daemon) -> dict[str, Any]:
    """Benchmark one model on one phone.

    Raises:
        ModelError: the model or its inputs cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
    task = BenchTask.from_wire(payload)
    daemon.progress("reading the model")
    source = read(daemon.artifact(task.model), task.name)
    npz = daemon.artifact(task.inputs) if task.inputs else None
    model, given = import_with(source, npz, task.shapes, task.dtypes)
    prepared = prepare(task, model, all_inputs(model, given), daemon)
    with session_to_phone(daemon) as session:
        ran = first_run(task, prepared, session, daemon)
        numerics = judge(ran.outputs, prepared.reference, [spec.name for spec in model.outputs])
        daemon.progress("timing")
        timed = _timed(task, ran)
    return {**numerics, **timed, **prepared.about(task.target)}


def _timed(task: BenchTask, ran: FirstRun) -> dict[str, Any]:
    started_at, started_s = datetime.now(UTC), time.monotonic()
    with on_phone("timing the model"):
        evaluate = ran.machine.time_evaluator(
            "invoke_stateful",
            ran.device,
            number=task.number or 5,
            repeat=task.repeat or 20,
            min_repeat_ms=task.min_repeat_ms,
        )
        samples_s = [float(sample) for sample in evaluate("main").results]
    return {
        "latency": latency_ms(summarise(samples_s)),
        "samples_s": samples_s,
        "environment": {
            "started_at": started_at.isoformat(),
            "timing_s": time.monotonic() - started_s,
            "number": task.number,
            "repeat": task.repeat,
            "min_repeat_ms": task.min_repeat_ms,
            "host": platform.node(),
            "host_kernel": platform.release(),
            "host_cpus": os.cpu_count(),
            "host_load": os.getloadavg()[0],
        },
    }


def latency_ms(summary: Summary) -> dict[str, float]:
    """A summary in milliseconds, with `count` beside it."""
    fields = asdict(summary)
    count = fields.pop("count")
    return {"count": count, **{f"{name.removesuffix('_s')}_ms": value * MS for name, value in fields.items()}}
