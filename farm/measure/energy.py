"""Joules of one inference, from power readings of idle and busy windows in turns. Pure.

A phone draws power when it does nothing, and that baseline wanders: with temperature, with what runs in the
background. So the model runs in windows between idle ones, and each busy window is compared with its own two
neighbours. A cycle is idle, busy, idle; cycles share no reading, a linear drift within one cancels, and the interval
is Student's over the cycles. `window` makes a power window out of readings, `estimate` the answer out of cycles:
either joules with their interval, or why this meter does not say, and how long it would need.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farm.measure.interval import student
from farm.measure.series import FloatArray

CONFIDENCE = 0.95
MIN_CYCLES = 20
# The first third of the cycles decides whether the meter answers, the others give the number. Where the same cycles do
# both, those runs are reported whose scatter looks small by chance: at a meter's limit, 90 % held the truth, not 95 %.
PILOT_PART = 1 / 3
MAX_LAG_PART = 1 / 3  # of a window: a meter's clock may be so far from the host's
LAGS = 241  # that are tried
SURE_OF_LAG = 6.0  # standard errors by which idle and busy windows must lie further apart with a lag than without
MIN_READINGS = 3  # of a window, after the meter has settled
# Readings between two neighbouring steps of a meter hide up to a step between their means; noise of half a step or more
# removes that, and then about so many readings lie beyond the two commonest steps.
DITHERED_PART = 0.04
MAX_STEP_PART = 0.2  # of the wanted half width: a meter's step that does not average out may cost so much of it


@dataclass(frozen=True, slots=True)
class PowerReading:
    """What a meter said once."""

    at_s: float  # any clock, the same for the whole run
    watts: float
    volts: float = 1.0  # of a gauge, whose steps are amperes; 1: the meter's steps are watts
    rail: str = ""  # the power rail that it is of; "": it is of the whole phone


@dataclass(frozen=True, slots=True)
class PowerWindow:
    """The mean power of a stretch of time."""

    watts: float
    hidden_w: float  # by so much the meter's step may displace the mean, however long the window is


@dataclass(frozen=True, slots=True)
class EnergyCycle:
    """A busy window between its own two idle windows."""

    idle_before: PowerWindow
    busy: PowerWindow
    idle_after: PowerWindow
    inference_s: float  # the busy window's seconds, over the inferences in it

    @property
    def idle_w(self) -> float:
        """The baseline in the middle of the busy window."""
        return (self.idle_before.watts + self.idle_after.watts) / 2

    @property
    def net_j(self) -> float:
        """Joules of one inference above the baseline."""
        return (self.busy.watts - self.idle_w) * self.inference_s

    @property
    def hidden_j(self) -> float:
        """By so much the meter's step may displace `net_j`."""
        idle_w = (self.idle_before.hidden_w + self.idle_after.hidden_w) / 2
        return (self.busy.hidden_w + idle_w) * self.inference_s


@dataclass(frozen=True, slots=True)
class EnergyEstimate:
    """Joules of one inference above the idle baseline, with the interval of their mean."""

    net_j: float
    low_j: float
    high_j: float
    confidence: float
    idle_w: float
    busy_w: float
    inference_s: float
    cycles: int  # those that gave the number
    lag_s: float = 0.0  # of the meter's clock behind the host's, which was taken out

    @property
    def gross_j(self) -> float:
        """Joules of one inference, the baseline's share included."""
        return self.busy_w * self.inference_s

    @property
    def half_width(self) -> float:
        """The interval's half width relative to the joules."""
        return (self.high_j - self.low_j) / 2 / self.net_j


@dataclass(frozen=True, slots=True)
class EnergyNotResolved:
    """The meter does not answer the question, so there is no number."""

    sentence: str
    needed_s: float | None  # a run of this length is expected to answer it; None: no length of a run does


def window(readings: Sequence[PowerReading], start_s: float, end_s: float, meter_step: float) -> PowerWindow | None:
    """The mean power from `start_s` to `end_s`; None where fewer than three readings lie inside.

    Each reading counts for the time since the one before it, so one that came late does not count for less.

    Args:
        readings: in order of time.
        start_s: the window's begin, after the meter has settled: later than the change of load by its update period.
        end_s: its end.
        meter_step: the difference of neighbouring values that the meter can show, in watts per volt of the readings;
            0: no steps.
    """
    inside = [each for each in readings if start_s < each.at_s <= end_s]
    if len(inside) < MIN_READINGS:
        return None
    times = np.array([each.at_s for each in inside])
    watts = np.array([each.watts for each in inside])
    spans = np.diff(times)  # the first reading stands for time before the window
    mean_w = float(watts[1:] @ spans / spans.sum()) if spans.sum() > 0 else float(watts.mean())
    volts = np.array([each.volts for each in inside])
    dithered = _dithered((watts / volts).tolist(), meter_step)
    return PowerWindow(mean_w, 0.0 if dithered else meter_step / 2 * float(volts.mean()))


def clock_lag_s(readings: Sequence[PowerReading], borders: FloatArray) -> float:
    """How far a meter's clock is behind this host's, by the square wave of idle and busy windows; 0: not seen.

    The right lag is the one with which busy windows differ most from idle ones. A lag below a period of the readings is
    left as it is: it lies in what is left out while the meter settles.

    Args:
        readings: in order of time, by the meter's clock; each is the mean since the one before.
        borders: by this host's clock; a row for each cycle: begin, busy, idle again, end.
    """
    if len(readings) < 2 * MIN_READINGS or not borders.size:
        return 0.0
    at_s = np.array([each.at_s for each in readings])
    spans = np.diff(at_s)
    energy = np.concatenate([[0.0], np.cumsum(np.array([each.watts for each in readings])[1:] * spans)])
    period_s = float(np.median(spans))
    most_s = MAX_LAG_PART * float(np.min(np.diff(borders, axis=1)))
    lags = np.linspace(-most_s, most_s, LAGS)
    at_borders = np.interp(borders[None, :, :] - lags[:, None, None], at_s, energy)
    before, busy, after = np.moveaxis(np.diff(at_borders, axis=2) / np.diff(borders, axis=1), 2, 0)
    contrast = busy - (before + after) / 2  # a row for each lag, a column for each cycle
    best = int(np.argmax(contrast.mean(axis=1)))
    gained = contrast[best] - contrast[LAGS // 2]
    error = float(gained.std(ddof=1)) / math.sqrt(gained.size) if gained.size > 1 else math.inf
    if abs(lags[best]) <= period_s or float(gained.mean()) <= SURE_OF_LAG * error:
        return 0.0
    return float(lags[best])


def _dithered(values: Sequence[float], meter_step: float) -> bool:
    """Whether readings scatter so much that the steps of a meter average out."""
    if meter_step <= 0:
        return True
    levels = Counter(round(each / meter_step) for each in values)
    beyond = len(values) - sum(count for _, count in levels.most_common(2))
    return beyond >= DITHERED_PART * len(values) and beyond > 0


def estimate(cycles: Sequence[EnergyCycle], run_s: float, half_width: float) -> EnergyEstimate | EnergyNotResolved:
    """Joules of one inference, or why the readings do not say.

    Args:
        cycles: those of one run, equally long, in order.
        run_s: how long all of them took.
        half_width: the interval's half width that is wanted, relative to the joules. The interval may become a bit
            wider: once the first third promises it, the others are reported as they are.
    """
    count = len(cycles)
    if count < MIN_CYCLES:
        needed_s = run_s * MIN_CYCLES / count if count else None
        return EnergyNotResolved(f"{count} cycles of idle and busy windows were measured, not {MIN_CYCLES}", needed_s)
    net_j = np.array([each.net_j for each in cycles])
    pilot_j, rest_j = np.split(net_j, [round(PILOT_PART * count)])
    likely_j, expected_j = float(pilot_j.mean()), _half_width(pilot_j, rest_j.size)
    hidden_j = float(np.mean([each.hidden_j for each in cycles]))
    if hidden_j > MAX_STEP_PART * half_width * max(likely_j, 0.0):
        return EnergyNotResolved(
            f"the steps of the meter hide {_digits(hidden_j)} J of an inference, which takes about "
            f"{_digits(likely_j)} J, and there is too little noise to average them out",
            None,
        )
    if likely_j <= 0 or expected_j > half_width * likely_j:
        return EnergyNotResolved(
            f"an inference takes about {_digits(likely_j)} J, which the run would tell to ± {_digits(expected_j)} J",
            _needed_s(run_s, likely_j, expected_j, half_width),
        )
    mean_j, half_j = float(rest_j.mean()), _half_width(rest_j, rest_j.size) + hidden_j
    rest = cycles[pilot_j.size :]
    return EnergyEstimate(
        net_j=mean_j,
        low_j=mean_j - half_j,
        high_j=mean_j + half_j,
        confidence=CONFIDENCE,
        idle_w=float(np.mean([each.idle_w for each in rest])),
        busy_w=float(np.mean([each.busy.watts for each in rest])),
        inference_s=float(np.mean([each.inference_s for each in rest])),
        cycles=len(rest),
    )


def _half_width(joules: FloatArray, count: int) -> float:
    """Of the interval of the mean of `count` cycles that scatter as these do."""
    return student((1 + CONFIDENCE) / 2, joules.size - 1) * float(joules.std(ddof=1)) / math.sqrt(count)


def _needed_s(run_s: float, mean_j: float, half_j: float, half_width: float) -> float | None:
    """How long a run would resolve it: an interval narrows with the root of the run's length.

    Where the interval holds 0, the largest joules it allows are taken: shorter runs do not answer it.
    """
    likely_j = mean_j if mean_j > half_j else mean_j + half_j
    return run_s * (half_j / (half_width * likely_j)) ** 2 if likely_j > 0 else None


def _digits(joules: float) -> str:
    return f"{joules:.3g}"
