import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.measure.regression import Point, changes
from tests.unit.measure.shapes import TRUE_S, ar, noise


def history(factors, scatter=0.003, epoch="one"):
    levels = TRUE_S * np.array(factors) * np.exp(scatter * noise(len(factors)))
    return [Point(float(at), each, 0.995 * each, 1.005 * each, epoch) for at, each in enumerate(levels.tolist())]


def test_a_regression_is_found_where_it_began():
    (found,) = changes(history([1.0] * 8 + [1.1] * 4))
    assert (found.index, found.results_after, found.slower) == (8, 4, True)
    assert found.ratio == pytest.approx(1.1, abs=0.01)


def test_an_improvement_is_no_regression():
    (found,) = changes(history([1.0] * 8 + [0.9] * 4))
    assert not found.slower


@pytest.mark.parametrize("at", range(10))
def test_one_outlier_is_no_change_wherever_it_is(at):
    factors = [1.0] * 10
    factors[at] = 1.5
    assert changes(history(factors)) == ()


def test_each_of_two_changes_is_found():
    assert [change.index for change in changes(history([1.0] * 8 + [1.1] * 8 + [0.95] * 8))] == [8, 16]


def test_results_that_go_back_and_forth_between_two_levels_did_not_change():
    slow = np.random.default_rng(4).random((20, 40)) < 0.3
    assert all(changes(history(np.where(each, 1.05, 1.0))) == () for each in slow)


@pytest.mark.parametrize("count", [6, 12, 20])
def test_results_that_wander_did_not_change(count):
    """AR(1) 0.8; 1.5 % of such histories once had a change."""
    found = [changes(history(np.exp(0.02 * ar(count, 0.8, seed)), 0.0)) for seed in range(150)]
    assert sum(map(bool, found)) <= 1


def test_outliers_at_an_end_are_no_level():
    fresh = np.random.default_rng(6)
    slow = 1 + fresh.uniform(0.05, 0.5, (150, 12)) * (fresh.random((150, 12)) < 0.1)
    assert sum(bool(changes(history(each))) for each in slow) <= 1
    assert changes(history([1.0] * 6 + [1.3, 1.0, 1.0, 1.29, 1.31, 1.0])) == ()


def test_a_change_is_found_beside_two_levels():
    factors = np.where(np.random.default_rng(4).random(40) < 0.3, 1.05, 1.0) * np.repeat([1.0, 1.3], 20)
    assert [change.index for change in changes(history(factors))] == [20]


@pytest.mark.parametrize("back", [2, 3, 6])
def test_a_regression_that_was_mended_is_two_changes(back):
    assert [change.index for change in changes(history([1.0] * 8 + [1.1] * 8 + [1.0] * back))] == [8, 16]


def test_epochs_are_not_mixed_and_results_that_are_not_trusted_say_nothing():
    old, new = history([1.0] * 8), [replace(each, epoch="two", at_s=each.at_s + 8) for each in history([1.2] * 8)]
    assert changes(old + new) == ()
    slow = [replace(each, trusted=False) if each.at_s >= 5 else each for each in history([1.0] * 5 + [1.2] * 5)]
    assert changes(slow) == ()


def test_the_order_of_results_is_that_of_time():
    points = history([1.0] * 8 + [1.1] * 4)
    (found,) = changes(points[::-1])
    assert found.index == 3
    assert found.at_s == 8


def test_small_changes_are_none():
    assert changes(history([1.0] * 8 + [1.01] * 8, 0.0005)) == ()


def test_wide_intervals_are_not_sure():
    points = [
        replace(each, low_s=0.8 * each.median_s, high_s=1.2 * each.median_s) for each in history([1] * 5 + [1.1] * 3)
    ]
    assert changes(points) == ()


@given(st.lists(st.floats(1e-9, 1e6), max_size=20))
@settings(max_examples=50, deadline=None)
def test_any_history_is_looked_at(medians):
    points = [Point(float(at), each, each, each, "one") for at, each in enumerate(medians)]
    for change in changes(points):
        assert change.results_after >= 2
        assert points[change.index].at_s == change.at_s


@pytest.mark.parametrize("bad", [{"median_s": math.nan}, {"low_s": 0.0}, {"at_s": math.inf}])
def test_what_is_no_result_is_refused(bad):
    with pytest.raises(ValueError):
        changes([replace(history([1.0])[0], **bad)])
