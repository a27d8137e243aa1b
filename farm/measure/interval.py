"""How sure a median is when samples resemble their neighbours: the block bootstrap, corrected for few samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from farm.measure.series import CLIP, FloatArray, robust_sigma

RESAMPLES = 1000  # the interval's ends then scatter by about 2 % of its width between seeds
SEED = 20260801  # fixed: the same samples always give the same interval
NO_SPREAD = 1e-9  # relative: rounding, not timing
MAX_AUTOCORRELATION = 0.998  # beyond, samples say next to nothing
SURE_OF_NEXT, SURE_OF_MEANS = 1.0, 1.6  # standard errors by which pairs, and longer means, scatter beyond chance
# Of `slow_noise`. Shares of the variance: a white floor below hides the slope of what has a long memory.
SLOW_SHARES = (0.15, 0.3, 0.5, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.985, 0.995, 1.0)
SLOW_CORNER = 24.0  # half waves of the run; with fewer, 1/f noise cannot be distinguished from noise of a short memory
MAX_UNBOUNDED = 0.1  # probability of slow noise that the run does not bound; beyond, there is no amount
WANDER_ERRORS = 2.9  # 1.5 times those of a normal distribution: a run shows few of the longest waves
MIN_HALF_WAVES = 0.02  # half waves of the run: periods of 100 runs, the longest of 1/f noise that are counted
INDEPENDENT = 0.8  # the probability of independent samples beforehand
MIN_FOR_SPECTRUM = 12
BANDS = 150  # of half waves: the longest have one each
TAILS_HOLD = 0.95  # confidence up to which draws of single samples have tails that are long enough
SINGLE_DRAWS = 0.97  # to that confidence they hold a bit more than they say: medians of few samples take few values
# Degrees of freedom are the blocks less so many, and the least: such that AR(1) is covered (bench statistics).
LOST_FREEDOM, MIN_FREEDOM = 5.0, 2.5
MIN_BLOCKS = 5  # fewer make no distribution
_DRAWN_AT_ONCE = 200_000  # values, which stay in a processor's cache


@dataclass(frozen=True, slots=True)
class MedianEstimate:
    """A median and its interval, in seconds (or a ratio, where ratios were given)."""

    median_s: float
    low_s: float
    high_s: float
    confidence: float  # 0.95: in 95 of 100 runs the interval holds the true median
    count: int
    effective_count: float  # how many independent samples would say as much
    block: int  # neighbouring samples drawn together
    cut: bool = False  # at the fastest or the slowest sample: what the interval would be beyond says too little

    @property
    def half_width(self) -> float:
        """The interval's half width relative to the median."""
        return (self.high_s - self.low_s) / 2 / self.median_s

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """From where to where; None: one sample has no interval."""
        return (self.low_s, self.high_s) if self.count > 1 else None

    def to_ms(self) -> dict[str, Any]:
        """`median_ms low_ms high_ms half_width`; all but the median are None without an interval."""
        known = {"low_ms": self.low_s * 1e3, "high_ms": self.high_s * 1e3, "half_width": self.half_width}
        return {"median_ms": self.median_s * 1e3, **(known if self.count > 1 else dict.fromkeys(known))}


def autocorrelation(values: FloatArray) -> float:
    """How much samples resemble their neighbours: the AR(1) coefficient that explains means of neighbours; 0: not.

    Means of 2, 3, 5 ... up to a fifth of the samples in a row scatter more than those of independent ones would. Each
    length gives a coefficient, the largest counts: noise that is partly independent, or has several time scales, shows
    at the longer ones. A length counts where its excess is beyond chance (Lo and MacKinlay 1988). Far values, which
    would hide the autocorrelation of the others, are winsorised before.
    """
    count = values.size
    standard = _standardised(values)
    if count < 4 or standard is None:
        return 0.0
    sums = np.concatenate([[0.0], np.cumsum(standard)])
    found, window = 0.0, 2
    while window <= max(count // MIN_BLOCKS, 2):
        excess = _scatter_of_means(sums, window) - 1
        chance = math.sqrt(2 * (2 * window - 1) * (window - 1) / (3 * window * count))
        if excess > (SURE_OF_NEXT if window == 2 else SURE_OF_MEANS) * chance:
            coefficients, inflations = _inflations(window)
            found = max(found, float(np.interp(1 + excess, inflations, coefficients)))
        window = math.ceil(1.5 * window)
    return min(found, MAX_AUTOCORRELATION)


def slow_noise(values: FloatArray) -> float:
    """The probability, from 0 to 1, that samples remember others as far away as a 75th of the run, or further.

    The run's spectrum (a cosine transform: no seam between its ends) is compared with models by Whittle's likelihood:
    independent noise, and its sum with noise of one memory (AR(1)) or of many (1/f), of every share and length. Only
    where the spectrum is level for 24 half waves of the run does the run itself say how far its median may be off.
    """
    found = _weights(values)
    return 0.0 if found is None else float(found[0][found[1].slow].sum())


def wander(values: FloatArray) -> float | None:
    """How far slow noise, if any, may have moved the median, the half width of 95 %; None: no run says how far.

    1/f noise wanders in longer runs hardly further than in shorter runs, so the spectrum of the run bounds it, here up
    to periods of 100 runs. Noise of one slow memory, a random walk, a period about as long as the run, and two levels
    are not bounded: they look like slow AR(1) noise.
    """
    found = _weights(values)
    if found is None:
        return 0.0
    weights, models = found
    if weights[models.slow & ~models.flicker].sum() > MAX_UNBOUNDED:
        return None
    slow = np.where(models.slow, weights, 0.0)  # for a run with slow noise, however likely it is
    variance = float(slow @ models.of_mean / max(slow.sum(), 1e-12))
    return WANDER_ERRORS * math.sqrt(variance) * float(np.std(_winsorised(values)))


def _weights(values: FloatArray) -> tuple[FloatArray, _Spectra] | None:
    """The probability of each model of the spectrum; None where nothing varies, or for too few values."""
    count = values.size
    standard = _standardised(values)
    if count < MIN_FOR_SPECTRUM or standard is None:
        return None
    waves = np.fft.rfft(np.concatenate([standard, standard[::-1]]))[1:count]
    waves = waves * np.exp(-0.5j * math.pi / count * np.arange(1, count))
    models = _spectra(count)
    power = np.add.reduceat(waves.real**2, models.edges)
    likelihood = models.prior - (count - 1) / 2 * np.log(models.inverse @ power)
    weights = np.exp(likelihood - likelihood.max())
    return weights / weights.sum(), models


class _Spectra(NamedTuple):
    """Models of a run's spectrum: independent noise, then slow noise beside it."""

    edges: npt.NDArray[np.intp]  # where bands of half waves begin
    inverse: FloatArray  # 1 / power, shape (models, bands)
    prior: FloatArray  # logarithms
    slow: npt.NDArray[np.bool_]
    flicker: npt.NDArray[np.bool_]  # 1/f
    of_mean: FloatArray  # the variance of the run's mean for slow noise, over that of its values


@lru_cache(maxsize=16)
def _spectra(count: int) -> _Spectra:
    waves = np.arange(1, count)
    edges = np.unique(np.geomspace(1, count - 1, BANDS).astype(np.intp)) - 1
    sizes = np.diff(np.append(edges, count - 1))
    shares = np.array(SLOW_SHARES)
    rows, corners, flicker, of_mean = [np.ones((1, edges.size))], [math.inf], [False], [np.zeros(1)]
    fine = np.geomspace(1e-4, 200, 4000)  # half waves; the mean of a run holds sinc^2 of each
    held = np.diff(fine) * np.sinc((fine[1:] + fine[:-1]) / 4) ** 2
    for corner in 0.5 * 2 ** (np.arange(3 * math.log2(count)) / 3):  # half waves of the run
        of_ar1 = 1 / (1 + (np.sin(math.pi / 2 / count * waves) / math.sin(math.pi / 2 / count * corner)) ** 2)
        mean_of_ar1 = 1 - (1 - math.exp(-math.pi * corner)) / (math.pi * corner)
        longest = corner if corner > 1 else MIN_HALF_WAVES
        mean_of_flicker = float(held @ (1 / np.maximum(fine[1:], longest))) + fine[0] / longest
        for shape, in_mean in ((of_ar1, mean_of_ar1), (1 / np.maximum(waves, corner), mean_of_flicker)):
            rows.append(1 + shares[:, None] * (np.add.reduceat(shape / shape.mean(), edges) / sizes - 1))
            of_mean.append(shares * in_mean / shape.mean() / count)
            corners += len(SLOW_SHARES) * [corner]
        flicker += len(SLOW_SHARES) * [False] + len(SLOW_SHARES) * [True]
    spectra = np.concatenate(rows)
    prior = np.append(INDEPENDENT, np.full(len(corners) - 1, (1 - INDEPENDENT) / (len(corners) - 1)))
    return _Spectra(
        edges, 1 / spectra, np.log(prior) - np.log(spectra) @ sizes / 2, np.array(corners) < SLOW_CORNER,
        np.array(flicker), np.concatenate(of_mean),
    )  # fmt: skip


def _standardised(values: FloatArray) -> FloatArray | None:
    """The values around 0 at unit variance, those far from the median pulled in; None where nothing varies."""
    standard = _winsorised(values)
    sigma = float(np.std(standard))
    if sigma <= NO_SPREAD:
        return None
    return np.asarray((standard - standard.mean()) / sigma, dtype=np.float64)


def _winsorised(values: FloatArray) -> FloatArray:
    middle, far = float(np.median(values)), CLIP * robust_sigma(values)
    return np.asarray(np.clip(values, middle - far, middle + far), dtype=np.float64)


def _scatter_of_means(sums: FloatArray, window: int) -> float:
    """The variance of means of so many in a row, over that of independent ones; 1 in the mean where they are."""
    means = sums[window:] - sums[:-window]
    return float(means @ means) / means.size / window / (1 - window / (sums.size - 1))


@lru_cache(maxsize=256)
def _inflations(window: int) -> tuple[FloatArray, FloatArray]:
    """AR(1) coefficients, and the value of `_scatter_of_means` for each."""
    coefficients = np.concatenate([np.linspace(0, 0.9, 91), 1 - np.geomspace(0.1, 1 - MAX_AUTOCORRELATION, 60)[1:]])
    return coefficients, np.array([_inflation(float(each), window, window) for each in coefficients])


def variance_inflation(rho: float, count: int) -> float:
    """How many times the variance of a mean grows when samples resemble their neighbours as in an AR(1) process."""
    return _inflation(rho, count, count)


def block_length(rho: float, count: int) -> int:
    """How many neighbours to draw together: the length with the least error for an AR(1) process.

    (6 n)^(1/3) (rho / (1 - rho^2))^(2/3): Carlstein 1986; Andrews 1991 gives the same order.
    """
    best = (6 * count) ** (1 / 3) * (rho / (1 - rho**2)) ** (2 / 3)
    return int(min(max(round(best), 1), max(count // MIN_BLOCKS, 1)))


def median_interval(
    log_values: FloatArray,
    residual: FloatArray | None = None,
    *,
    beside: int = 1,
    confidence: float = 0.95,
) -> MedianEstimate:
    """The median of `exp(log_values)` and its interval by the circular block bootstrap (Politis and Romano 1992).

    Blocks of neighbouring samples are drawn with replacement until there are as many as before; the middle 95 % of the
    medians of many such draws is the interval. Its ends are then moved away from the median, by what blocks of this
    length miss of an AR(1) process's variance, and by Student's t in place of the normal quantile, with as many degrees
    of freedom as the blocks have. They are cut at the fastest and the slowest sample.

    Args:
        log_values: logarithms of samples, in the order they were taken.
        residual: of the reference kernel (`series.Corrected`), drawn together with the samples; its median is 0.
        beside: samples that share one value of `residual`; blocks are at least so long.
        confidence: between 0 and 1.
    """
    count = log_values.size
    middle = float(np.median(log_values))
    rho = autocorrelation(log_values)
    block = block_length(rho, count)
    inflation = variance_inflation(rho, count)
    tail = (1 - confidence) / 2
    together = max(block, min(beside, max(count // MIN_BLOCKS, 1)))
    drawn = _medians(log_values - middle, residual, together)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    wider = _widening(rho, block, together, count, confidence)
    below, above = min(wider * float(low), 0.0), max(wider * float(high), 0.0)
    least, most = float(log_values.min()) - middle, float(log_values.max()) - middle
    return MedianEstimate(
        median_s=math.exp(middle),
        low_s=math.exp(middle + max(below, least)),
        high_s=math.exp(middle + min(above, most)),
        cut=below < least or above > most,
        confidence=confidence,
        count=int(count),
        effective_count=count / inflation,
        block=block,
    )


def student(probability: float, freedom: float) -> float:
    """Student's t quantile above the median, within 1 % from 1 degree of freedom up (Hill 1970, algorithm 396)."""
    both = 2 * (1 - probability)  # tails
    if freedom <= 1:
        return 1 / math.tan(both * math.pi / 2)
    if freedom <= 2:
        return math.sqrt(2 / (both * (2 - both)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * both) ** (2 / freedom)
    if y > 0.05 + a:
        z = NormalDist().inv_cdf(both / 2)
        y = z * z
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (z + 0.6)
        c += (((0.05 * d * z - 5) * z - 7) * z - 2) * z + b
        y = math.expm1(a * ((((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * z) ** 2)
    else:
        far = ((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3
        y = ((1 / far + 0.5 / (freedom + 4)) * y - 1) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)


def _medians(values: FloatArray, residual: FloatArray | None, block: int, resamples: int = RESAMPLES) -> FloatArray:
    generator = np.random.default_rng(SEED)
    count = values.size
    blocks = math.ceil(count / block)
    places = np.arange(block)
    found = []
    rows = max(1, _DRAWN_AT_ONCE // count)
    for start in range(0, resamples, rows):
        begins = generator.integers(0, count, size=(min(rows, resamples - start), blocks, 1))
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
    drawn = np.sort(np.concatenate([ranks, ranks])[taken], axis=1, kind="stable")  # radix sort
    ordered = values[order]
    width = taken.shape[1]
    return np.asarray((ordered[drawn[:, (width - 1) // 2]] + ordered[drawn[:, width // 2]]) / 2, dtype=np.float64)


def _widening(rho: float, block: int, together: int, count: int, confidence: float) -> float:
    """By how much the bootstrap's interval is too narrow. `together`: samples that are drawn together."""
    if count < 2:
        return 1.0
    truth = _inflation(rho, count, count)
    seen = _inflation(rho, block, block) - (block / count if block > 1 else 0.0) * truth
    missed = math.sqrt(max(truth / max(seen, 0.2 * truth), 1.0))
    quantile = 0.5 + confidence / 2
    if block > 1:
        freedom = max(count / block - LOST_FREEDOM, MIN_FREEDOM)
    elif confidence > TAILS_HOLD:
        freedom = count - 1
    else:
        missed *= SINGLE_DRAWS
        if together == 1:
            return missed
        freedom = count / together - 1  # the readings of the reference, which are few
    return missed * student(quantile, freedom) / NormalDist().inv_cdf(quantile)


@lru_cache(maxsize=4096)
def _inflation(rho: float, window: int, count: int) -> float:
    """1 + 2 sum over lags k < window of (1 - k / count) rho^k."""
    lags = np.arange(1, window)
    return float(1 + 2 * np.sum((1 - lags / count) * rho**lags)) if window > 1 else 1.0


SUMMARY_RESAMPLES = 4000  # the interval's ends then scatter by about 1 % of its width between seeds
SUMMARY_TAILS = (0.025, 0.975)  # between these quantiles is the 95 % interval


@dataclass(frozen=True, slots=True)
class SampleSummary:
    """Statistics of samples in seconds. `low_s` to `high_s` is the interval of the median."""

    count: int
    min_s: float
    median_s: float
    mean_s: float
    max_s: float
    std_s: float  # of the samples (n - 1); 0 for a single one
    low_s: float
    high_s: float
    p90_s: float = math.nan  # nine of ten samples took no longer; NaN of a result that was stored without
    p99_s: float = math.nan


def summarise(samples_s: Sequence[float], *, resamples: int = SUMMARY_RESAMPLES) -> SampleSummary:
    """Summarise samples in seconds, with the 95 % percentile-bootstrap interval of the median.

    The percentile bootstrap (Efron 1979): draw the same number of samples with replacement, take the median, again and
    again; the middle 95 % of those medians is the interval. It assumes nothing about the distribution, which for
    latencies is skewed.

    Raises:
        ValueError: there is no sample, or one is not a finite number.
    """
    values = np.asarray(samples_s, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("there is no sample to summarise")
    if not np.all(np.isfinite(values)):
        raise ValueError("a sample is not a finite number")
    low_s, high_s = np.quantile(_medians(values, None, 1, resamples), SUMMARY_TAILS)
    return SampleSummary(
        count=int(values.size),
        min_s=float(values.min()),
        median_s=float(np.median(values)),
        mean_s=float(values.mean()),
        max_s=float(values.max()),
        std_s=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        low_s=float(low_s),
        high_s=float(high_s),
        p90_s=float(np.quantile(values, 0.9)),
        p99_s=float(np.quantile(values, 0.99)),
    )
