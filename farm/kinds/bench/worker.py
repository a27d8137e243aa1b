"""The bench worker: compile, upload, run, check the numbers, time; with `--profile` each operator too.

`main` runs in the zygote's fork.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.kinds.bench.profile import profiled
from farm.kinds.bench.spec import BenchSpec
from farm.model.specs import ModelTask, task_from_wire
from farm.worker.certificate import VIRTUAL, about_build
from farm.worker.channel import DaemonChannel
from farm.worker.checked_model import checked_model
from farm.worker.measuring import ReferenceTimer, measure_until_trusted
from farm.worker.placing import place
from farm.worker.session import on_phone
from farm.worker.timing import MS, SamplingPlan, Timer


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Benchmark one model on one phone.

    Raises:
        ModelError: the model or its inputs cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
    task = task_from_wire(ModelTask[BenchSpec], payload)
    kernel = reference_kernel(task.target, Path(task.cache))
    with checked_model(task, daemon) as model:
        with on_phone("loading the reference kernel"):
            read_kernel = load_kernel(model.session.raw, kernel)
        threads = [place(model.session, daemon, each).words for each in task.placements]
        timed = _timed(task, model.timer(), read_kernel, kernel.key, daemon)
        if task.spec.profile:
            daemon.progress("timing each operator")
            model.session.suspect = ""  # the build that notes times is another library
            model_s = timed["latency"]["median_ms"] / MS
            source = daemon.artifact(task.spec.model)
            timed["profile"] = profiled(model.built, source, model.session, model.ran, model_s)
    certificate = {**timed["certificate"], **about_build(model.built, task), "placement": "".join(threads)}
    certificate["notes"] = [*threads, *([VIRTUAL] if task.virtual else [])]
    return {**model.numerics, **timed, **model.built.about(), "certificate": certificate}


def _timed(
    task: ModelTask[BenchSpec],
    timer: Timer,
    read_kernel: Callable[[], float],
    kernel: str,
    daemon: DaemonChannel,
) -> dict[str, Any]:
    spec = task.spec
    reference = ReferenceTimer(kernel, read_kernel, task.nominals)
    remeasure = 0 if spec.repeat else spec.remeasure
    timed = measure_until_trusted(timer, reference, plan_of(task), remeasure, daemon)
    return {
        **timed,
        "environment": {
            **timed["environment"],
            "repeat": spec.repeat,
            "min_repeat_ms": spec.min_repeat_ms,
        },
    }


def plan_of(task: ModelTask[BenchSpec]) -> SamplingPlan:
    """How much a task wants measured."""
    return SamplingPlan(
        half_width=task.spec.half_width,
        measure_s=task.spec.measure_s,
        min_sample_s=task.spec.min_repeat_ms / MS,
        number=task.spec.number,
        repeat=task.spec.repeat,
    )
