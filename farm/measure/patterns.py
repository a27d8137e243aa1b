"""Patterns in a run of samples beside one level: warm-up, steps, trends, several levels (modes), outliers.

A step is a level that changes at once (a phone throttles), a trend one that changes all the time; modes are levels that
a clock goes back and forth between, so that no single number is the time. Outliers are counted and reported, never
dropped: the median does not need them gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from farm.measure.interval import autocorrelation, variance_inflation
from farm.measure.series import FloatArray, robust_sigma, winsorised

MIN_BESIDE_STEP = 3  # samples on either side of a step
SURE_OF_STEP = 5.0  # standard errors; the place is searched for, so the usual 3 would be passed by chance
MIN_STEP = 0.008  # relative: smaller steps stay below the minimum effect of a comparison
SURE_OF_TREND = 3.5
MIN_TREND = 0.003
MIN_ERROR = 1e-5  # relative: nothing is timed better


@dataclass(frozen=True, slots=True)
class LevelStep:
    """The level changes by the factor `1 + change` from sample `index` on."""

    index: int
    change: float
    errors: float  # how many standard errors it is away from none


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight change over the whole run."""

    change: float  # from the first to the last sample, relative
    errors: float


def find_trend(log_values: FloatArray) -> Trend | None:
    """A straight change that is at least 0.3 % and 3.5 standard errors; None when there is none."""
    count = log_values.size
    if count < 4 * MIN_BESIDE_STEP:
        return None
    values = winsorised(log_values, 4.0)
    places = np.arange(count) - (count - 1) / 2
    power = float(places @ places)
    slope = float(places @ (values - values.mean())) / power
    left = values - values.mean() - slope * places
    sigma = math.sqrt(float(left @ left) / (count - 2))
    error = max(sigma * math.sqrt(variance_inflation(autocorrelation(left), count) / power) * count, MIN_ERROR)
    change = slope * (count - 1)
    if abs(change) < MIN_TREND or abs(change) < SURE_OF_TREND * error:
        return None
    return Trend(math.expm1(change), abs(change) / error)


def find_step(log_values: FloatArray) -> LevelStep | None:
    """The clearest step that is there beside a straight drift; None when there is none.

    For each place a line with a jump there is fitted by least squares, wild values pulled in before; the best place
    counts when its jump is at least 0.8 % and 5 standard errors, which allow for samples that resemble their
    neighbours.
    """
    count = log_values.size
    if count < 4 * MIN_BESIDE_STEP:
        return None
    values = winsorised(log_values, 4.0)
    places = np.arange(count) - (count - 1) / 2
    values = values - values.mean()
    rest = values - places * float(places @ values) / float(places @ places)
    first = np.arange(MIN_BESIDE_STEP, count - MIN_BESIDE_STEP + 1)
    after = (count - first).astype(np.float64)
    sums = np.cumsum(rest[::-1])[::-1][first]
    tilt = np.cumsum(places[::-1])[::-1][first]
    norms = after - after**2 / count - tilt**2 / float(places @ places)
    best = int(np.argmax(sums**2 / norms))
    index, change = int(first[best]), float(sums[best] / norms[best])
    jump = (np.arange(count) >= index) - after[best] / count - places * tilt[best] / float(places @ places)
    left = rest - change * jump
    sigma = math.sqrt(float(left @ left) / max(count - 4, 1))
    error = max(sigma * math.sqrt(variance_inflation(autocorrelation(left), count) / norms[best]), MIN_ERROR)
    if abs(change) < MIN_STEP or abs(change) < SURE_OF_STEP * error:
        return None
    return LevelStep(index, math.expm1(change), abs(change) / error)


MIN_FOR_MODES = 12
MIN_MODE_SHARE = 0.1  # a level with fewer samples is outliers, which are counted on their own
MIN_MODE_DISTANCE = 0.008  # relative distance of two levels that matters
# Part of the variance that the best two, and three, groups leave within them: in the limit, and how much less for few
# samples, times the root of their number. Normal samples leave 0.36 and 0.19 in the limit, evenly spread ones 1/4 and
# 1/9; of 40 samples with an exponential distribution, the worst of those tried, 1 in 200 leaves less than this.
LEFT_IN_TWO = (0.24, 0.70)
LEFT_IN_THREE = (0.095, 0.28)
MAX_POINTS = 200  # quantiles in place of the samples, where there are more


@dataclass(frozen=True, slots=True)
class Modes:
    """Two levels (or groups of them)."""

    low_share: float  # of the samples that lie at the lower one
    distance: float  # the upper level relative to the lower one, minus 1


def find_modes(log_values: FloatArray) -> Modes | None:
    """Two levels, each with at least a tenth of the samples and 0.8 % apart; None when there are none.

    Samples are split into the two, and the three, groups that leave the least variance within them, the outermost 5 %
    on either side pulled in. There are levels when that is less than samples of one level leave by chance.
    """
    if log_values.size < MIN_FOR_MODES:
        return None
    ordered = np.sort(log_values)
    if ordered.size > MAX_POINTS:
        ordered = np.quantile(ordered, (np.arange(MAX_POINTS) + 0.5) / MAX_POINTS)
    split = _grouped(ordered, log_values.size)
    if split is None:
        return None
    distance = float(np.median(ordered[split:]) - np.median(ordered[:split]))
    return Modes(split / ordered.size, math.expm1(distance)) if distance >= MIN_MODE_DISTANCE else None


def _grouped(ordered: FloatArray, samples: int) -> int | None:
    """The best split into two groups (of three, at the wider gap), where groups leave little variance."""
    left_in_two, left_in_three = (limit - less / math.sqrt(samples) for limit, less in (LEFT_IN_TWO, LEFT_IN_THREE))
    count = ordered.size
    least = max(2, math.ceil(MIN_MODE_SHARE * count))
    low, high = np.quantile(ordered, [0.5 * MIN_MODE_SHARE, 1 - 0.5 * MIN_MODE_SHARE])
    values = np.clip(ordered, low, high)  # outliers make no groups
    values = values - values.mean()
    total = float(values @ values)
    if total <= 0:
        return None
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(count + 1)
    # The variance between groups is the sum of (group sum)^2 / (group size); what it leaves is within them.
    two = np.arange(least, count - least + 1)
    between = sums[two] ** 2 / two + sums[two] ** 2 / (count - two)
    best = int(np.argmax(between))
    if 1 - between[best] / total <= left_in_two:
        return int(two[best])
    first, second = ends[:, None], ends[None, :]
    size = np.maximum(second - first, 1)
    parts = sums[first] ** 2 / np.maximum(first, 1) + (sums[second] - sums[first]) ** 2 / size
    parts = parts + sums[second] ** 2 / np.maximum(count - second, 1)
    allowed = (first >= least) & (second - first >= least) & (count - second >= least)
    if not np.any(allowed):
        return None
    place = int(np.argmax(np.where(allowed, parts, -1.0)))
    one, other = divmod(place, count + 1)
    if 1 - parts[one, other] / total > left_in_three:
        return None
    return one if values[one] - values[one - 1] >= values[other] - values[other - 1] else other


FAR = 5.0  # standard deviations from the median; one of two million normal samples
MAX_LOG = 700.0  # exp of more is no number
MIN_SIGMA = 5e-4  # relative: what is closer than 0.25 % is no outlier, however quiet the others are


@dataclass(frozen=True, slots=True)
class Outliers:
    """Samples far from the others; they stay in the estimate."""

    count: int
    share: float
    indices: tuple[int, ...]  # in the samples as they were taken
    longest_run: int  # in a row
    worst: float  # the furthest, relative to the median, minus 1; 0 without
    lost: float  # of the time that all values took, the share that these took beyond the median


def find_outliers(log_values: FloatArray, first: int = 0) -> Outliers:
    """Samples further than 5 robust standard deviations from the median. `first` is the index of the first value."""
    away = log_values - np.median(log_values)
    far = np.abs(away) > FAR * max(robust_sigma(log_values), MIN_SIGMA)
    places = np.flatnonzero(far)
    if not places.size:
        return Outliers(0, 0.0, (), 0, 0.0, 0.0)
    worst = float(away[places[np.argmax(np.abs(away[places]))]])
    times = np.exp(np.minimum(away, MAX_LOG))
    return Outliers(
        count=int(places.size),
        share=places.size / log_values.size,
        indices=tuple(int(place) + first for place in places),
        longest_run=max(len(run) for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)),
        worst=float(np.expm1(min(worst, MAX_LOG))),
        lost=float(np.maximum(times[places] - 1, 0).sum() / times.sum()),
    )


MIN_FOR_WARMUP = 8  # with fewer samples nothing is cut
SURE_OF_WARMUP = 4.0  # standard errors by which the first samples must be slower
MIN_WARMUP = 0.002  # relative: less than this is not worth a sample
# Times the best cut: at that cut, what is left of the warm-up is still as large as the standard error.
BEYOND_BEST_CUT = 1.5
MAX_WARMUP_SHARE = 0.5  # a run that needs more than this to warm up never settled


def find_warmup(log_values: FloatArray) -> int:
    """How many samples at the start to leave out of the estimate; 0 when they are like the rest.

    The cut is half as far again as where the standard error of what is left is smallest (MSER, White 1997), over the
    first half of the run. It is made only when the samples before it are slower than the rest by more than 4 of their
    standard errors, so that a run without a warm-up is left alone. Faster first samples are no warm-up: a clock that
    fell is a step.
    """
    count = log_values.size
    if count < MIN_FOR_WARMUP:
        return 0
    calm = winsorised(log_values, 4.0)
    most = int(count * MAX_WARMUP_SHARE)
    left = count - np.arange(most + 1)
    centred = calm - np.median(calm)
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    errors = (squares[: most + 1] - sums[: most + 1] ** 2 / left) / left.astype(np.float64) ** 2
    cut = int(np.argmin(errors))
    if cut == 0:
        return 0
    rest = calm[cut:]
    excess = float(np.median(calm[:cut]) - np.median(rest))
    inflation = variance_inflation(autocorrelation(rest), int(rest.size))
    error = max(robust_sigma(rest), 1e-9) * math.sqrt(inflation * (1 / cut + 1 / rest.size)) * 1.25
    if excess <= SURE_OF_WARMUP * error or excess <= MIN_WARMUP:
        return 0
    return min(math.ceil(BEYOND_BEST_CUT * cut), most)
