"""How long a phone takes to cool, learned from its own readings: Newton's law of cooling, T(t) = A + B exp(-t / tau).

A segment is what one sensor read while the phone was idle and did not warm up. Its readings give the ambient A, and
when the fall is large and long enough, tau too; the taus of several segments are kept and their median counts. Before a
phone has enough readings, the defaults of its sensor group stand in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

SAMPLES = 48  # of one segment; a longer one keeps every other reading
SEGMENTS = 7  # whose time constants are remembered
WARMING_C = 1.0  # more than this above the segment's last reading is no noise: something heats the phone
MIN_SAMPLES = 6  # to distinguish a time constant from noise of some 0.3 °C
MIN_FALL_C = 3.0  # for the same
MIN_SPAN = 0.7  # in time constants, for the same: a shorter piece of the curve looks like a straight line
WORST_FIT_C = 0.4  # median distance of readings from the curve; more, and something changed on the way
MIN_TAU_S = 5.0
MAX_TAU_S = 7200.0
STEPS = 20  # time constants tried at first; neighbours differ by half
MIN_DIFFERENCE_C = 0.2  # nearer to the ambient than this, a curve says nothing about time
MAX_S = 4 * 3600.0  # a longer estimate is of no use
# 200 g of glass, metal and battery hold some 180 J/K and lose some 0.25 W/K to still air: about 12 minutes.
BODY_TAU_S = 720.0
CORE_TAU_S = 20.0  # a core falls to the temperature of the body around it
ROOM_C = 27.0  # a lab with phones on chargers

Reading = tuple[float, float]  # monotonic seconds, °C


@dataclass(frozen=True, slots=True)
class Cooling:
    """An estimate of the cooling under way."""

    tau_s: float
    ambient_c: float  # where it would end by itself
    sure: bool  # the ambient was seen from near


@dataclass(frozen=True, slots=True)
class CoolingCurve:
    """One sensor's curve."""

    default_tau_s: float = BODY_TAU_S
    segment: tuple[Reading, ...] = ()  # the present one
    taus_s: tuple[float, ...] = ()  # of past segments from which one followed, the latest last
    ambient_c: float | None = None  # of the latest segment from which it followed

    def take(self, at_s: float, celsius: float, *, idle: bool) -> CoolingCurve:
        """One more reading. Readings of a phone that works, or warms up, end the segment."""
        last = self.segment[-1] if self.segment else None
        if last is not None and at_s <= last[0]:
            return self
        if not idle:
            return self._ended()
        if last is not None and celsius > last[1] + WARMING_C:
            return replace(self._ended(), segment=((at_s, celsius),))
        segment = (*self.segment, (at_s, celsius))
        if len(segment) > SAMPLES:
            segment = segment[-1::-2][::-1]
        return replace(self, segment=segment)

    def now(self) -> Cooling:
        """How it cools, as far as its readings show."""
        return _cooling(self)

    def seconds_until(self, target_c: float, celsius: float) -> float | None:
        """Seconds until it falls from `celsius` to `target_c` by itself; None: it does not, or that is unknown."""
        if celsius <= target_c:
            return 0.0
        cooling = self.now()
        above_c = target_c - cooling.ambient_c
        if above_c < MIN_DIFFERENCE_C:
            return None
        seconds = cooling.tau_s * math.log(max(1.0, (celsius - cooling.ambient_c) / above_c))
        return seconds if seconds <= MAX_S else None

    def floor_c(self, target_c: float) -> float | None:
        """The temperature at which it stays by itself, when that is certain and not below `target_c`; else None.

        A phone that still warms up shows where that ends, not how far it would cool: None.
        """
        cooling = self.now()
        if not cooling.sure or cooling.ambient_c <= target_c - MIN_DIFFERENCE_C:
            return None
        return cooling.ambient_c if cooling.ambient_c <= self.segment[-1][1] + MIN_DIFFERENCE_C else None

    def _ended(self) -> CoolingCurve:
        if not self.segment:
            return self
        segment = _consistent(self.segment)
        found = _time_constant(segment)
        taus_s = (*self.taus_s, *([found] if found is not None else []))[-SEGMENTS:]
        ambient = _ambient(segment, median(taus_s) if taus_s else self.default_tau_s)
        return replace(self, segment=(), taus_s=taus_s, ambient_c=self.ambient_c if ambient is None else ambient[0])


@lru_cache(maxsize=256)  # a fit takes milliseconds, and three classes ask about the same curve
def _cooling(curve: CoolingCurve) -> Cooling:
    segment = _consistent(curve.segment)
    found = _time_constant(segment)
    known_s = [*curve.taus_s, *([found] if found is not None else [])]
    tau_s = median(known_s) if known_s else curve.default_tau_s
    ambient = _ambient(segment, tau_s)
    if ambient is not None:
        return Cooling(tau_s, *ambient)
    coldest_c = min((celsius for _, celsius in curve.segment), default=math.inf)
    return Cooling(tau_s, min(ROOM_C if curve.ambient_c is None else curve.ambient_c, coldest_c), sure=False)


def _consistent(segment: Sequence[Reading]) -> Sequence[Reading]:
    """The latest part of the segment that one curve explains: a fan or an open window begins another one."""
    while len(segment) >= 2 * MIN_SAMPLES:
        if _fit(segment, _best_tau_s(segment))[3] <= WORST_FIT_C:
            return segment
        segment = segment[len(segment) // 2 :]
    return segment


def _time_constant(segment: Sequence[Reading]) -> float | None:
    if len(segment) < MIN_SAMPLES:
        return None
    celsius = [each for _, each in segment]
    if max(celsius[:3]) - min(celsius[-3:]) < MIN_FALL_C:
        return None
    tau_s = _best_tau_s(segment)
    span_s = segment[-1][0] - segment[0][0]
    at_the_edge = not 1.1 * MIN_TAU_S < tau_s < 0.9 * MAX_TAU_S
    return None if at_the_edge or span_s < MIN_SPAN * tau_s else tau_s


def _ambient(segment: Sequence[Reading], tau_s: float) -> tuple[float, bool] | None:
    """Where the segment ends by itself, and whether that is certain."""
    if len(segment) < MIN_SAMPLES:
        return None
    seen = 1 - math.exp(-(segment[-1][0] - segment[0][0]) / tau_s)  # the part of the way that it went
    if seen < 0.4:  # noise of 0.3 °C would move the end by more than 1 °C
        return None
    return _fit(segment, tau_s)[0], seen >= 0.8


def _best_tau_s(segment: Sequence[Reading]) -> float:
    """The time constant that explains it best: a coarse search, then a fine one around its result."""
    ratio = math.pow(MAX_TAU_S / MIN_TAU_S, 1 / (STEPS - 1))
    coarse = min(
        (MIN_TAU_S * math.pow(ratio, step) for step in range(STEPS)), key=lambda tau_s: _fit(segment, tau_s)[2]
    )
    fine = [coarse * math.pow(ratio, step / 5) for step in range(-4, 5)]
    return min(fine, key=lambda tau_s: _fit(segment, tau_s)[2])


def _fit(segment: Sequence[Reading], tau_s: float) -> tuple[float, float, float, float]:
    """Least squares for A and B: A, B, mean squared and median absolute distance (°C)."""
    begin_s = segment[0][0]
    xs = [math.exp((begin_s - at_s) / tau_s) for at_s, _ in segment]
    ys = [celsius for _, celsius in segment]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread > 0 else 0.0
    ambient_c = mean_y - rise * mean_x
    distances = [abs(ambient_c + rise * x - y) for x, y in zip(xs, ys, strict=True)]
    return ambient_c, rise, sum(each * each for each in distances) / len(distances), median(distances)
