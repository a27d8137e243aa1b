"""How the estimate of a model's latency falls."""

import math
from dataclasses import replace

from farm.compiler.records import FAILED_S
from farm.tuning.progress import LatencyEstimate, replayed, thinned
from tests.unit.compiler.test_records import set_of


def test_the_estimate_is_the_sum_of_the_best_as_often_as_they_run():
    estimate = LatencyEstimate({"a": 2, "b": 1})
    assert estimate.seconds == math.inf
    estimate.add("a", 0.004, 1.0)
    assert estimate.curve == [(1, 1.0, 0.008)]
    estimate.add("b", 0.002, 2.0)
    assert (estimate.curve, estimate.raised) == ([(1, 1.0, 0.010)], 1)
    assert not estimate.add("a", 0.005, 3.0)
    assert estimate.add("a", 0.003, 4.0)
    assert estimate.curve[-1] == (4, 4.0, 0.008)
    assert (estimate.trials, estimate.stale_trials) == (4, 0)


def test_what_a_prior_knows_is_known_and_no_trial():
    estimate = LatencyEstimate({"a": 1})
    estimate.know("a", 0.002)
    estimate.know("other", 0.001)
    assert (estimate.seconds, estimate.trials, estimate.curve) == (0.002, 0, [])
    assert not estimate.add("a", 0.003, 1.0)
    estimate.add("a", math.inf, 2.0)  # a failed trial counts and makes nothing better
    assert (estimate.trials, estimate.stale_trials, estimate.seconds) == (2, 2, 0.002)


def test_a_task_of_which_nothing_ever_runs_hides_nothing_and_a_replay_tells_the_same():
    rows = (("1", 0, 0.004), ("2", 0, FAILED_S), ("1", 1, 0.002), ("3", 0, 0.001), ("2", 1, FAILED_S), ("3", 1, 0.0005))
    found = set_of(*rows)
    live = LatencyEstimate({name: each.weight for name, each in found.tasks.items()})
    for record in found.records:
        live.add(record.workload, record.seconds, 0.0)
    assert live.seconds == 2 * (0.002 + 0.0005)
    assert [point[0] for point in live.curve] == [1, 3, 6]
    assert [point[2] for point in live.curve] == sorted((point[2] for point in live.curve), reverse=True)
    assert replayed(found) == live


def test_records_tell_the_curve_again_without_tasks_that_never_ran():
    found = set_of(("1", 0, 0.004), ("2", 0, FAILED_S), ("1", 1, 0.002), ("1", 2, 0.003))
    origins = {key: replace(each, spent_s=float(i)) for i, (key, each) in enumerate(found.origins.items())}
    estimate = replayed(replace(found, origins=origins))
    assert estimate.curve == [(1, 0.0, 0.008), (3, 2.0, 0.004)]


def test_a_task_counts_with_tvms_own_schedule_until_a_candidate_is_faster():
    found = set_of(("1", 0, 0.004), ("2", 0, FAILED_S), ("2", 1, 0.009), ("1", 1, 0.001))
    own = {name: replace(each, default_s=0.003) for name, each in found.tasks.items()}
    estimate = replayed(replace(found, tasks=own))
    assert estimate.curve == [(1, 0.0, 0.012), (4, 0.0, 0.008)]
    assert replayed(replace(found, tasks=own), prior=set_of(("2", 2, 0.008)).records).seconds == 0.008
    elsewhere = {name: replace(each, default_for="another target") for name, each in own.items()}
    assert replayed(replace(found, tasks=elsewhere)).seconds == 2 * (0.001 + 0.009)


def test_a_long_curve_is_thinned_between_its_ends():
    curve = [(i, float(i), 1.0 / i) for i in range(1, 2001)]
    thin = thinned(curve, 50)
    assert (len(thin), thin[0], thin[-1]) == (50, curve[0], curve[-1])
    assert thinned(curve[:5], 50) == curve[:5]
