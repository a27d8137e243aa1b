import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from farm.measure.level_changes import KINDS, _at_least, _Fit, _whiteners
from farm.measure.regression import Point, changes
from tests.unit.measure.shapes import TRUE_S, ar, noise


def history(factors, scatter=0.003, epoch="one"):
    levels = TRUE_S * np.array(factors) * np.exp(scatter * noise(len(factors)))
    return [Point(float(at), each, 0.995 * each, 1.005 * each, epoch) for at, each in enumerate(levels.tolist())]


def test_a_regression_is_found_where_it_began_and_an_improvement_is_none():
    (found,) = changes(history([1.0] * 8 + [1.1] * 4))
    assert (found.index, found.results_after, found.rose) == (8, 4, True)
    assert found.ratio == pytest.approx(1.1, abs=0.01)
    (found,) = changes(history([1.0] * 8 + [0.9] * 4))
    assert not found.rose


TWO_LEVELS = np.where(np.random.default_rng(4).random(40) < 0.3, 1.05, 1.0)


@pytest.mark.parametrize(
    ("factors", "scatter", "indices"),
    [
        *(([1.0] * at + [1.5] + [1.0] * (9 - at), 0.003, []) for at in range(10)),  # one outlier, wherever it is
        ([1.0] * 6 + [1.3, 1.0, 1.0, 1.29, 1.31, 1.0], 0.003, []),  # outliers at an end
        ([1.0] * 29 + [1.1], 0.006, []),
        ([1.0] * 27 + [1.05] * 3, 0.006, [27]),  # three new results are enough
        ([1.0] * 8 + [1.01] * 8, 0.0005, []),  # too small
        ([1.0] * 8 + [1.1] * 8 + [0.95] * 8, 0.003, [8, 16]),
        (TWO_LEVELS * np.repeat([1.0, 1.3], 20), 0.003, [20]),
        (np.repeat([1.0, 1.05, 1.0, 1.2], 600), 0.006, [600, 1200, 1800]),
    ],
)
def test_each_change_is_found_and_outliers_are_none(factors, scatter, indices):
    assert [change.index for change in changes(history(factors, scatter))] == indices


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


@pytest.mark.parametrize("back", [3, 6])
def test_a_regression_that_was_fixed_is_a_change_until_the_next(back):
    found = changes(history([1.0] * 8 + [1.1] * 8 + [1.0] * back))
    assert [(change.index, change.until) for change in found] == [(8, 16), (16, None)]


@pytest.mark.parametrize("length", [4, 8, 24])
@pytest.mark.parametrize("effect", [1.05, 1.1, 2.0])
def test_a_short_excursion_is_listed_from_its_first_to_its_last_result(effect, length):
    for start in (12, 33):
        found = changes(history([1.0] * start + [effect] * length + [1.0] * (80 - start - length), 0.006))
        assert [(change.index, change.until) for change in found] == [(start, start + length), (start + length, None)]


def planted(kind, seed, count=80, sigma=0.006):
    """Noise of a history, log."""
    fresh = np.random.default_rng(seed)
    white, when = sigma * fresh.normal(size=count), np.arange(count)
    return {
        "AR": sigma * ar(count, 0.8, seed),
        "heat": white + 0.03 * np.sin(2 * np.pi * (when / fresh.uniform(40, 160) + fresh.random())),
        "builds": white + 0.012 * (fresh.random(count) < 0.5),
        "weekly": white + 0.01 * np.sin(2 * np.pi * (when / 7 + fresh.random())),
        "outliers": white + np.abs(fresh.normal(size=count)) * 0.15 * (fresh.random(count) < 0.1),
    }[kind]


@pytest.mark.parametrize("kind", ["AR", "heat", "builds", "weekly", "outliers"])
def test_a_step_is_found_under_noise_that_alone_is_no_change(kind):
    false = seen = 0
    for seed in range(25):
        drawn = planted(kind, seed)
        false += bool(changes(history(np.exp(drawn), 0.0)))
        step = changes(history(np.exp(drawn + np.log(1.06) * (np.arange(80) >= 48)), 0.0))
        seen += any(abs(change.index - 48) <= 2 for change in step)
    assert (false <= 1, seen >= 22) == (True, True)


def test_results_that_say_little_weigh_little():
    """A row of wide intervals that are off is no level; the same results with narrow ones are."""
    factors = [1.0] * 12 + [1.08] * 4 + [1.0] * 12
    points = history(factors, 0.002)
    wide = [
        replace(each, low=0.8 * each.value, high=1.2 * each.value) if 12 <= at < 16 else each
        for at, each in enumerate(points)
    ]
    assert [change.index for change in changes(points)] == [12, 16]
    assert changes(wide) == ()


def test_the_students_deviate_is_that_of_the_normal_distribution():
    """Against scipy: z at which a normal tail has Student's probability."""
    fit = _Fit(np.array([0.0, 0.01, 0.0, 0.03, 0.05, 0.04, 0.05, 0.06]), np.ones(8), [3], 0, 1e-9)
    rss = fit.rss[:, None] * np.exp(np.linspace(0.1, 4, 9))
    t = np.sqrt(fit.freedom * np.expm1(np.linspace(0.1, 4, 9)))
    expected = -special.ndtri(special.stdtr(fit.freedom, -t))
    assert fit._better_than(rss) == pytest.approx(expected, rel=0.01)


def test_noise_is_white_after_its_whitener():
    whiteners, _, logdets = _whiteners(20)
    lag = np.abs(np.subtract.outer(np.arange(20), np.arange(20)))
    for (phi, white), whitener, logdet in zip(KINDS, whiteners, logdets, strict=True):
        memory = np.cos(2 * np.pi * lag / 7) if phi == 7 else phi**lag
        covariance = white * np.eye(20) + (1 - white) * memory
        assert whitener @ covariance @ whitener.T == pytest.approx(np.eye(20), abs=1e-6)
        assert logdet[-1] == pytest.approx(np.linalg.slogdet(covariance)[1], abs=1e-6)


@pytest.mark.parametrize(("count", "of", "probability"), [(0, 5, 0.3), (3, 4, 0.01), (40, 2000, 0.02), (9, 9, 0.5)])
def test_the_binomial_tail_is_that_of_scipy(count, of, probability):
    assert _at_least(count, of, probability) == pytest.approx(float(stats.binom.sf(count - 1, of, probability)))


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


def test_wide_intervals_are_not_sure():
    points = [replace(each, low=0.8 * each.value, high=1.2 * each.value) for each in history([1] * 5 + [1.1] * 3)]
    assert changes(points) == ()


@given(st.lists(st.floats(1e-9, 1e6), max_size=20))
@settings(max_examples=50, deadline=None)
def test_any_history_is_looked_at(medians):
    points = [Point(float(at), each, each, each, "one") for at, each in enumerate(medians)]
    for change in changes(points):
        assert change.results_after >= 2
        assert points[change.index].at_s == change.at_s


@pytest.mark.parametrize("bad", [{"value": math.nan}, {"low": 0.0}, {"at_s": math.inf}])
def test_what_is_no_result_is_refused(bad):
    with pytest.raises(ValueError):
        changes([replace(history([1.0])[0], **bad)])
