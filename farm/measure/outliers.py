"""Outliers: counted and told, never dropped. The median does not need them gone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farm.measure.drift import spread
from farm.measure.series import FloatArray

FAR = 5.0  # standard deviations from the median; one of two million normal samples
MOST_LOG = 700.0  # exp of more is no number
LEAST_SIGMA = 5e-4  # relative: what is closer than 0.25 % is no outlier, however quiet the others are


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
    far = np.abs(away) > FAR * max(spread(log_values), LEAST_SIGMA)
    places = np.flatnonzero(far)
    if not places.size:
        return Outliers(0, 0.0, (), 0, 0.0, 0.0)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    worst = float(away[places[np.argmax(np.abs(away[places]))]])
    times = np.exp(np.minimum(away, MOST_LOG))
    return Outliers(
        count=int(places.size),
        share=places.size / log_values.size,
        indices=tuple(int(place) + first for place in places),
        longest_run=max(len(run) for run in runs),
        worst=float(np.expm1(min(worst, MOST_LOG))),
        lost=float(np.maximum(times[places] - 1, 0).sum() / times.sum()),
    )
