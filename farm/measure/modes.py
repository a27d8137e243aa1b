"""Modes: a clock that goes back and forth between levels, so that no single number is the time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from farm.measure.series import FloatArray

FEWEST = 12
LEAST_SHARE = 0.1  # a level with fewer samples is outliers, which are counted on their own
LEAST_EFFECT = 0.008  # relative distance of two levels that matters
LEAST_GAP = 0.001  # relative: levels of a coarse timer, with nothing between them, are one
VALLEY = 4.5  # samples lie so many times less densely between two levels than within each
# Part of the variance that is left within the best two, or three, groups. An even spread leaves 1/4 and 1/9.
LEFT_IN_TWO = 0.17
LEFT_IN_THREE = 0.07
MOST_POINTS = 200  # quantiles in place of the samples, where there are more


@dataclass(frozen=True, slots=True)
class Modes:
    """Two levels (or groups of them) with few samples between."""

    low_share: float  # of the samples that lie at the lower one
    distance: float  # the upper level relative to the lower one, minus 1


def find_modes(log_values: FloatArray) -> Modes | None:
    """Two levels, each with at least a tenth of the samples and 0.8 % apart; None when there are none.

    There are levels when two groups leave at most 17 % of the variance within them, or three groups 7 %; and when there
    is a valley in the density of samples: the distance that a tenth of them spans is several times as large as
    somewhere below and somewhere above. One-sided and heavy tails have no valley: there the density only falls.
    """
    if log_values.size < FEWEST:
        return None
    ordered = np.sort(log_values)
    if ordered.size > MOST_POINTS:
        ordered = np.quantile(ordered, (np.arange(MOST_POINTS) + 0.5) / MOST_POINTS)
    split = _grouped(ordered) or _valley(ordered)
    if split is None:
        return None
    distance = float(np.median(ordered[split:]) - np.median(ordered[:split]))
    return Modes(split / ordered.size, math.expm1(distance)) if distance >= LEAST_EFFECT else None


def _grouped(ordered: FloatArray) -> int | None:
    """The best split into two groups (of three, at the wider gap), where groups leave little variance."""
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
    if 1 - between[best] / total <= LEFT_IN_TWO:
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
    if 1 - parts[one, other] / total > LEFT_IN_THREE:
        return None
    return one if values[one] - values[one - 1] >= values[other] - values[other - 1] else other


def _valley(ordered: FloatArray) -> int | None:
    """The widest gap in the deepest valley of the density, where it is deep enough."""
    count = ordered.size
    reach = max(2, round(count / 20))  # ordered samples to either side
    spans = ordered[2 * reach :] - ordered[: -2 * reach]  # around ordered sample `reach + i`
    least = np.maximum(spans, LEAST_GAP)
    valleys = spans / np.maximum(np.minimum.accumulate(least), np.minimum.accumulate(least[::-1])[::-1])
    middles = np.arange(spans.size) + reach
    fits = (middles >= LEAST_SHARE * count - 1) & (middles <= (1 - LEAST_SHARE) * count)
    deepest = int(np.argmax(np.where(fits, valleys, 0.0)))
    if not fits[deepest] or valleys[deepest] < VALLEY * (1 + 4 / reach):
        return None
    inside = ordered[deepest : deepest + 2 * reach + 1]
    return deepest + int(np.argmax(np.diff(inside))) + 1
