"""How long the idle and busy windows of an energy measurement are, and what comes of their readings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from farm.measure.conditions import Reason, Verdict, verdict_fields
from farm.measure.energy import (
    MIN_CYCLES,
    MIN_READINGS,
    EnergyCycle,
    EnergyEstimate,
    EnergyNotResolved,
    PowerReading,
    PowerWindow,
    clock_lag_s,
    estimate,
    window,
)
from farm.measure.metrics import ENERGY, values_of

WINDOWS = 3  # of a cycle: idle, busy, idle
MAX_WINDOW_S = 10.0  # longer ones let the baseline wander; a longer measurement has more cycles
MAX_MEASURE_S = 3600.0
SPARE = 1.1  # of a run that is said to be long enough: it measures the period again


@dataclass(frozen=True, slots=True)
class CyclePlan:
    """Cycles of three windows each."""

    cycles: int
    window_s: float
    settle_s: float  # at the begin of a window, left out: readings still include what was before

    @property
    def run_s(self) -> float:
        """How long all of it takes."""
        return self.cycles * WINDOWS * self.window_s


@dataclass(frozen=True, slots=True)
class CycleTimes:
    """When the windows of a cycle were, seconds since 1970."""

    begun_s: float
    busy_s: float
    idle_s: float
    ended_s: float
    inference_s: float  # by the phone's clock


def even_plan(measure_s: float) -> CyclePlan:
    """The cycles of a measurement by a meter whose period is known only afterwards."""
    cycles = max(MIN_CYCLES, int(measure_s / (WINDOWS * MAX_WINDOW_S)))
    return CyclePlan(cycles, measure_s / (WINDOWS * cycles), 0.0)


def needed_window_s(period_s: float, settle_periods: float) -> float:
    """How long a window must be for a meter that reads each `period_s`; `settle_periods`: as of `plan`."""
    return (settle_periods + MIN_READINGS + 1) * period_s


def too_short(window_s: float, period_s: float, settle_periods: float) -> EnergyNotResolved:
    """Why windows of `window_s` are too short for a meter, and how long the measurement must be."""
    needed_s = needed_window_s(period_s, settle_periods) * WINDOWS * MIN_CYCLES
    if needed_s > MAX_MEASURE_S:
        return EnergyNotResolved(f"a reading every {period_s:.3g} s is too rare for idle and busy windows", None)
    return EnergyNotResolved(
        f"windows of {window_s:.3g} s are too short for a meter that reads every {period_s:.3g} s",
        min(SPARE * needed_s, MAX_MEASURE_S),
    )


def plan(measure_s: float, period_s: float, settle_periods: float) -> CyclePlan | EnergyNotResolved:
    """The cycles of a measurement of `measure_s` by a meter that reads each `period_s`.

    `settle_periods`: for so many of them after a change of load its readings include what was before.
    """
    needed_s = needed_window_s(period_s, settle_periods)
    cycles = max(MIN_CYCLES, int(measure_s / (WINDOWS * max(MAX_WINDOW_S, needed_s))))
    window_s = measure_s / (WINDOWS * cycles)
    if window_s >= needed_s:
        return CyclePlan(cycles, window_s, settle_periods * period_s)
    return too_short(window_s, period_s, settle_periods)


def joules(
    readings: Sequence[PowerReading], times: Sequence[CycleTimes], planned: CyclePlan, half_width: float, step: float
) -> EnergyEstimate | EnergyNotResolved:
    """The joules of one inference, or why the meter does not say. `step`: as of `window`.

    The lag of the meter's clock is estimated by the windows, and taken out.
    """
    borders = [(each.begun_s, each.busy_s, each.idle_s, each.ended_s) for each in times]
    lag_s = clock_lag_s(readings, np.array(borders))
    by_host = [replace(each, at_s=each.at_s + lag_s) for each in readings] if lag_s else readings
    cycles = cycles_of(by_host, times, planned, step)
    if isinstance(cycles, EnergyNotResolved):
        return cycles
    found = estimate(cycles, planned.run_s, half_width)
    return found if isinstance(found, EnergyNotResolved) else replace(found, lag_s=lag_s)


def cycles_of(
    readings: Sequence[PowerReading], times: Sequence[CycleTimes], planned: CyclePlan, step: float
) -> list[EnergyCycle] | EnergyNotResolved:
    """The cycles with their power, or which readings the meter left out. `step`: as of `window`."""
    cycles, place = [], 0
    for each in times:
        borders = (each.begun_s, each.busy_s, each.idle_s, each.ended_s)
        while place < len(readings) and readings[place].at_s <= each.begun_s:
            place += 1
        end = place
        while end < len(readings) and readings[end].at_s <= each.ended_s:
            end += 1
        own = readings[place:end]
        before, busy, after = (
            window(own, start_s + planned.settle_s, end_s, step) for start_s, end_s in pairwise(borders)
        )
        if before is None or busy is None or after is None:
            return EnergyNotResolved("the meter left out readings: a window has fewer than three", None)
        cycles.append(EnergyCycle(before, busy, after, each.inference_s))
    return cycles


def added(cycles: Sequence[EnergyCycle]) -> EnergyCycle:
    """The same cycle as several meters saw it, each of them a part of the power."""
    before, busy, after = (
        PowerWindow(sum(part.watts for part in parts), sum(part.hidden_w for part in parts))
        for parts in zip(*((each.idle_before, each.busy, each.idle_after) for each in cycles), strict=True)
    )
    return EnergyCycle(before, busy, after, cycles[0].inference_s)


def verdict_on(found: EnergyEstimate | EnergyNotResolved, doubts: Sequence[Reason] = ()) -> dict[str, Any]:
    """The fields of a certificate by which the joules are in histories. `doubts`: of the conditions."""
    if isinstance(found, EnergyNotResolved):
        unresolved = Reason("unresolved", Verdict.REJECTED, "the meter does not resolve the joules", found.sentence)
        return {**verdict_fields([*doubts, unresolved]), "values": {}}
    return {**verdict_fields(doubts), "values": values_of((ENERGY, found.net_j, found.low_j, found.high_j))}


def to_wire(found: EnergyEstimate | EnergyNotResolved) -> dict[str, Any]:
    """The result's `energy` and `unresolved`: one of them is None."""
    if isinstance(found, EnergyNotResolved):
        return {"energy": None, "unresolved": asdict(found)}
    return {"energy": {**asdict(found), "gross_j": found.gross_j}, "unresolved": None}
