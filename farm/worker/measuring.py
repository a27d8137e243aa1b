"""A measurement with its certificate: taken, and taken again while it is not trusted."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from farm.measure.assess import Assessment, assess, best, measure_again
from farm.measure.conditions import Conditions
from farm.worker.certificate import MeasuringRun, measured, plain
from farm.worker.channel import DaemonChannel
from farm.worker.timing import MS, SamplingPlan, TakenSamples, Timer, measure

SHOWN_SAMPLES = 200  # the latest, in a report of the interval so far: a histogram shows no more


@dataclass(frozen=True, slots=True)
class ReferenceTimer:
    """The reference kernel that runs beside a measurement and shows the phone's speed."""

    kernel: str  # its key
    read: Callable[[], float]  # takes one reading, seconds
    nominals: Mapping[str, float]  # the phone's seconds of reference kernels, by their keys


def measure_until_trusted(
    timer: Timer, reference: ReferenceTimer, plan: SamplingPlan, remeasure: int, daemon: DaemonChannel
) -> dict[str, Any]:
    """The fields of a result that describe its measurement, the best of at most `remeasure` + 1 tries.

    Raises:
        FarmError: as `timer`.
    """
    nominal_s = reference.nominals.get(reference.kernel)
    tries: list[MeasuringRun] = []
    now = daemon.conditions()
    while measure_again([each.assessment for each in tries], remeasure):
        step = _step(tries, remeasure)
        daemon.progress(step)
        started_at, started_s, before = datetime.now(UTC), time.monotonic(), now
        on_assessed = partial(_report_standing, daemon, step, plan.half_width)
        taken, _ = measure(
            timer, reference.read, plan, nominal_s=nominal_s, on_assessed=on_assessed, look=daemon.conditions
        )
        seconds = time.monotonic() - started_s
        now = daemon.conditions()
        conditions = Conditions(before, tuple(look for _, look in taken.looks), now)
        found = assess(taken.series(), nominal_s, conditions=conditions, half_width=plan.half_width)
        tries.append(MeasuringRun(taken, found, started_at.isoformat(), seconds))
    chosen = best([each.assessment for each in tries])
    reported = next(each for each in tries if each.assessment is chosen)
    raw = json.dumps(plain({"tries": [each.taken.to_wire() for each in tries]})).encode()
    return {
        **measured(tries, reported, reference.kernel, reference.nominals, daemon.put_artifact(raw)),
        "environment": {
            "started_at": reported.started_at,
            "timing_s": sum(each.seconds for each in tries),
            "number": reported.taken.number,
            "host": platform.node(),
            "host_kernel": platform.release(),
            "host_cpus": os.cpu_count(),
            "host_load": os.getloadavg()[0],
        },
    }


def _report_standing(
    daemon: DaemonChannel, step: str, half_width: float, taken: TakenSamples, found: Assessment
) -> None:
    """Report the interval so far, and the latest samples as the clock showed them."""
    standing = {
        "count": found.count,
        **found.estimate.to_ms(),
        "wanted_half_width": half_width,
        "samples_ms": [round(seconds * MS, 6) for seconds in taken.seconds[-SHOWN_SAMPLES:]],
    }
    daemon.progress(step, timing=plain(standing))


def _step(tries: list[MeasuringRun], remeasure: int) -> str:
    """The words for the try that begins, with the reason if it is not the first."""
    if not tries:
        return "timing"
    why = tries[-1].assessment.reasons[0].cause
    return f"timing again ({len(tries)} of {remeasure}): {tries[-1].assessment.verdict}, {why}"
