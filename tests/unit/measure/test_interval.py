import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.measure.interval import (
    _row_medians,
    autocorrelation,
    block_length,
    median_interval,
    student,
    summarise,
    variance_inflation,
)
from farm.measure.series import correct, detrended, interpolated_reference, running_median, series
from tests.unit.measure.shapes import NOMINAL_S, TRUE_S, a_run, ar, noise


@pytest.fixture(scope="module")
def stats():
    """Of scipy: at the top of the module every process that only collects tests would import it, for over a second."""
    from scipy import stats

    return stats


@pytest.mark.parametrize("freedom", [4, 5, 8, 20, 100])
@pytest.mark.parametrize("probability", [0.975, 0.995])
def test_students_quantile_is_scipys(stats, freedom, probability):
    assert student(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=0.015)


def test_the_interval_of_independent_samples_is_that_of_order_statistics(stats):
    values = np.sort(noise(101))
    found = median_interval(noise(101))
    low, high = stats.binom.ppf([0.025, 0.975], 101, 0.5).astype(int)
    exact = values[high] - values[low - 1]
    assert math.log(found.high_s / found.low_s) == pytest.approx(exact, rel=0.25)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7])
def test_autocorrelation_is_found(rho):
    found = [autocorrelation(ar(200, rho, seed)) for seed in range(40)]
    assert np.mean(found) == pytest.approx(rho, abs=0.1)


def test_a_wild_value_does_not_hide_autocorrelation():
    calm = ar(200, 0.7)
    wild = calm.copy()
    wild[100] = 50
    assert autocorrelation(wild) == pytest.approx(autocorrelation(calm), abs=0.1)


def test_variance_inflation_tends_to_what_is_known_of_ar1():
    assert variance_inflation(0.0, 100) == 1
    assert variance_inflation(0.7, 100_000) == pytest.approx(1.7 / 0.3, rel=0.001)


@given(st.floats(0, 0.95), st.integers(1, 5000))
def test_blocks_fit(rho, count):
    assert 1 <= block_length(rho, count) <= max(1, count // 5)


@pytest.mark.parametrize("count", [4, 5, 40, 41])
@pytest.mark.parametrize("block", [1, 3])
def test_medians_of_draws_are_numpys(count, block):
    values = np.round(noise(count), 1)
    taken = np.random.default_rng(1).integers(0, count, (50, count)) + np.arange(count) % block
    assert _row_medians(values, taken) == pytest.approx(np.median(values[taken % count], axis=1), abs=1e-12)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=40))
@settings(deadline=None)
def test_running_medians_are_those_of_each_window(values):
    array = np.array(values)
    whole = array.size <= 9
    windows = [array if whole else array[max(0, place - 4) : place + 5] for place in range(array.size)]
    assert running_median(array) == pytest.approx(np.array([np.median(each) for each in windows]))


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=50))
@settings(max_examples=50, deadline=None)
def test_more_confidence_is_no_narrower(values):
    array = np.array(values)
    ninety, sure = (median_interval(array, confidence=each) for each in (0.95, 0.99))
    assert sure.low_s <= ninety.low_s <= ninety.median_s <= ninety.high_s <= sure.high_s


def test_noise_of_the_reference_is_in_the_interval():
    run = a_run(0.01 * noise(80))
    corrected = correct(run, NOMINAL_S)
    without = median_interval(corrected.log_s)
    with_it = median_interval(corrected.log_s, corrected.residual)
    assert with_it.half_width > without.half_width
    assert with_it.low_s < TRUE_S < with_it.high_s


def test_a_wild_reference_time_moves_no_sample_much():
    beside = np.full(40, NOMINAL_S)
    beside[20] *= 5
    corrected = correct(series([TRUE_S] * 40, None, beside), NOMINAL_S)
    assert np.exp(corrected.log_s) == pytest.approx(TRUE_S, rel=1e-3)


def test_missing_reference_times_are_between_their_neighbours():
    beside = [1.0, math.nan, 3.0, math.nan]
    assert interpolated_reference(series([1.0] * 4, None, beside)).tolist() == [1.0, 2.0, 3.0, 3.0]


def test_with_too_few_reference_times_nothing_is_corrected():
    beside = [NOMINAL_S] + [math.nan] * 9
    assert correct(series([TRUE_S] * 10, None, beside), NOMINAL_S).nominal_s is None


@given(st.floats(-1, 1), st.integers(2, 60))
def test_a_straight_line_detrends_to_nothing(slope, count):
    assert detrended(slope * np.arange(count)) == pytest.approx(0, abs=1e-9)


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


def test_more_samples_narrow_the_interval_and_one_has_no_spread():
    values = np.random.default_rng(1).normal(1.0, 0.1, size=1000)
    few, many, one = summarise(values[:20]), summarise(values), summarise([0.25])
    assert many.high_s - many.low_s < (few.high_s - few.low_s) / 3
    assert (one.std_s, one.low_s, one.high_s) == (0.0, 0.25, 0.25)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_what_is_no_sample_is_refused(values):
    with pytest.raises(ValueError, match="sample"):
        summarise(values)
