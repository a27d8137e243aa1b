"""Power by a phone's own fuel gauge: lines of `gauge.sh` in, readings in watts out. Pure.

Kernels are to report the current in µA, positive into the battery (Documentation/ABI/testing/sysfs-class-power), but
vendors report mA, and either sign. So a gauge is recognised by its lines before it is believed: the battery must be
discharging, for then all that the phone takes comes from it; all figures must have one sign; and of the possible units
exactly one must give a power that a phone can have. `recognised` gives the scale, or why there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from farm.measure.energy import PowerReading

MIN_CHANGES = 6  # of the figure, from which its period is known
# An update is the mean since the one before, and is seen up to a nap later: what came before a change of load is out
# of the figure after two periods and a nap.
SETTLE_PERIODS = 2.5
# Of a phone that is awake. µ and milli differ by 1000, more than these do: one of both fits at most.
MIN_W, MAX_W = 0.05, 25.0
MIN_V, MAX_V = 2.5, 9.6  # one lithium cell nearly empty, two in series full
_DISCHARGING = frozenset({"discharging", "3"})  # the words of the kernel and of `dumpsys battery`
_SECONDS_PER_HOUR = 3600
_MAX_FIGURE = 1 << 63  # kernels have no larger integers


@dataclass(frozen=True, slots=True)
class GaugeLine:
    """One reading of the gauge, in the vendor's units; None: not reported."""

    uptime_s: float  # of the phone
    current: int | None
    voltage: int | None
    counter: int | None  # charge that is left
    status: str

    @property
    def discharging(self) -> bool:
        """Whether the battery gives all that the phone takes."""
        return self.status.lower() in _DISCHARGING


@dataclass(frozen=True, slots=True)
class GaugeScale:
    """How a gauge's figures become watts."""

    figure: str  # "current" or "charge counter"
    unit: str  # "µA", "mA", "µAh" or "mAh"
    per_unit: float  # amperes, or coulombs, of one unit, negative where figures are negative while it discharges
    volts_per_unit: float

    def about(self, name: str) -> dict[str, str]:
        """For certificates; `name`: its folder of /sys/class/power_supply, or dumpsys."""
        sign = f"{'negative' if self.per_unit < 0 else 'positive'} while discharging"
        return {"source": "fuel gauge", "name": name, "figure": self.figure, "unit": self.unit, "sign": sign}

    def volts(self, line: GaugeLine) -> float:
        """Of the battery."""
        assert line.voltage is not None, "lines without a voltage are left out"
        return line.voltage * self.volts_per_unit


def gauge_line(text: str) -> GaugeLine | None:
    """A line `UPTIME CURRENT VOLTAGE COUNTER STATUS`; None: it is none."""
    words = text.split(maxsplit=4)
    if len(words) != 5:
        return None
    try:
        uptime_s = float(words[0])
        current, voltage, counter = (None if word == "-" else int(word) for word in words[1:4])
    except ValueError:
        return None
    if not math.isfinite(uptime_s) or any(abs(each or 0) > _MAX_FIGURE for each in (current, voltage, counter)):
        return None
    return GaugeLine(uptime_s, current, voltage, counter, words[4].strip())


def why_fed(lines: Sequence[GaugeLine]) -> str:
    """Why the gauge does not see all of the phone's power, a clause; "" where it does."""
    other = next((line.status for line in lines if not line.discharging), "")
    if other == "-":
        return "its battery tells no status"
    return f"its battery says {other!r} and not that it discharges" if other else ""


def figure_of(lines: Sequence[GaugeLine]) -> str:
    """The figure that gives the power: the current where the gauge has one; "" where it has neither."""
    if any(line.current for line in lines):
        return "current"
    return "charge counter" if any(line.counter for line in lines) else ""


def changes(lines: Sequence[GaugeLine], figure: str) -> list[GaugeLine]:
    """The lines whose figure is another than in the line before."""
    complete = [line for line in lines if _value(line, figure) is not None and line.voltage is not None]
    return [after for before, after in pairwise(complete) if _value(after, figure) != _value(before, figure)]


def period_s(lines: Sequence[GaugeLine]) -> float | None:
    """Seconds between two updates; None: the figure has not changed often enough.

    An update that changes nothing is not seen, so a quiet gauge is taken for slower than it is.
    """
    changed = changes(lines, figure_of(lines))
    if len(changed) < MIN_CHANGES:
        return None
    return median(after.uptime_s - before.uptime_s for before, after in pairwise(changed))


def recognised(lines: Sequence[GaugeLine]) -> GaugeScale | str:
    """The scale of a gauge, by lines of a phone at rest with several changes in them; a str: why there is none."""
    if fed := why_fed(lines):
        return fed
    figure = figure_of(lines)
    if not figure:
        return "its gauge tells neither a current nor a charge"
    volts_per_unit = _volts_per_unit([line.voltage for line in lines if line.voltage is not None])
    if volts_per_unit is None:
        return "its gauge tells no voltage of a battery, in mV or µV"
    if figure == "current":
        currents = [line.current for line in lines if line.current]
        if min(currents) < 0 < max(currents):
            return "its gauge tells currents of both signs while the battery discharges"
        figures = [float(each) for each in currents]
    else:
        figures = [per_hour for before, after in pairwise(changes(lines, figure)) if (per_hour := _fall(before, after))]
        if not figures or max(figures) >= 0:
            return "its charge counter does not fall while the battery discharges"
    typical = median(figures)
    volts = median(line.voltage * volts_per_unit for line in lines if line.voltage is not None)
    hours = "" if figure == "current" else "h"
    for unit, amperes in (("µA", 1e-6), ("mA", 1e-3)):
        if MIN_W <= abs(typical) * amperes * volts <= MAX_W:
            coulombs = amperes if figure == "current" else amperes * _SECONDS_PER_HOUR
            return GaugeScale(figure, unit + hours, math.copysign(coulombs, typical), volts_per_unit)
    return (
        f"its gauge tells {typical:g}, at {volts:.3g} V: neither in µA{hours} nor in mA{hours} is that the power of a "
        f"phone that is awake ({MIN_W:g} to {MAX_W:g} W)"
    )


class GaugeUpdates:
    """Lines in order become readings, one for each update of the gauge."""

    def __init__(self, scale: GaugeScale, period: float) -> None:
        """`period`: seconds between two updates."""
        self._scale, self._period_s = scale, period
        self._last: GaugeLine | None = None

    def reading(self, line: GaugeLine, begun_s: float) -> PowerReading | None:
        """The reading of a line; None where it is no update. `begun_s`: when the phone's uptime began.

        A line with a voltage that no battery has is none.
        A current that stays as it is counts as updated after a period: it may be the same twice.
        """
        value, last = _value(line, self._scale.figure), self._last
        if value is None or line.voltage is None:
            return None
        volts, at_s = self._scale.volts(line), begun_s + line.uptime_s
        if not MIN_V <= volts <= MAX_V:
            return None
        before = None if last is None else _value(last, self._scale.figure)
        if self._scale.figure == "current":
            if last is not None and value == before and line.uptime_s - last.uptime_s < self._period_s:
                return None
            self._last = line
            return PowerReading(at_s, value * self._scale.per_unit * volts, volts)
        if value == before:
            return None
        self._last = line
        if last is None or before is None or line.uptime_s <= last.uptime_s:
            return None
        amperes = (value - before) * self._scale.per_unit / (line.uptime_s - last.uptime_s)
        return PowerReading(at_s, amperes * volts, volts)


def _value(line: GaugeLine, figure: str) -> int | None:
    return line.current if figure == "current" else line.counter


def _fall(before: GaugeLine, after: GaugeLine) -> float:
    """The charge counter's change in an hour."""
    if before.counter is None or after.counter is None or after.uptime_s <= before.uptime_s:
        return 0.0
    return (after.counter - before.counter) / (after.uptime_s - before.uptime_s) * _SECONDS_PER_HOUR


def _volts_per_unit(voltages: Sequence[int]) -> float | None:
    if not voltages:
        return None
    fitting = (unit for unit in (1e-6, 1e-3) if all(MIN_V <= each * unit <= MAX_V for each in voltages))
    return next(fitting, None)
