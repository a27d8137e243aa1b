"""The bench worker: compile, upload, run, check the numbers, time. `main` runs in the zygote's fork."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.kinds.bench.spec import BenchSpec
from farm.measure.assess import Assessment, assess, best, measure_again
from farm.measure.conditions import Conditions
from farm.model.specs import ModelTask, task_from_wire
from farm.worker.certificate import VIRTUAL, MeasuringRun, about_build, measured, plain
from farm.worker.channel import DaemonChannel
from farm.worker.profile import profile
from farm.worker.session import FirstRun, first_run, on_phone, prepare, session_to_phone
from farm.worker.timing import MS, SamplingPlan, TakenSamples, measure, timer_of

SHOWN_SAMPLES = 200  # of a standing: a histogram shows no more


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Benchmark one model on one phone.

    Raises:
        ModelError: the model or its inputs cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
    task = task_from_wire(ModelTask[BenchSpec], payload)
    built = prepare(task, daemon, inputs=task.spec.inputs, all_or_none=True)
    kernel = reference_kernel(task.target, Path(task.cache))
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        ran = first_run(built, session, daemon.progress)
        numerics = built.judged(ran.outputs)
        with on_phone("loading the reference kernel"):
            read_kernel = load_kernel(session.raw, kernel)
        timed = _timed(task, ran, read_kernel, kernel.key, daemon)
        if task.spec.profile:
            daemon.progress("timing each operator")
            session.suspect = ""  # their library is another one
            timed["profile"] = profile(
                built, daemon.artifact(task.spec.model), session, timed["latency"]["median_ms"] / MS
            )
    certificate = {**timed["certificate"], **about_build(built, task), "notes": [VIRTUAL] if task.virtual else []}
    return {**numerics, **timed, **built.about(), "certificate": certificate}


def _timed(
    task: ModelTask[BenchSpec],
    ran: FirstRun,
    read_kernel: Callable[[], float],
    kernel: str,
    daemon: DaemonChannel,
) -> dict[str, Any]:
    timer, plan, nominal_s = timer_of(ran.machine, ran.device), plan_of(task), task.nominals.get(kernel)
    remeasure = 0 if task.spec.repeat else task.spec.remeasure
    tries: list[MeasuringRun] = []
    now = daemon.conditions()
    while measure_again([each.assessment for each in tries], remeasure):
        step = _step(tries, remeasure)
        daemon.progress(step)
        started_at, started_s, before = datetime.now(UTC), time.monotonic(), now
        on_assessed = partial(_report_standing, daemon, step, task.spec.half_width)
        taken, _ = measure(timer, read_kernel, plan, nominal_s=nominal_s, on_assessed=on_assessed)
        seconds = time.monotonic() - started_s
        now = daemon.conditions()
        conditions = Conditions(before, (), now)
        found = assess(taken.series(), nominal_s, conditions=conditions, half_width=task.spec.half_width)
        tries.append(MeasuringRun(taken, found, started_at.isoformat(), seconds))
    chosen = best([each.assessment for each in tries])
    reported = next(each for each in tries if each.assessment is chosen)
    raw = json.dumps(plain({"tries": [each.taken.to_wire() for each in tries]})).encode()
    return {
        **measured(tries, reported, kernel, task.nominals, daemon.put_artifact(raw)),
        "environment": {
            "started_at": reported.started_at,
            "timing_s": sum(each.seconds for each in tries),
            "number": reported.taken.number,
            "repeat": task.spec.repeat,
            "min_repeat_ms": task.spec.min_repeat_ms,
            "host": platform.node(),
            "host_kernel": platform.release(),
            "host_cpus": os.cpu_count(),
            "host_load": os.getloadavg()[0],
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


def _report_standing(
    daemon: DaemonChannel, step: str, half_width: float, taken: TakenSamples, found: Assessment
) -> None:
    """Report the interval so far, and the latest samples as the clock showed them."""
    estimate = found.estimate
    standing = {
        "count": found.count,
        "median_ms": estimate.median_s * MS,
        "low_ms": estimate.low_s * MS,
        "high_ms": estimate.high_s * MS,
        "half_width": estimate.half_width,
        "wanted_half_width": half_width,
        "samples_ms": [round(seconds * MS, 6) for seconds in taken.seconds[-SHOWN_SAMPLES:]],
    }
    daemon.progress(step, timing=plain(standing))


def _step(tries: list[MeasuringRun], remeasure: int) -> str:
    if not tries:
        return "timing"
    why = tries[-1].assessment.reasons[0].sentence
    return f"timing again ({len(tries)} of {remeasure}): {tries[-1].assessment.verdict}, {why}"
