"""Every repeat is as long as it was asked for, whatever the kernel's pace, and little time is thrown away."""

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.tuning import session
from farm.tuning.session import MARGIN, PROBE_MS

measured = partial(session.measured, most_s=math.inf)


class Kernel:
    """TVM's time evaluator over a kernel whose n-th run takes `pace(n)` seconds."""

    def __init__(self, pace):
        self.pace = pace
        self.runs = 0
        self.total_s = 0.0
        self.calls = []

    def run(self):
        seconds = self.pace(self.runs)
        self.runs += 1
        self.total_s += seconds
        return seconds

    def __call__(self, number, repeat, min_repeat_ms):
        self.calls.append((number, repeat, min_repeat_ms))
        self.run()
        answers = []
        for _ in range(repeat):
            for zeros in range(100):
                stretch_s = math.fsum(self.run() for _ in range(number))
                if stretch_s * 1e3 >= min_repeat_ms or (stretch_s == 0 and zeros == 99):
                    break
                if stretch_s:
                    number = int(max(min_repeat_ms / 1e3 / (stretch_s / number) + 1, number * 1.618))
            answers.append((number, stretch_s))
        self.answers = answers
        return tuple(stretch_s / number for number, stretch_s in answers)


class Bookkeeper(Kernel):
    """Adds up what went into repeats: every call that asks for no least time is a stretch of each of them."""

    def __init__(self, pace):
        super().__init__(pace)
        self.repeats = []
        self.slow = []

    def __call__(self, number, repeat, min_repeat_ms):
        found = super().__call__(number, repeat, min_repeat_ms)
        if min_repeat_ms == PROBE_MS:
            self.slow = [self.answers[0]]
        else:
            self.repeats = self.repeats or [(0, 0.0)] * repeat
            pairs = zip(self.repeats, self.answers, strict=True)
            self.repeats = [(runs + more, spent_s + more_s) for (runs, spent_s), (more, more_s) in pairs]
        return found


paces = st.lists(st.floats(1e-4, 0.2), min_size=1, max_size=40)


@given(number=st.integers(1, 20), repeat=st.integers(1, 4), least_ms=st.integers(PROBE_MS + 1, 200), pace=paces)
def test_the_runs_of_each_repeat_last_at_least_as_long_as_asked_and_the_answer_is_their_mean(
    number, repeat, least_ms, pace
):
    kernel = Bookkeeper(lambda n: pace[min(n, len(pace) - 1)])
    found = measured(number, repeat, least_ms, kernel)
    counted = [*kernel.slow, *kernel.repeats][-repeat:]
    assert len(found) == len(counted) == repeat
    for answer, (runs, spent_s) in zip(found, counted, strict=True):
        assert runs >= number
        assert spent_s * 1e3 >= least_ms * (1 - 1e-9)
        assert math.isclose(answer, spent_s / runs, rel_tol=1e-9)


def test_a_steady_kernel_is_run_in_one_stretch_after_a_short_probe():
    kernel = Kernel(lambda n: 1e-4)
    measured(3, 2, 100, kernel)
    assert kernel.calls == [(3, 1, PROBE_MS), (1050, 2, 0)]
    assert kernel.total_s <= 2 * MARGIN * 0.1 + 0.02


def test_a_repeat_that_falls_short_is_completed_and_not_thrown_away():
    kernel = Kernel(lambda n: 2e-4 if n < 60 else 1e-4)
    [seconds] = measured(3, 1, 100, kernel)
    assert [call[1:] for call in kernel.calls] == [(1, PROBE_MS), (1, 0), (1, 0)]
    assert kernel.total_s < 0.13
    assert math.isclose(seconds, 1e-4, rel_tol=0.02)


def test_a_slow_kernel_costs_no_run_more_than_with_tvm_alone():
    kernel, stock = Kernel(lambda n: 0.05), Kernel(lambda n: 0.05)
    assert measured(3, 1, 100, kernel) == stock(3, 1, 100)
    assert kernel.runs == stock.runs


def test_what_is_to_run_once_is_run_once():
    kernel = Kernel(lambda n: 1e-4)
    measured(1, 2, 0, kernel)
    assert kernel.calls == [(1, 2, 0)]


def test_a_clock_that_never_moves_is_left_to_tvm():
    kernel = Kernel(lambda n: 0.0)
    assert measured(2, 3, 100, kernel) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("launch_s", "repeat_ms"), [(0.0, 100), (2e-5, 100), (1e-4, 39.7), (1e-3, PROBE_MS)])
def test_launches_that_take_longer_than_the_kernel_shorten_its_repeats(launch_s, repeat_ms):
    """A kernel of 4 us ran 25,000 times a repeat: with 0.1 ms for a launch it took its candidate's 10 s."""
    kernel = Bookkeeper(lambda n: 4e-6)
    found = session.measured(3, 3, 100, kernel, most_s=3.0, clock=lambda: kernel.total_s + launch_s * kernel.runs)
    assert found == pytest.approx((4e-6, 4e-6, 4e-6))
    for _, spent_s in kernel.repeats:
        assert repeat_ms <= spent_s * 1e3 <= repeat_ms * 1.06


def test_a_slow_kernel_is_no_slow_launch():
    kernel = Kernel(lambda n: 0.5)
    assert session.measured(3, 3, 100, kernel, most_s=1.0, clock=lambda: kernel.total_s) == (0.5, 0.5, 0.5)
    assert [call[0] for call in kernel.calls] == [3, 3]
