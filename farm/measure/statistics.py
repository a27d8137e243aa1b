"""What timed samples say: location, spread, how sure the median is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000  # the interval's ends then scatter by about 1 % of its width between seeds
CONFIDENCE = 0.95
SEED = 20260801  # fixed: the same samples always give the same interval
_BLOCK_VALUES = 4_000_000  # resampled values held at once: 32 MB


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of samples in seconds. `low_s` to `high_s` is the interval of the median."""

    count: int
    min_s: float
    median_s: float
    mean_s: float
    max_s: float
    std_s: float  # of the samples (n - 1); 0 for a single one
    low_s: float
    high_s: float


def summarise(samples_s: Sequence[float], *, resamples: int = RESAMPLES, seed: int = SEED) -> Summary:
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
    low_s, high_s = _median_interval(values, resamples, seed)
    return Summary(
        count=int(values.size),
        min_s=float(values.min()),
        median_s=float(np.median(values)),
        mean_s=float(values.mean()),
        max_s=float(values.max()),
        std_s=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        low_s=low_s,
        high_s=high_s,
    )


def _median_interval(values: np.ndarray, resamples: int, seed: int) -> tuple[float, float]:
    generator = np.random.default_rng(seed)
    medians = np.empty(resamples)
    block = max(1, _BLOCK_VALUES // values.size)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(0, values.size, size=(rows, values.size))
        medians[start : start + rows] = np.median(values[drawn], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)
