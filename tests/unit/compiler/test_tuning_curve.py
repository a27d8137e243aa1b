"""How the estimate of a model's latency falls."""

from __future__ import annotations

import math
from dataclasses import replace

from farm.compiler.records import FAILED_S
from farm.compiler.tuning_curve import Estimate, replayed, thinned
from tests.unit.compiler.test_records import set_of


def test_the_estimate_is_the_sum_of_the_best_as_often_as_they_run() -> None:
    estimate = Estimate({"a": 2, "b": 1})
    estimate.add("a", 0.004, 1.0)
    assert estimate.seconds == math.inf
    estimate.add("b", 0.002, 2.0)
    assert estimate.curve == [(2, 2.0, 0.010)]
    assert not estimate.add("a", 0.005, 3.0)
    assert estimate.add("a", 0.003, 4.0)
    assert estimate.curve[-1] == (4, 4.0, 0.008)
    assert (estimate.trials, estimate.stale_trials) == (4, 0)


def test_a_failed_trial_counts_and_makes_nothing_better() -> None:
    estimate = Estimate({"a": 1})
    estimate.add("a", 0.001, 1.0)
    estimate.add("a", math.inf, 2.0)
    assert (estimate.trials, estimate.stale_trials, estimate.seconds) == (2, 1, 0.001)


def test_what_a_prior_knows_is_known_and_no_trial() -> None:
    estimate = Estimate({"a": 1})
    estimate.know("a", 0.002)
    estimate.know("other", 0.001)
    assert (estimate.seconds, estimate.trials, estimate.curve) == (0.002, 0, [])
    assert not estimate.add("a", 0.003, 1.0)


def test_records_tell_the_curve_again_without_tasks_that_never_ran() -> None:
    found = set_of(("1", 0, 0.004), ("2", 0, FAILED_S), ("1", 1, 0.002), ("1", 2, 0.003))
    origins = {key: replace(each, spent_s=float(i)) for i, (key, each) in enumerate(found.origins.items())}
    estimate = replayed(replace(found, origins=origins))
    assert estimate.curve == [(1, 0.0, 0.008), (3, 2.0, 0.004)]


def test_a_long_curve_is_thinned_between_its_ends() -> None:
    curve = [(i, float(i), 1.0 / i) for i in range(1, 2001)]
    thin = thinned(curve, 50)
    assert (len(thin), thin[0], thin[-1]) == (50, curve[0], curve[-1])
    assert thinned(curve[:5], 50) == curve[:5]
