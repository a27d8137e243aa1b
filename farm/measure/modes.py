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


@dataclass(frozen=True, slots=True)
class Modes:
    """Two levels (or groups of them) with few samples between."""

    low_share: float  # of the samples that lie at the lower one
    distance: float  # the upper level relative to the lower one, minus 1
    valley: float  # how many times less densely samples lie between them


def find_modes(log_values: FloatArray) -> Modes | None:
    """The deepest valley between two levels, each with at least a tenth of the samples; None when there is none.

    The density around each ordered sample is taken from the distance that its nearest tenth of the samples spans. A
    valley is where that distance is several times as large as somewhere below and somewhere above. One-sided and heavy
    tails have none: there the density only falls.
    """
    count = log_values.size
    if count < FEWEST:
        return None
    ordered = np.sort(log_values)
    reach = max(2, round(count / 20))  # ordered samples to either side
    spans = ordered[2 * reach :] - ordered[: -2 * reach]  # around ordered sample `reach + i`
    least = np.maximum(spans, LEAST_GAP)
    below = np.minimum.accumulate(least)
    above = np.minimum.accumulate(least[::-1])[::-1]
    valleys = spans / np.maximum(below, above)
    middles = np.arange(spans.size) + reach
    fits = (middles >= LEAST_SHARE * count - 1) & (middles <= (1 - LEAST_SHARE) * count)
    if not np.any(fits):
        return None
    deepest = int(np.argmax(np.where(fits, valleys, 0.0)))
    inside = ordered[deepest : deepest + 2 * reach + 1]
    split = deepest + int(np.argmax(np.diff(inside))) + 1  # the widest gap in the valley
    distance = float(np.median(ordered[split:]) - np.median(ordered[:split]))
    valley = float(valleys[deepest])
    needed = VALLEY * (1 + 4 / reach)
    if valley < needed or distance < LEAST_EFFECT:
        return None
    return Modes(split / count, math.expm1(distance), valley)
