"""Which task gets the next round, and how large rounds are."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.tuning.progress import HOPELESS_ROUNDS, TaskProgress, gain_s, next_task, per_round

INF = math.inf


def task(weight, rounds=(), *, over=False, busy=False):
    return TaskProgress(name="task", weight=weight, rounds=list(rounds), over=over, busy=int(busy))


def test_each_task_gets_one_round_first_in_order():
    assert next_task([task(1), task(9)]) == 0
    assert next_task([task(1, (0.1,)), task(9)]) == 1
    assert next_task([task(1, busy=True), task(9)]) == 1


def test_the_task_that_can_save_most_goes_on():
    slow, fast = task(1, (0.010,)), task(1, (0.001,))
    assert next_task([fast, slow]) == 1
    assert next_task([task(20, (0.001,)), slow]) == 0
    assert next_task([slow, slow]) == 0


def test_a_task_that_still_gets_better_goes_before_one_that_does_not():
    still = task(1, (0.016, 0.012, 0.011, 0.010, 0.009))
    stuck = task(1, (0.009, 0.009, 0.009, 0.009, 0.009))
    assert next_task([stuck, still]) == 1


def test_a_task_of_which_nothing_runs_is_tried_some_rounds_and_then_left_to_the_end():
    hopeless, fine = task(1, (INF,) * HOPELESS_ROUNDS), task(1, (0.001,))
    assert next_task([task(1, (INF,)), fine]) == 0
    assert next_task([hopeless, fine]) == 1
    assert next_task([hopeless, task(1, (0.001,), over=True)]) == 0


def test_nothing_to_begin():
    assert next_task([]) is None
    assert next_task([task(1, over=True), task(1, over=True)]) is None
    assert next_task([task(1, busy=True), task(1, busy=True)]) is None
    assert next_task([task(1, over=True), task(1, busy=True)]) == 1


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12), st.floats(1, 50))
def test_what_is_hoped_for_is_never_negative_nor_more_than_there_is(rounds, weight):
    best = [min(rounds[: end + 1]) for end in range(len(rounds))]
    assert 0 <= gain_s(task(weight, tuple(best))) <= weight * best[0] * 1.000001


@pytest.mark.parametrize(
    ("trials", "tasks", "size"), [(16, 1, 8), (16, 13, 2), (64, 1, 16), (1000, 20, 12), (20_000, 20, 64), (1, 30, 1)]
)
def test_rounds_are_small_enough_for_all_tasks_and_large_enough_to_learn(trials, tasks, size):
    assert per_round(trials, tasks) == size
