"""How sure a median is when samples resemble their neighbours: the block bootstrap, corrected for few samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from farm.measure.drift import pulled_in
from farm.measure.series import FloatArray

RESAMPLES = 1000  # the interval's ends then scatter by about 2 % of its width between seeds
SEED = 20260801  # fixed: the same samples always give the same interval
NO_SPREAD = 1e-9  # relative: rounding, not timing
MOST_LIKENESS = 0.95  # beyond, samples say next to nothing
TAILS_HOLD = 0.95  # confidence up to which draws of single samples have tails that are long enough
SINGLE_DRAWS = 0.97  # to that confidence they hold a bit more than they say: medians of few samples take few values
# Degrees of freedom are the blocks less so many, and the least: such that AR(1) is covered (bench statistics).
LOST_FREEDOM, LEAST_FREEDOM = 5.0, 2.5
FEWEST_BLOCKS = 5  # fewer make no distribution
_DRAWN_AT_ONCE = 4_000_000  # values: 32 MB


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median and its interval, in seconds (or a ratio, where ratios were given)."""

    median_s: float
    low_s: float
    high_s: float
    confidence: float  # 0.95: in 95 of 100 runs the interval holds the true median
    count: int
    effective_count: float  # how many independent samples would say as much
    block: int  # neighbouring samples drawn together

    @property
    def half_width(self) -> float:
        """The interval's half width relative to the median."""
        return (self.high_s - self.low_s) / 2 / self.median_s

    @property
    def cautious_count(self) -> float:
        """`effective_count`, should samples resemble their neighbours by a standard error more than it seems."""
        inflation = self.count / self.effective_count
        seems = (inflation - 1) / (inflation + 1)
        likeness_of = min(seems + math.sqrt((1 - seems**2) / self.count), MOST_LIKENESS)
        return min(self.count / variance_inflation(likeness_of, self.count), self.effective_count)


def likeness(values: FloatArray) -> float:
    """The lag-1 autocorrelation of samples, corrected for its bias at small counts; 0 below its own standard error.

    The usual estimator is too small by about 3 rho / n (Kendall 1954; the part of its bias that does not grow with rho
    is left, as correcting it widens intervals of samples that do not resemble each other). Single wild values, which
    would hide the likeness of the others, are pulled in before.
    """
    count = values.size
    if count < 4:
        return 0.0
    centred = pulled_in(values)
    centred = centred - centred.mean()
    power = float(centred @ centred)
    if power <= count * NO_SPREAD**2:
        return 0.0
    raw = float(centred[1:] @ centred[:-1]) / power
    found = min(raw * count / max(count - 3, 1), MOST_LIKENESS)
    return found if found > 1 / math.sqrt(count) else 0.0


def variance_inflation(likeness_of: float, count: int) -> float:
    """How many times the variance of a mean grows when samples resemble their neighbours as in an AR(1) process."""
    return _inflation(likeness_of, count, count)


def block_length(likeness_of: float, count: int) -> int:
    """How many neighbours to draw together: the length with the least error for an AR(1) process.

    (6 n)^(1/3) (rho / (1 - rho^2))^(2/3): Carlstein 1986; Andrews 1991 gives the same order.
    """
    best = (6 * count) ** (1 / 3) * (likeness_of / (1 - likeness_of**2)) ** (2 / 3)
    return int(min(max(round(best), 1), max(count // FEWEST_BLOCKS, 1)))


def median_interval(
    log_values: FloatArray,
    residual: FloatArray | None = None,
    *,
    beside: int = 1,
    confidence: float = 0.95,
) -> Estimate:
    """The median of `exp(log_values)` and its interval by the circular block bootstrap (Politis and Romano 1992).

    Blocks of neighbouring samples are drawn with replacement until there are as many as before; the middle 95 % of the
    medians of many such draws is the interval. Its ends are then moved away from the median, by what blocks of this
    length miss of an AR(1) process's variance, and by Student's t in place of the normal quantile, with as many degrees
    of freedom as the blocks have.

    Args:
        log_values: logarithms of samples, in the order they were taken.
        residual: of the reference kernel (`drift.Corrected`), drawn together with the samples; its median is 0.
        beside: samples that share one value of `residual`; blocks are at least so long.
        confidence: between 0 and 1.
    """
    count = log_values.size
    middle = float(np.median(log_values))
    likeness_of = likeness(log_values)
    block = block_length(likeness_of, count)
    inflation = variance_inflation(likeness_of, count)
    tail = (1 - confidence) / 2
    together = max(block, min(beside, max(count // FEWEST_BLOCKS, 1)))
    drawn = _medians(log_values - middle, residual, together)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    wider = _widening(likeness_of, block, together, count, confidence)
    return Estimate(
        median_s=math.exp(middle),
        low_s=math.exp(middle + min(wider * float(low), 0.0)),
        high_s=math.exp(middle + max(wider * float(high), 0.0)),
        confidence=confidence,
        count=int(count),
        effective_count=count / inflation,
        block=block,
    )


def student(probability: float, freedom: float) -> float:
    """Student's t quantile (Cornish-Fisher expansion; Abramowitz and Stegun 26.7.5): within 1 % from 4 degrees up."""
    z = NormalDist().inv_cdf(probability)
    f = max(freedom, 2.0)
    return (
        z
        + (z**3 + z) / 4 / f
        + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / f**2
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / f**3
    )


def _medians(values: FloatArray, residual: FloatArray | None, block: int) -> FloatArray:
    generator = np.random.default_rng(SEED)
    count = values.size
    blocks = math.ceil(count / block)
    places = np.arange(block)
    found = []
    rows = max(1, _DRAWN_AT_ONCE // count)
    for start in range(0, RESAMPLES, rows):
        begins = generator.integers(0, count, size=(min(rows, RESAMPLES - start), blocks, 1))
        taken = (begins + places).reshape(begins.shape[0], -1)[:, :count]
        medians = _row_medians(values, taken)
        if residual is not None:
            medians = medians - _row_medians(residual, taken)
        found.append(medians)
    return np.concatenate(found)


def _row_medians(values: FloatArray, taken: npt.NDArray[np.intp]) -> FloatArray:
    """The median of each row of `values[taken]`, where values go round; by ranks, short numbers that sort quickly."""
    order = np.argsort(values, kind="stable")
    ranks = np.empty(values.size, dtype=np.int16 if values.size < 2**15 else np.int32)
    ranks[order] = np.arange(values.size)
    drawn = np.sort(np.concatenate([ranks, ranks])[taken], axis=1)
    ordered = values[order]
    width = taken.shape[1]
    return np.asarray((ordered[drawn[:, (width - 1) // 2]] + ordered[drawn[:, width // 2]]) / 2, dtype=np.float64)


def _widening(likeness_of: float, block: int, together: int, count: int, confidence: float) -> float:
    """By how much the bootstrap's interval is too narrow. `together`: samples that are drawn together."""
    if count < 2:
        return 1.0
    truth = _inflation(likeness_of, count, count)
    seen = _inflation(likeness_of, block, block) - (block / count if block > 1 else 0.0) * truth
    missed = math.sqrt(max(truth / max(seen, 0.2 * truth), 1.0))
    quantile = 0.5 + confidence / 2
    if block > 1:
        freedom = max(count / block - LOST_FREEDOM, LEAST_FREEDOM)
    elif confidence > TAILS_HOLD:
        freedom = count - 1
    else:
        missed *= SINGLE_DRAWS
        if together == 1:
            return missed
        freedom = count / together - 1  # the readings of the reference, which are few
    return missed * student(quantile, freedom) / NormalDist().inv_cdf(quantile)


@lru_cache(maxsize=4096)
def _inflation(likeness_of: float, window: int, count: int) -> float:
    """1 + 2 sum over lags k < window of (1 - k / count) rho^k."""
    lags = np.arange(1, window)
    return float(1 + 2 * np.sum((1 - lags / count) * likeness_of**lags)) if window > 1 else 1.0
