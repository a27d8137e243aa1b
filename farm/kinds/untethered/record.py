"""What a phone wrote down while it was alone: marks of `untethered.sh`, lines of its gauge, and the joules. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from farm.common.errors import Code, FarmError, PhoneError, UserError
from farm.kinds.energy.cycles import CyclePlan, CycleTimes, joules, needed_window_s, too_short
from farm.kinds.energy.meter import gauge_error, step_of
from farm.measure.energy import EnergyEstimate, EnergyNotResolved
from farm.measure.gauge import SETTLE_PERIODS, GaugeLine, GaugeUpdates, gauge_line, period_s, recognised, why_fed

SLEPT_S = 5.0  # without a line: the script takes one four times a second, a service asked answers within 4 s
_WORDS = ("idle", "busy", "rest", "end")
_UPTIME, _COUNT = re.compile(r"[0-9]{1,12}(\.[0-9]+)?"), re.compile("[0-9]{1,12}")


@dataclass(slots=True)
class RunRecord:
    """The marks of a run."""

    boot: str = ""
    cycles: list[tuple[list[float], int]] = field(default_factory=list)  # uptimes of idle, busy, rest, end; calls
    ended: str = ""  # "done", or why not; "" it did not end


def read_marks(text: str) -> RunRecord:
    """The marks; a cycle that is not whole is left out. Never raises."""
    record, uptimes, calls = RunRecord(), [0.0] * 0, 0
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "boot":
            record.boot = rest
        elif word in ("done", "failed"):
            record.ended = rest or word
        elif word in _WORDS and (numbers := rest.split()):
            uptimes = [] if word == "idle" else uptimes
            if len(uptimes) != _WORDS.index(word) or not _UPTIME.fullmatch(numbers[0]):
                continue
            uptimes.append(float(numbers[0]))
            calls = int(numbers[1]) if word == "rest" and len(numbers) > 1 and _COUNT.fullmatch(numbers[1]) else calls
            if word == "end" and calls > 0:
                record.cycles.append((uptimes, calls))
    return record


def energy_of(
    record: RunRecord, gauge: str, planned: CyclePlan, *, runs: int, half_width: float, boot: str
) -> tuple[EnergyEstimate | EnergyNotResolved, dict[str, Any]]:
    """The joules of one run, and what the certificate says of the gauge.

    Args:
        record: the marks.
        gauge: the lines of gauge.sh.
        planned: the cycles that were asked for.
        runs: of one call of the program.
        half_width: as of `estimate`.
        boot: the phone's boot now.

    Raises:
        PhoneError: the phone rebooted, slept or did not get done.
        UserError: the program failed, or the gauge does not tell the phone's power.
    """
    _check(record, planned, boot)
    name, lines = _lines(gauge)
    alone = _alone(lines, record)
    scale, period = recognised(alone), period_s(alone)
    if isinstance(scale, str):
        raise gauge_error(scale)
    if period is None:
        raise gauge_error("its gauge's figure did not change several times in the whole run")
    about = {**scale.about(name), "period_s": period}
    if needed_window_s(period, SETTLE_PERIODS) > planned.window_s:
        return too_short(planned.window_s, period, SETTLE_PERIODS), about
    updates = GaugeUpdates(scale, period)
    readings = [found for line in alone if (found := updates.reading(line, 0.0)) is not None]
    times = [
        CycleTimes(idle, busy, rest, end, (rest - busy) / (calls * runs))
        for (idle, busy, rest, end), calls in record.cycles
    ]
    settled = CyclePlan(planned.cycles, planned.window_s, SETTLE_PERIODS * period)
    step = step_of(readings) if scale.figure == "current" else 0.0
    return joules(readings, times, settled, half_width, step), about


def _check(record: RunRecord, planned: CyclePlan, boot: str) -> None:
    if not record.boot:
        raise _failed("the phone has no record of its run", "a full storage? farm device show NAME")
    if boot != record.boot:
        raise _failed("the phone rebooted while it was alone", "a battery that is worn or nearly empty gives way")
    if record.ended not in ("done", ""):
        raise UserError(
            f"while the phone was alone, {record.ended}", Code.PROGRAM_FAILED,
            hint="call it with the cable in: farm program run SPEC.toml --on NAME",
        )  # fmt: skip
    if not record.ended or len(record.cycles) != planned.cycles:
        raise _failed(
            f"the phone had done {len(record.cycles)} of {planned.cycles} cycles when its power returned",
            "calls became longer without a cable, or the phone slept: keep it awake (--quiesce gentle)",
        )


def _lines(text: str) -> tuple[str, list[GaugeLine]]:
    name, _, rest = text.partition("\n")
    whole = rest.rpartition("\n")[0]  # the last line may be torn
    found = [line for each in whole.splitlines() if (line := gauge_line(each)) is not None]
    return name.removeprefix("gauge ").strip(), found


def _alone(lines: Sequence[GaugeLine], record: RunRecord) -> list[GaugeLine]:
    """The lines of the cycles, and those before them since the power went."""
    begun_s, ended_s = record.cycles[0][0][0], record.cycles[-1][0][3]
    for before, after in pairwise([line for line in lines if line.uptime_s <= ended_s]):
        if after.uptime_s - before.uptime_s > SLEPT_S:
            raise _failed(
                f"the phone slept for {after.uptime_s - before.uptime_s:.0f} s while it was alone",
                "keep it awake: --quiesce gentle, which holds a wake lock or the screen",
            )
    first = next((line.uptime_s for line in lines if line.discharging), None)
    if first is None:
        raise gauge_error(f"{why_fed(lines) or 'it said nothing'}, though its port had no power")
    if first > begun_s:
        raise _failed(
            f"the phone noticed only {first - begun_s:.0f} s after the first cycle began that its power was gone",
            "a slow switch, or a slow gauge",
        )
    alone = [line for line in lines if first <= line.uptime_s <= ended_s]
    if fed := why_fed(alone):
        raise gauge_error(f"in the middle of the run {fed}")
    return alone


def _failed(what: str, hint: str) -> FarmError:
    return PhoneError(what, Code.UNTETHERED_FAILED, hint=hint)
