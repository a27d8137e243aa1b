"""Steps and trends: a level that changes within a run, at once (a phone throttles) or all the time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from farm.measure.drift import pulled_in
from farm.measure.interval import likeness, variance_inflation
from farm.measure.series import FloatArray

FEWEST_BESIDE = 3  # samples on either side of a step
SURE = 5.0  # standard errors; the place is searched for, so the usual 3 would be passed by chance
LEAST_EFFECT = 0.008  # relative: smaller steps stay below the minimum effect of a comparison
SURE_OF_TREND = 3.5
LEAST_TREND = 0.003
LEAST_ERROR = 1e-5  # relative: nothing is timed better


@dataclass(frozen=True, slots=True)
class Step:
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
    if count < 4 * FEWEST_BESIDE:
        return None
    values = pulled_in(log_values, 4.0)
    places = np.arange(count) - (count - 1) / 2
    power = float(places @ places)
    slope = float(places @ (values - values.mean())) / power
    left = values - values.mean() - slope * places
    sigma = math.sqrt(float(left @ left) / (count - 2))
    error = max(sigma * math.sqrt(variance_inflation(likeness(left), count) / power) * count, LEAST_ERROR)
    change = slope * (count - 1)
    if abs(change) < LEAST_TREND or abs(change) < SURE_OF_TREND * error:
        return None
    return Trend(math.expm1(change), abs(change) / error)


def find_step(log_values: FloatArray) -> Step | None:
    """The clearest step that is there beside a straight drift; None when there is none.

    For each place a line with a jump there is fitted by least squares, wild values pulled in before; the best place
    counts when its jump is at least 0.8 % and 5 standard errors, which allow for samples that resemble their
    neighbours.
    """
    count = log_values.size
    if count < 4 * FEWEST_BESIDE:
        return None
    values = pulled_in(log_values, 4.0)
    places = np.arange(count) - (count - 1) / 2
    values = values - values.mean()
    rest = values - places * float(places @ values) / float(places @ places)
    first = np.arange(FEWEST_BESIDE, count - FEWEST_BESIDE + 1)
    after = (count - first).astype(np.float64)
    sums = np.cumsum(rest[::-1])[::-1][first]
    tilt = np.cumsum(places[::-1])[::-1][first]
    norms = after - after**2 / count - tilt**2 / float(places @ places)
    best = int(np.argmax(sums**2 / norms))
    index, change = int(first[best]), float(sums[best] / norms[best])
    jump = (np.arange(count) >= index) - after[best] / count - places * tilt[best] / float(places @ places)
    left = rest - change * jump
    sigma = math.sqrt(float(left @ left) / max(count - 4, 1))
    inflation = variance_inflation(likeness(left), count)
    error = max(sigma * math.sqrt(inflation / norms[best]), LEAST_ERROR)
    if abs(change) < LEAST_EFFECT or abs(change) < SURE * error:
        return None
    return Step(index, math.expm1(change), abs(change) / error)
