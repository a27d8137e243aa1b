"""Warm-up: how many of the first samples are still slower than what comes after them."""

from __future__ import annotations

import math

import numpy as np

from farm.measure.drift import pulled_in, spread
from farm.measure.interval import likeness, variance_inflation
from farm.measure.series import FloatArray

FEWEST = 8  # with fewer samples nothing is cut
SURE = 4.0  # standard errors by which the first samples must be slower
LEAST_EFFECT = 0.002  # relative: less than this is not worth a sample
BEYOND = 1.5  # times the best cut: at that cut, what is left of the warm-up is still as large as the standard error
MOST_PART = 0.5  # a run that needs more than this to warm up never settled


def warmup(log_values: FloatArray) -> int:
    """How many samples at the start to leave out of the estimate; 0 when they are like the rest.

    The cut is half as far again as where the standard error of what is left is smallest (MSER, White 1997), over the
    first half of the run.
    It is made only when the samples before it are slower than the rest by more than 4 of their standard errors, so that
    a run without a warm-up is left alone. Faster first samples are no warm-up: a clock that fell is a step.
    """
    count = log_values.size
    if count < FEWEST:
        return 0
    tame = pulled_in(log_values, 4.0)
    most = int(count * MOST_PART)
    left = count - np.arange(most + 1)
    centred = tame - np.median(tame)
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    errors = (squares[: most + 1] - sums[: most + 1] ** 2 / left) / left.astype(np.float64) ** 2
    cut = int(np.argmin(errors))
    if cut == 0:
        return 0
    rest = tame[cut:]
    excess = float(np.median(tame[:cut]) - np.median(rest))
    inflation = variance_inflation(likeness(rest), int(rest.size))
    error = max(spread(rest), 1e-9) * math.sqrt(inflation * (1 / cut + 1 / rest.size)) * 1.25
    return min(math.ceil(BEYOND * cut), most) if excess > SURE * error and excess > LEAST_EFFECT else 0
