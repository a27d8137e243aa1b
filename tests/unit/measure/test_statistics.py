"""Statistics of timed samples."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.measure.interval import summarise

samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50)


@given(samples)
def test_agrees_with_the_standard_library(values):
    summary = summarise(values, resamples=50)
    assert summary.count == len(values)
    assert (summary.min_s, summary.max_s) == (min(values), max(values))
    assert math.isclose(summary.median_s, statistics.median(values), rel_tol=1e-12)
    assert math.isclose(summary.mean_s, statistics.fmean(values), rel_tol=1e-9)
    if len(values) > 1:
        assert math.isclose(summary.std_s, statistics.stdev(values), rel_tol=1e-6, abs_tol=1e-9 * max(values))
    assert summary.min_s <= summary.low_s <= summary.high_s <= summary.max_s


def test_the_interval_is_reproducible_and_covers_the_true_median():
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        values = generator.exponential(1.0, size=30)
        first, second = summarise(values, resamples=400), summarise(values, resamples=400)
        assert first == second
        covered += first.low_s <= math.log(2) <= first.high_s
    assert 180 <= covered <= 199  # nominally 190; an exponential's true median is ln 2


def test_more_samples_narrow_the_interval():
    values = np.random.default_rng(1).normal(1.0, 0.1, size=1000)
    few, many = summarise(values[:20]), summarise(values)
    assert many.high_s - many.low_s < (few.high_s - few.low_s) / 3


def test_one_sample_has_no_spread():
    summary = summarise([0.25])
    assert (summary.std_s, summary.low_s, summary.high_s) == (0.0, 0.25, 0.25)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_what_is_no_sample_is_refused(values):
    with pytest.raises(ValueError, match="sample"):
        summarise(values)
