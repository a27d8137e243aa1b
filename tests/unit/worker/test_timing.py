"""The measuring loop over phones that a test invents: what is sampled when, how often, and what comes of it."""

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.simulated_runs import Phone as StoppedPhone
from farm.common.errors import Code
from farm.kinds.outcomes import BenchOutcome
from farm.measure.comparison import ComparisonAnswer, compare
from farm.measure.conditions import PhoneCondition, Verdict
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import MeasuringRun, measured, plain
from farm.worker.timing import (
    ANY_RUNS,
    RunLimits,
    SamplingPlan,
    block_size,
    equal_runs,
    measure,
    runs_per_sample,
    time_pairs,
    timer_of,
)
from tests.support.errors import raises_code


class Phone:
    """A clock, and models that take what the test says; it notes what was run."""

    def __init__(self, scatter=0.002, seed=1):
        self.now_s = 100.0
        self.speed = lambda now_s: 1.0
        self.ran = []
        self._scatter = scatter
        self._random = np.random.default_rng(seed)

    def clock(self):
        return self.now_s

    def model(self, run_s, name="model"):
        def timed(number, repeat):
            self.ran.append((name, number, repeat))
            self._take(run_s)  # the untimed run
            return [self._take(run_s * number) / number for _ in range(repeat)]

        return timed

    def reference(self):
        self.ran.append(("reference", 1, 1))
        return self._take(0.001)

    def _take(self, seconds):
        took_s = seconds * self.speed(self.now_s) * math.exp(self._scatter * self._random.standard_normal())
        self.now_s += took_s
        return took_s


def test_samples_are_long_enough_and_each_block_has_its_reference():
    phone = Phone()
    taken, found = measure(phone.model(0.001), phone.reference, SamplingPlan(0.01, 30.0), clock=phone.clock)
    assert taken.number in (10, 11)  # of 1 ms, for 10 ms
    assert phone.ran[:5] == [("model", 1, 1)] * 5  # which say how many runs make a sample
    assert [name for name, _, _ in phone.ran[5:9]] == ["reference", "model", "reference", "model"]
    assert found.verdict is Verdict.TRUSTED
    assert found.count == len(taken.seconds) == len(taken.reference_s) == len(taken.start_s)
    assert abs(found.estimate.median_s / 0.001 - 1) < 0.01
    assert found.estimate.half_width <= 0.01
    assert taken.start_s == sorted(taken.start_s)


def test_a_first_run_that_was_interrupted_does_not_make_samples_short():
    phone = Phone()
    phone.speed = lambda now_s: 50.0 if now_s < 100.06 else 1.0
    taken, _ = measure(phone.model(0.001), phone.reference, SamplingPlan(0.01, 30.0), clock=phone.clock)
    assert taken.first_run_s > 0.04
    assert taken.number in (10, 11)


def test_a_slow_model_gives_several_samples_for_each_untimed_run():
    assert block_size(1) == 4
    assert block_size(2) == 2
    assert block_size(100) == 1
    phone = Phone()
    taken, _ = measure(phone.model(0.5), phone.reference, SamplingPlan(0.01, 60.0), clock=phone.clock)
    assert taken.number == 1
    assert phone.ran[1:3] == [("reference", 1, 1), ("model", 1, 4)]
    assert taken.start_s == sorted(taken.start_s)
    assert phone.now_s - 100.0 < 60.0 + 4 * 0.5 + 2


def test_time_ends_it_however_little_is_known():
    phone = Phone(scatter=0.3)
    taken, found = measure(phone.model(1.0), phone.reference, SamplingPlan(0.001, 10.0), clock=phone.clock)
    assert 1 <= found.count < 20
    assert found.verdict is not Verdict.TRUSTED
    assert taken.first_run_s > 0


def test_so_many_samples_as_asked_for_and_no_more():
    phone = Phone(scatter=0.3)
    plan = SamplingPlan(0.0005, 0.1, number=3, repeat=50)
    taken, found = measure(phone.model(0.01), phone.reference, plan, clock=phone.clock)
    assert (taken.number, found.count) == (3, 50)


def test_a_slower_clock_is_told_by_the_kernel_and_taken_out():
    phone = Phone()
    phone.speed = lambda now_s: 1.25  # a throttled phone: all takes a quarter longer
    _, found = measure(
        phone.model(0.002), phone.reference, SamplingPlan(0.01, 30.0), nominal_s=0.001, clock=phone.clock
    )
    assert abs(found.raw_median_s / 0.0025 - 1) < 0.01
    assert abs(found.estimate.median_s / 0.002 - 1) < 0.01


def test_a_phone_that_begins_to_throttle_is_not_trusted():
    phone = Phone()
    phone.speed = lambda now_s: 1.0 if now_s < 100.4 else 1.3
    _, found = measure(phone.model(0.002), phone.reference, SamplingPlan(0.001, 2.0), clock=phone.clock)
    assert found.verdict is not Verdict.TRUSTED


def test_without_a_kernel_nothing_is_trusted():
    phone = Phone()
    taken, found = measure(phone.model(0.001), None, SamplingPlan(0.01, 30.0), clock=phone.clock)
    assert all(math.isnan(value) for value in taken.reference_s)
    assert taken.to_wire()["reference_s"][0] is None
    assert [reason.code for reason in found.reasons] == ["no_reference"]


@pytest.mark.parametrize(("run_s", "runs"), [(0.02, 1), (0.01, 1), (0.003, 4), (1e-12, 1_000_000)])
def test_runs_of_a_sample(run_s, runs):
    assert runs_per_sample(run_s, 0.01) == runs


@pytest.mark.parametrize(
    ("factor", "answer"),
    [(1.1, ComparisonAnswer.SLOWER), (0.9, ComparisonAnswer.FASTER), (1.0, ComparisonAnswer.SAME)],
    ids=str,
)
def test_two_builds_take_turns_however_the_phone_drifts(factor, answer):
    phone = Phone()
    phone.speed = lambda now_s: 1 + 0.05 * (now_s - 100)  # 5 % slower each second
    pairs = time_pairs(
        phone.model(0.004, "a"), phone.model(0.004 * factor, "b"), measure_s=20.0, clock=phone.clock
    )  # fmt: skip
    assert pairs.comparison.answer is answer
    assert abs(pairs.comparison.ratio / factor - 1) < 0.01
    assert len(pairs.a_s) == len(pairs.b_s) == pairs.comparison.pairs
    timed = "".join(name for name, _, _ in phone.ran[10:])  # after first runs of each
    rounds = [timed[place : place + 4] for place in range(0, len(timed), 4)]
    assert set(rounds) == {"abba", "baab"}  # by chance: no order that something else could be in step with


def test_dear_changes_are_made_in_one_order():
    phone = Phone()
    time_pairs(phone.model(0.004, "a"), phone.model(0.004, "b"), measure_s=20.0, shuffled=False, clock=phone.clock)
    assert [name for name, _, _ in phone.ran[2:10]] == ["a", "b", "b", "a"] * 2


CALL_OF_20 = RunLimits(first=20)


@pytest.mark.parametrize(
    ("first_runs", "limits", "runs"),
    [
        ((0.001, 0.00095), (ANY_RUNS, ANY_RUNS), (10, 10)),  # about as fast: as many runs
        ((0.003, 0.001), (ANY_RUNS, ANY_RUNS), (4, 12)),
        ((0.001, 0.005), (ANY_RUNS, ANY_RUNS), (10, 2)),
        ((0.010, 0.015), (ANY_RUNS, ANY_RUNS), (3, 2)),
        ((0.0002, 0.0002), (CALL_OF_20, RunLimits(first=500)), (500, 500)),
        ((0.0002, 0.005), (ANY_RUNS, CALL_OF_20), (500, 20)),
        ((0.0002, 0.005), (RunLimits(20, 20, 20), ANY_RUNS), (20, 1)),  # its command does not take {runs}
        ((0.0002, 0.005), (ANY_RUNS, RunLimits(20, 20, 20)), (500, 20)),
        ((0.0002, 0.300), (RunLimits(20, 1, 500), ANY_RUNS), (500, 1)),  # it prints each run
    ],
)
def test_samples_of_two_builds_last_equally_long(first_runs, limits, runs):
    assert equal_runs(*first_runs, limits) == runs
    assert equal_runs(*first_runs[::-1], limits[::-1]) == runs[::-1]


@pytest.mark.parametrize(
    ("limits", "answer", "doubts"),
    [
        ((CALL_OF_20, RunLimits(500)), "same", []),
        ((RunLimits(20, 20, 20), RunLimits(500)), "same", []),
        ((RunLimits(20, 20, 20), RunLimits(500, 500, 500)), "cannot tell", ["unequal_samples"]),
    ],
)
def test_equal_programs_are_not_told_apart_by_the_runs_of_a_call(limits, answer, doubts):
    phone = StoppedPhone(np.random.default_rng(20261130), period_s=0.02, stop_s=0.0005)
    sides = [
        lambda number, repeat, each=each: phone.model(0.0002)(each.within(number), repeat) for each in limits
    ]  # a program that takes no {runs} has its own
    pairs = time_pairs(*sides, measure_s=60.0, limits=limits, clock=phone.clock)
    assert pairs.comparison.answer == answer
    assert [each.code for each in pairs.doubts] == doubts
    if doubts:
        assert compare(pairs.a_s, pairs.b_s).answer is ComparisonAnswer.SLOWER  # what the lengths alone do


def test_a_first_run_that_was_interrupted_gives_neither_of_two_builds_shorter_samples():
    phone = Phone()
    phone.speed = lambda now_s: 50.0 if now_s < 100.06 else 1.0
    pairs = time_pairs(phone.model(0.001, "a"), phone.model(0.001, "b"), measure_s=5.0, clock=phone.clock)
    assert pairs.number_a == pairs.number_b >= 10


@pytest.mark.parametrize("hit", range(4))
def test_what_interrupts_each_fourth_sample_makes_neither_of_equal_builds_slower(hit):
    phone = Phone()
    model = phone.model(0.004)

    def timed(number, repeat):
        longer = 1.2 if next(taken) % 4 == hit else 1.0
        return [each * longer for each in model(number, repeat)]

    for shuffled, told in ((True, False), (False, True)):
        taken = iter(range(-10 if shuffled else -2, 100_000))  # first runs of each come before
        answer = time_pairs(timed, timed, measure_s=20.0, shuffled=shuffled, clock=phone.clock).comparison.answer
        assert (answer in (ComparisonAnswer.FASTER, ComparisonAnswer.SLOWER)) is told


@pytest.mark.parametrize("told", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_the_phones_fault(told):
    machine = SimpleNamespace(time_evaluator=lambda *_, **__: lambda _function: SimpleNamespace(results=[0.001, told]))
    with raises_code(Code.PHONE_CLOCK_WRONG, match="the phone's clock says that the model took"):
        timer_of(machine, None)(1, 2)
    phone = Phone()
    with raises_code(Code.PHONE_CLOCK_WRONG, match="the reference kernel took"):
        measure(phone.model(0.001), lambda: told, SamplingPlan(0.01, 1.0), clock=phone.clock)


def test_a_phones_clock_that_jumps_ahead_of_the_hosts_leaves_an_outlier():
    phone = Phone()
    model, jumps = phone.model(0.001), iter([0.0] * 20 + [1000.0])

    def timed(number, repeat):
        return [each + next(jumps, 0.0) for each in model(number, repeat)]

    taken, found = measure(timed, phone.reference, SamplingPlan(0.01, 30.0), clock=phone.clock)
    assert "held_up" in {reason.code for reason in found.reasons}
    assert taken.start_s == sorted(taken.start_s)


def test_two_builds_have_an_end_when_nothing_can_be_told():
    phone = Phone(scatter=0.5)
    pairs = time_pairs(phone.model(0.02, "a"), phone.model(0.0201, "b"), measure_s=3.0, clock=phone.clock)
    assert pairs.comparison.answer is ComparisonAnswer.CANNOT_TELL
    assert pairs.comparison.needed_pairs > len(pairs.a_s)
    assert phone.now_s - 100.0 < 5.0


def tried(scatter, seed=1):
    phone = Phone(scatter, seed)
    taken, found = measure(phone.model(0.001), phone.reference, SamplingPlan(0.01, 0.5), clock=phone.clock)
    return MeasuringRun(taken, found, "2026-11-20T12:00:00+00:00", 0.5)


def test_a_result_shows_every_try_and_which_one_it_reports():
    first, second = tried(0.2), tried(0.002)
    told = measured([first, second], second, "k", {}, "f" * 64)
    certificate = told["certificate"]
    assert told["verdict"] == certificate["verdict"] == second.assessment.verdict
    assert [each["reported"] for each in certificate["tries"]] == [False, True]
    assert certificate["tries"][0]["reasons"]
    assert certificate["raw"] == "f" * 64
    assert certificate["reference"]["kernel"] == "k"
    assert abs(certificate["reference"]["nominal_s"] / 0.001 - 1) < 0.01
    assert told["estimate"]["low_ms"] <= told["estimate"]["median_ms"] <= told["estimate"]["high_ms"]
    assert told["latency"]["count"] == second.assessment.used
    assert len(told["samples_s"]) == second.assessment.count


def test_one_sample_has_no_interval():
    phone = Phone(0.01)
    taken, found = measure(phone.model(0.001), phone.reference, SamplingPlan(0.01, 1, repeat=1), clock=phone.clock)
    only = MeasuringRun(taken, found, "2026-11-20T12:00:00+00:00", 0.5)
    told = measured([only], only, "k", {}, "f" * 64)
    assert (told["estimate"]["count"], told["verdict"]) == (1, "rejected")
    for name in ("low_ms", "high_ms"):
        assert told["estimate"][name] is told["latency"][name] is None
    for estimate in (told["certificate"]["estimate"], told["certificate"]["tries"][0]["estimate"]):
        assert (estimate["low_s"], estimate["high_s"], estimate["half_width"]) == (None, None, None)
    assert told["estimate"]["median_ms"] > 0
    outcome = BenchOutcome.details({}, told)
    assert math.isnan(outcome["latency"].low_s)


@pytest.mark.parametrize(("kernel", "of"), [("a", "history"), ("c", "this run")])
def test_the_nominal_speed_is_that_of_the_same_kernel(kernel, of):
    only = tried(0.002)
    told = measured([only], only, kernel, {"a": 0.002, "b": 0.003}, "f" * 64)
    assert told["certificate"]["reference"]["nominal_of"] == of


def test_what_is_no_number_is_none():
    assert plain({"a": [math.nan, 1.0], "b": (math.inf, "x")}) == {"a": [None, 1.0], "b": [None, "x"]}


def test_what_the_daemon_does_not_know_is_none():
    moment = DaemonChannel.conditions(SimpleNamespace(call=lambda _: {"temperature_c": 31.0, "more": 5}))
    assert (moment.temperature_c, moment.throttle_status) == (31.0, None)


def test_whoever_looks_sees_each_standing_but_the_last():
    phone = Phone()
    seen = []

    def look(taken, found):
        seen.append((len(taken.seconds), found.count))

    taken, _ = measure(
        phone.model(0.002), phone.reference, SamplingPlan(0.0001, 5.0), clock=phone.clock, on_assessed=look
    )
    assert len(seen) >= 2
    assert all(count == assessed < len(taken.seconds) for count, assessed in seen)
    assert seen == sorted(set(seen))


def test_the_phone_is_looked_at_between_blocks_and_no_sample_has_a_look_in_it():
    phone = Phone(scatter=0.0)

    def look():
        phone.now_s += 0.2
        return PhoneCondition(temperature_c=30.0 + phone.now_s / 100)

    plan = SamplingPlan(0.0001, 20.0, repeat=1000)
    taken, _ = measure(phone.model(0.002), phone.reference, plan, clock=phone.clock, look=look)
    assert set(np.round(taken.seconds, 6)) == {0.002}
    times_s = [at_s for at_s, _ in taken.looks]
    assert len(times_s) >= 2
    assert all(later - earlier == pytest.approx(5.2, abs=0.2) for earlier, later in pairwise([-0.2, *times_s]))
    assert taken.to_wire()["looks"][0] == {
        "at_s": round(times_s[0], 3),
        "temperature_c": taken.looks[0][1].temperature_c,
    }
