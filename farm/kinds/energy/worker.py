"""The energy worker: a model runs in windows between idle ones while a meter, or the phone's rails or gauge, are read.

`main` runs in the zygote's fork. Meter and windows are timed by this host's clock, the inference by the phone's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from farm.kinds.energy import EnergyTask
from farm.kinds.energy.cycles import CyclePlan, CycleTimes, joules, plan, to_wire, verdict_on
from farm.kinds.energy.meter import GaugeMeter, PowerMeter, RailsMeter, opened_meter
from farm.measure.conditions import Conditions
from farm.measure.energy import EnergyEstimate, EnergyNotResolved, PowerReading
from farm.model.specs import task_from_wire
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import VIRTUAL, checked_model, circumstances, doubts_about
from farm.worker.timing import Timer, first_runs


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Measure the joules of one inference on one phone."""
    task = task_from_wire(EnergyTask, payload)
    with checked_model(task, daemon) as model, opened_meter(task.power, daemon) as meter:
        daemon.progress("reading the power")
        period_s = meter.period_s()
        before, started_at = daemon.conditions(), datetime.now(UTC)
        found = _measured(meter, model.timer(), period_s, task, daemon)
        conditions = Conditions(before, (), daemon.conditions(), virtual=task.virtual)
    about = meter.about()
    certificate = {
        **circumstances(model.built, task, conditions, started_at),
        **verdict_on(found, doubts_about(conditions)),
        "method": f"by {about['source']}",
        "meter": {**about, "period_s": period_s},
        "notes": [*([VIRTUAL] if task.virtual else []), *task.power.notes()],
    }
    return {**model.numerics, **model.built.about(), **to_wire(found), "certificate": certificate}


def _measured(
    meter: PowerMeter | GaugeMeter | RailsMeter, model: Timer, period_s: float, task: EnergyTask, daemon: DaemonChannel
) -> EnergyEstimate | EnergyNotResolved:
    planned = plan(task.spec.measure_s, period_s, meter.settle_periods)
    if isinstance(planned, EnergyNotResolved):
        return planned
    runs = max(1, math.ceil(planned.window_s / min(first_runs(model))))
    readings: list[PowerReading] = []
    times = []
    for number in range(planned.cycles):
        daemon.progress(f"cycle {number + 1} of {planned.cycles}")
        times.append(_cycle(model, runs, planned))
        readings += meter.until(times[-1].ended_s)
    daemon.progress("reading the power")
    readings += meter.rest()
    if isinstance(meter, RailsMeter):
        return meter.joules(readings, times, planned, task.spec.half_width)
    return joules(readings, times, planned, task.spec.half_width, meter.step(readings))


def _cycle(model: Timer, runs: int, planned: CyclePlan) -> CycleTimes:
    begun_s = time.time()
    time.sleep(planned.window_s)
    busy_s = time.time()
    (inference_s,) = model(runs, 1)
    idle_s = time.time()
    time.sleep(planned.window_s)
    return CycleTimes(begun_s, busy_s, idle_s, time.time(), inference_s)
