"""The bench worker: compile, upload, run, check the numbers, time. `main` is a zygote child's task."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from farm.core.errors import PhoneError
from farm.jobs.model import BenchTask
from farm.measure.statistics import Summary, summarise
from farm.worker.compile import Compiled, compile_library, target_from
from farm.worker.daemon import Daemon
from farm.worker.onnx_model import OnnxModel, inputs_for, load, shapes_of
from farm.worker.reference import Reference, flatten, judge, reference_for
from farm.worker.session import PhoneSession, on_phone, opened

MS = 1000.0


def main(payload: Mapping[str, Any], daemon: Daemon) -> dict[str, Any]:
    """Benchmark one model on one phone.

    Raises:
        ModelError: the model or its inputs cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
    task = BenchTask.from_wire(payload)
    cache = Path(task.cache)
    cache.mkdir(exist_ok=True)
    daemon.progress("reading the model")
    model = load(daemon.artifact(task.model), task.name)
    inputs = inputs_for(model, daemon.artifact(task.inputs) if task.inputs else None)
    daemon.progress(f"compiling for {task.target_name}")
    compiled = compile_library(model, shapes_of(inputs), task.target, cache)
    daemon.progress("computing the reference")
    reference = reference_for(model, inputs, cache)
    daemon.progress("opening a session")
    try:
        with opened(daemon.open_session()) as session:
            measured = _measure(task, model, inputs, compiled, reference, session, daemon)
    except PhoneError as error:
        daemon.abort_session(error.message)
        raise
    return {
        **measured,
        "compile": {
            "seconds": compiled.seconds, "cached": compiled.cached, "linker": compiled.linker,
            "library_sha256": compiled.sha256, "key": compiled.key, "target": task.target,
        },
        "model": {"name": model.name, "sha256": model.sha256, "inputs": shapes_of(inputs)},
    }  # fmt: skip


def _measure(
    task: BenchTask,
    model: OnnxModel,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    compiled: Compiled,
    reference: Reference,
    session: PhoneSession,
    daemon: Daemon,
) -> dict[str, Any]:
    device = session.device(target_from(task.target).kind.name)
    daemon.progress("uploading")
    machine = session.virtual_machine(session.load(compiled.library, f"{compiled.key[:16]}.so"), device)
    daemon.progress("running")
    with on_phone("running the model"):
        machine.set_input("main", *(tvm.runtime.tensor(inputs[spec.name], device) for spec in model.inputs))
        machine.invoke_stateful("main")
        outputs = flatten(machine.get_outputs("main"))
    numerics = judge(outputs, reference, model.outputs)
    daemon.progress("timing")
    started_at, started_s = datetime.now(UTC), time.monotonic()
    with on_phone("timing the model"):
        evaluate = machine.time_evaluator(
            "invoke_stateful", device, number=task.number, repeat=task.repeat, min_repeat_ms=task.min_repeat_ms
        )
        samples_s = [float(sample) for sample in evaluate("main").results]
    return {
        **numerics,
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
