"""Timed samples in the order they were taken, with the reference kernel that ran beside them.

The kernel shows drift, what the phone's clock did during a run; `correct` gives the samples without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_S, MAX_S = 1e-12, 1e9  # what is beyond is a unit mixed up, and breaks logarithms
MAX_BESIDE = 8  # samples for one reading of the reference kernel; with more it says too little about each

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SampleSeries:
    """Samples in the order they were taken; all three arrays have one value for each."""

    seconds: FloatArray  # what was timed, above 0
    start_s: FloatArray  # when each sample began, on any clock that only goes forward
    reference_s: FloatArray  # the reference kernel, timed right before the sample; NaN where it was not

    @property
    def count(self) -> int:
        """How many samples."""
        return int(self.seconds.size)

    @property
    def has_reference(self) -> bool:
        """Whether the reference kernel was timed at least once for every eight samples."""
        return self.readings.size * MAX_BESIDE >= self.count

    @property
    def readings(self) -> npt.NDArray[np.intp]:
        """At which samples the reference kernel was timed."""
        return np.flatnonzero(np.isfinite(self.reference_s))

    def after(self, first: int) -> SampleSeries:
        """Without the first so many samples."""
        return SampleSeries(self.seconds[first:], self.start_s[first:], self.reference_s[first:])


def series(
    seconds: Sequence[float] | FloatArray,
    start_s: Sequence[float] | FloatArray | None = None,
    reference_s: Sequence[float] | FloatArray | None = None,
) -> SampleSeries:
    """Check samples and put them together.

    Without `start_s` the samples are taken as one after the other, each as long as it says.

    Raises:
        ValueError: there is no sample; a time is beyond 1e-12 to 1e9 s; the lengths differ; time goes backwards.
    """
    values = np.asarray(seconds, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("there is no sample")
    if not _are_times(values):
        raise ValueError(f"a sample is not a time between {MIN_S:g} and {MAX_S:g} s")
    starts = np.cumsum(np.append(0.0, values[:-1])) if start_s is None else np.asarray(start_s, dtype=np.float64)
    reference = np.full(values.size, np.nan) if reference_s is None else np.asarray(reference_s, dtype=np.float64)
    if starts.shape != values.shape or reference.shape != values.shape:
        raise ValueError(f"{values.size} samples, {starts.size} start times and {reference.size} reference times")
    if not np.all(np.isfinite(starts)) or np.any(np.diff(starts) < 0):
        raise ValueError("the start times do not go forward")
    if not _are_times(reference[~np.isnan(reference)]):
        raise ValueError(f"a time of the reference kernel is not between {MIN_S:g} and {MAX_S:g} s")
    return SampleSeries(values, starts, reference)


def _are_times(values: FloatArray) -> bool:
    return bool(np.all((values >= MIN_S) & (values <= MAX_S)))


HALF_WINDOW = 7  # readings to either side: slower than scheduling noise, faster than a phone warms up
HALF_MEDIAN = 4  # values to either side that a wild one is compared with
MIN_FOR_LINES = 8  # below, a line through the reference would be more noise than drift
CLIP = 3.0  # a reference time further from its neighbours than so many standard deviations is pulled to that distance
MAD_TO_SIGMA = 1.4826  # of a normal distribution
MIN_SPREAD = 1e-6  # relative: nothing is timed better


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """Samples at the reference kernel's nominal speed. All on the log scale, where drift adds."""

    log_s: FloatArray  # of corrected seconds
    residual: FloatArray  # log of each reference time over its smoothed value; zeros without a reference; median 0
    smooth: FloatArray  # log of the smoothed reference; zeros without
    beside: int  # samples that share one reading of the reference kernel
    nominal_s: float | None  # None: there was no reference, and nothing was corrected


def robust_sigma(values: FloatArray) -> float:
    """A standard deviation that outliers do not move: the median absolute deviation, scaled as for a normal one."""
    return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values)))) if values.size else 0.0


def correct(samples: SampleSeries, nominal_s: float | None = None) -> Corrected:
    """Each sample times nominal over smoothed reference: its time at the nominal speed.

    Each reading of the reference is smoothed by a line through its neighbours (7 on either side, fewer at the ends),
    after single wild readings were winsorised; the level is that of the readings' median; samples between two readings
    take what lies between. Unsmoothed, its noise would be added to each sample, and would move the median of samples
    whose distribution is skewed. What noise is left in the level after smoothing belongs to the result: the interval
    draws `residual` together with the samples.

    A step within a run is smoothed too, and corrected samples beside it are wrong: so `assess` looks for steps in the
    reference itself.

    Args:
        samples: in the order they were taken.
        nominal_s: the reference kernel's time on this phone at its nominal speed; None: its median in this run, which
            takes drift out but leaves the level as it was.
    """
    log_s = np.log(samples.seconds)
    zeros = np.zeros(samples.count)
    if not samples.has_reference:
        return Corrected(log_s, zeros, zeros, 1, None)
    readings, places = samples.readings, np.arange(samples.count)
    log_reading = np.log(samples.reference_s[readings])
    smooth = _smoothed(log_reading)
    smooth = smooth + np.median(log_reading - smooth)
    nominal = float(np.exp(np.median(log_reading))) if nominal_s is None else nominal_s
    at_samples = np.interp(places, readings, smooth)
    before = np.maximum(np.searchsorted(readings, places, side="right") - 1, 0)
    return Corrected(
        log_s=log_s - at_samples + np.log(nominal),
        residual=(log_reading - smooth)[before],
        smooth=at_samples,
        beside=-(-samples.count // readings.size),
        nominal_s=nominal,
    )


def interpolated_reference(samples: SampleSeries) -> FloatArray:
    """The reference kernel's time at each sample, from the line between the readings before and after it."""
    readings = samples.readings
    return np.interp(np.arange(samples.count, dtype=np.float64), readings, samples.reference_s[readings])


def detrended(values: FloatArray) -> FloatArray:
    """Values without their straight drift, which is the median of the changes over half the run; median 0."""
    half = values.size // 2
    slope = float(np.median(values[half:] - values[: values.size - half])) / half if half else 0.0
    rest = values - slope * np.arange(values.size)
    return np.asarray(rest - np.median(rest), dtype=np.float64)


def running_median(values: FloatArray) -> FloatArray:
    """The median of each value and its four neighbours on either side; fewer at the ends."""
    half = HALF_MEDIAN
    if values.size <= 2 * half + 1:
        return np.full(values.size, np.median(values))
    padded = np.concatenate([np.full(half, np.nan), values, np.full(half, np.nan)])
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)  # nan last
    places = np.arange(values.size)
    there = np.minimum(places, half) + np.minimum(places[::-1], half) + 1
    return np.asarray((windows[places, (there - 1) // 2] + windows[places, there // 2]) / 2, dtype=np.float64)


def winsorised(values: FloatArray, sigmas: float = CLIP) -> FloatArray:
    """Values, those far from their neighbours' median pulled to the given number of standard deviations from it."""
    around = running_median(values)
    far = sigmas * max(robust_sigma(values - around), MIN_SPREAD)
    return around + np.clip(values - around, -far, far)


def _smoothed(values: FloatArray) -> FloatArray:
    """A least-squares line through each value's neighbours, evaluated at that value."""
    count = values.size
    if count < MIN_FOR_LINES:
        return np.full(count, np.median(values))
    calm = winsorised(values)
    places = np.arange(count, dtype=np.float64)
    low = np.maximum(np.arange(count) - HALF_WINDOW, 0)
    high = np.minimum(np.arange(count) + HALF_WINDOW + 1, count)

    def total(each: FloatArray) -> FloatArray:
        sums = np.concatenate([[0.0], np.cumsum(each)])
        return np.asarray(sums[high] - sums[low], dtype=np.float64)

    shifted = calm - calm[0]  # sums of large equal numbers would lose the digits that matter
    size = (high - low).astype(np.float64)
    mean_place, mean = total(places) / size, total(shifted) / size
    across = total(places * shifted) / size - mean_place * mean
    along = total(places * places) / size - mean_place**2
    return np.asarray(calm[0] + mean + across / along * (places - mean_place), dtype=np.float64)
