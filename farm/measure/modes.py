"""Modes: a clock that goes back and forth between levels, so that no single number is the time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from farm.measure.series import FloatArray

FEWEST = 12
LEAST_SHARE = 0.1  # a level with fewer samples is outliers, which are counted on their own
LEAST_EFFECT = 0.008  # relative distance of two levels that matters
# Part of the variance that the best two, and three, groups leave within them: in the limit, and how much less for few
# samples, times the root of their number. Normal samples leave 0.36 and 0.19 in the limit, evenly spread ones 1/4 and
# 1/9; of 40 samples with an exponential distribution, the worst of those tried, 1 in 200 leaves less than this.
LEFT_IN_TWO = (0.24, 0.70)
LEFT_IN_THREE = (0.095, 0.28)
MOST_POINTS = 200  # quantiles in place of the samples, where there are more


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
    if log_values.size < FEWEST:
        return None
    ordered = np.sort(log_values)
    if ordered.size > MOST_POINTS:
        ordered = np.quantile(ordered, (np.arange(MOST_POINTS) + 0.5) / MOST_POINTS)
    split = _grouped(ordered, log_values.size)
    if split is None:
        return None
    distance = float(np.median(ordered[split:]) - np.median(ordered[:split]))
    return Modes(split / ordered.size, math.expm1(distance)) if distance >= LEAST_EFFECT else None


def _grouped(ordered: FloatArray, samples: int) -> int | None:
    """The best split into two groups (of three, at the wider gap), where groups leave little variance."""
    left_in_two, left_in_three = (limit - less / math.sqrt(samples) for limit, less in (LEFT_IN_TWO, LEFT_IN_THREE))
    count = ordered.size
    least = max(2, math.ceil(LEAST_SHARE * count))
    low, high = np.quantile(ordered, [0.5 * LEAST_SHARE, 1 - 0.5 * LEAST_SHARE])
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
