"""How far a median may be off for what is known of its run: amounts, relative, each the largest that is plausible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from farm.measure.interval import autocorrelation, student, variance_inflation
from farm.measure.series import (
    Corrected,
    FloatArray,
    SampleSeries,
    correct,
    interpolated_reference,
    robust_sigma,
    winsorised,
)

Follows = tuple[float, float]  # shares of the clock's changes: 0 the model does not follow it, 1 as the kernel
UNKNOWN: Follows = (0.0, 1.0)  # a model that waits for memory does not follow the clock at all
REJECTED_OFFSET = 0.5  # of the reference kernel's level from its nominal; beyond, nothing says how far a model follows
MIN_TO_LEARN = 30  # samples
SMOOTHED = 12.0  # readings, about: the noise of the smoothed reference is that of one reading over their root
MIN_RELIABLE = 0.5  # of the smoothed reference's variance; the rest is noise of the readings
MAX_FOLLOW_ERROR = 0.25  # standard error; beyond, the run says nothing
NOISE_OF_MEDIAN = 1.25  # standard errors of a mean
MIN_BENCHES = 5  # of one build, to learn from them
MIN_BETWEEN = 0.002  # relative: what medians of one build scatter at least
ERRORS = 2.0  # standard errors to either side of what was learned


def moved_without(log_s: FloatArray, places: npt.NDArray[np.intp]) -> float:
    """How far the median moves, on the log scale, without the values at `places`."""
    left = np.delete(log_s, places)
    return abs(float(np.median(left) - np.median(log_s))) if left.size else math.inf


def moved_without_readings(samples: SampleSeries, corrected: Corrected, places: npt.NDArray[np.intp]) -> float:
    """The same without the readings of the reference kernel at the samples `places`."""
    reference_s = samples.reference_s.copy()
    reference_s[places] = math.nan
    without = SampleSeries(samples.seconds, samples.start_s, reference_s)
    if not without.has_reference:
        return math.inf
    other = correct(without, corrected.nominal_s)
    return abs(float(np.median(other.log_s) - np.median(corrected.log_s)))


def follows(samples: SampleSeries, corrected: Corrected) -> Follows | None:
    """How far the model follows the reference kernel's speed, from which share to which; None: the run does not tell.

    A line through the samples over the smoothed reference tells, if the clock moved enough within the run.
    """
    away = corrected.smooth - corrected.smooth.mean()
    power = float(away @ away)
    noise = robust_sigma(corrected.residual) ** 2 / SMOOTHED
    if samples.count < MIN_TO_LEARN or power <= 0 or (reliable := 1 - noise * away.size / power) < MIN_RELIABLE:
        return None
    values = winsorised(np.log(samples.seconds), 4.0)
    values = values - values.mean()
    slope = float(away @ values) / power
    left = values - slope * away
    inflation = variance_inflation(autocorrelation(left), samples.count)
    error = math.sqrt(float(left @ left) / (samples.count - 2) * inflation / power) / reliable
    return None if error > MAX_FOLLOW_ERROR else _around(slope / reliable, ERRORS * error)


def follows_between(medians_s: Sequence[float] | FloatArray, reference_s: Sequence[float] | FloatArray) -> Follows:
    """The same from earlier benches of one build: their medians by the clock, and those of their reference kernels."""
    if len(medians_s) < MIN_BENCHES:
        return UNKNOWN
    values, away = (np.log(each) - np.mean(np.log(each)) for each in (medians_s, reference_s))
    power = float(away @ away)
    slope = float(away @ values) / power if power > 0 else 0.0
    freedom = len(medians_s) - 2
    sigma = max(math.sqrt(float(np.sum((values - slope * away) ** 2)) / freedom), MIN_BETWEEN)
    error = student(0.975, freedom) * sigma / math.sqrt(power) if power > 0 else math.inf
    return UNKNOWN if error > ERRORS * MAX_FOLLOW_ERROR else _around(slope, error)


def _around(slope: float, error: float) -> Follows:
    """As wide as the error says, and with 1, which the correction takes for granted."""
    return min(max(slope - error, 0.0), 1.0), max(slope + error, 1.0)


def moved_by_clock(samples: SampleSeries, corrected: Corrected, known: Follows, *, unsmoothed: bool) -> float:
    """How far the median may be off because the model does not follow the clock as the reference kernel does.

    The correction takes for granted that it does. With the shares of `follows` in its place the median is another. What
    the noise of the readings alone moves it is in the interval already. A clock beyond 1.5 times from its nominal is
    none at which anything was learned: there the interval reaches to the median as measured.

    Args:
        samples: without the warm-up.
        corrected: these samples.
        known: how far the model follows the clock, where the run itself does not tell.
        unsmoothed: whether the clock changed between levels, which the smoothed reference blurs: single readings then
            give one more median.
    """
    if corrected.nominal_s is None:
        return 0.0
    log_s = np.log(samples.seconds)
    slower = corrected.smooth - math.log(corrected.nominal_s)
    far = abs(float(np.median(slower))) > math.log1p(REJECTED_OFFSET)
    shares = UNKNOWN if far else follows(samples, corrected) or known
    others = [float(np.median(log_s - share * slower)) for share in shares]
    if unsmoothed:
        others.append(float(np.median(log_s - np.log(interpolated_reference(samples) / corrected.nominal_s))))
    middle = float(np.median(corrected.log_s))
    noise = (
        0.0 if far else ERRORS * NOISE_OF_MEDIAN * robust_sigma(corrected.residual) / math.sqrt(samples.readings.size)
    )
    return math.sqrt(max(max(abs(other - middle) for other in others) ** 2 - noise**2, 0.0))
