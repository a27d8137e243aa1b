"""Whether programs of other runtimes are measured as builds of TVM are: simulated calls whose truth is known.

A call takes 60 ms to start and runs 20 times. Runs scatter by 2 %, with a tail; each call has a speed of its own, which
scatters by 1 % (where its memory lies), and a tenth of the calls are interrupted. One program prints the mean of a
call, one prints each run; both are compared and benched by the code that measures phones. Equal programs of other
lengths are compared on a phone that stops for 0.5 to 5 ms at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from benchmarks.harness import Context, Figure
from benchmarks.rates import Case, Goal, rates
from benchmarks.simulated_runs import Phone, Random
from farm.measure.comparison import ComparisonAnswer
from farm.programs.outputs import grouped
from farm.worker.programs import MAX_GROUPS
from farm.worker.timing import RunLimits, SamplingPlan, Timer, measure, time_pairs

RUN_S = 5e-3
START_S = 0.06
RUNS = 20
RUN_NOISE, CALL_NOISE = 0.02, 0.01
SPIKES = 0.1  # of the calls lose up to a third of a run's time in each run
PLANTED = 0.03
REFERENCE_S = 1e-3
REFERENCE_NOISE = 0.003
COMPARE_S = 300.0  # simulated
BENCH_S = 120.0
HALF_WIDTH = 0.01
FOUND_RUNS = 400
ALARM_RUNS = 400
TWICE_RUNS = 200
STOP_S, GAP_S = (0.0005, 0.005), 0.1  # of a stop, and from one to the next in the mean
COVERAGE_RUNS = 400
SEED = 20261127


@dataclass
class SimulatedPhone:
    """A phone with a clock, on which programs are called."""

    random: Random
    now_s: float = field(default=0.0)

    def clock(self) -> float:
        return self.now_s

    def program(self, run_s: float, *, tells_each: bool) -> Timer:
        """As farm.worker.programs times one: a call is as many samples as asked for, or one."""

        def timed(_number: int, repeat: int) -> list[float]:
            level = math.exp(CALL_NOISE * self.random.normal())
            if self.random.random() < SPIKES:
                level *= 1 + self.random.uniform(0, 1 / 3)
            noise = RUN_NOISE * (self.random.normal(size=RUNS) + (self.random.exponential(size=RUNS) - math.log(2)))
            runs = run_s * level * np.exp(noise)
            self.now_s += START_S + float(runs.sum())
            return grouped([float(each) for each in runs], repeat if tells_each else 1)

        return timed

    def reference(self) -> float:
        self.now_s += 3 * REFERENCE_S
        return float(REFERENCE_S * math.exp(REFERENCE_NOISE * self.random.normal()))


class InterruptedPhone(Phone):
    """A phone that stops for 0.5 ms to `longest_s`, at any time."""

    def __init__(self, random: Random, longest_s: float) -> None:
        super().__init__(random, GAP_S, 0.0)
        self._longest_s, self._next_s = longest_s, random.exponential(GAP_S)

    def _work(self, seconds: float, noise: float) -> float:
        begun_s = self.now_s
        self.now_s += seconds * math.exp(noise * self._random.normal())
        while self._next_s < self.now_s:
            stop_s = self._random.uniform(STOP_S[0], self._longest_s)
            self.now_s += stop_s * (self._next_s >= begun_s)  # else it stopped between two samples
            self._next_s += stop_s + self._random.exponential(GAP_S)
        return self.now_s - begun_s


def run(context: Context) -> list[Figure]:
    """The rate of every property, and whether it meets its goal."""
    return rates(context, _cases, SEED)


def _cases() -> list[Case]:
    cases = []
    for name, each in (("means", False), ("each run", True)):
        cases += [
            Case(f"3 % found, programs that print {name}", FOUND_RUNS, _answers(PLANTED, each, _SLOWER), Goal(95)),
            Case(f"false alarm, programs that print {name}", ALARM_RUNS, _answers(0.0, each, _DIFFERENT), Goal(high=1)),
            Case(f"coverage of a median, a program that prints {name}", COVERAGE_RUNS, _covered(each), Goal(93)),
        ]
    for longest_s in STOP_S:
        told = f"one program twice, 1 to 500 runs a call, stops of 0.5 to {1e3 * longest_s:g} ms"
        cases.append(Case(f"the same: {told}", TWICE_RUNS, _twice(longest_s, _SAME), Goal(95)))
        cases.append(Case(f"false alarm, {told}", ALARM_RUNS, _twice(longest_s, _DIFFERENT), Goal(high=1)))
    return cases


_SLOWER = frozenset({ComparisonAnswer.SLOWER})
_SAME = frozenset({ComparisonAnswer.SAME})
_DIFFERENT = frozenset({ComparisonAnswer.SLOWER, ComparisonAnswer.FASTER})


def _answers(effect: float, each: bool, wanted: frozenset[ComparisonAnswer]) -> Callable[[Random], bool]:
    """Whether a comparison of two programs, B slower by `effect`, ends with one of these answers."""

    def trial(random: Random) -> bool:
        phone = SimulatedPhone(random)
        a = phone.program(RUN_S, tells_each=each)
        b = phone.program(RUN_S * (1 + effect), tells_each=each)
        return time_pairs(a, b, measure_s=COMPARE_S, clock=phone.clock).comparison.answer in wanted

    return trial


def _twice(longest_s: float, wanted: frozenset[ComparisonAnswer]) -> Callable[[Random], bool]:
    """Whether a comparison of a program with itself ends so, whose calls have other numbers of runs on either side."""

    def trial(random: Random) -> bool:
        phone = InterruptedPhone(random, longest_s)
        program = phone.model(math.exp(random.uniform(math.log(1e-4), math.log(1e-3))))
        first, second = (RunLimits(round(500 ** random.random())) for _ in "ab")
        pairs = time_pairs(program, program, measure_s=COMPARE_S, limits=(first, second), clock=phone.clock)
        return pairs.comparison.answer in wanted

    return trial


def _covered(each: bool) -> Callable[[Random], bool]:
    """Whether the interval of a bench has the median of the program's samples."""
    plan = SamplingPlan(
        HALF_WIDTH, BENCH_S, number=RUNS // MAX_GROUPS if each else RUNS, block=MAX_GROUPS if each else 1
    )

    def trial(random: Random) -> bool:
        phone = SimulatedPhone(random)
        timer = phone.program(RUN_S, tells_each=each)
        _, found = measure(timer, phone.reference, plan, nominal_s=REFERENCE_S, clock=phone.clock)
        return found.estimate.low_s <= _true_median_s(each) <= found.estimate.high_s

    return trial


@cache
def _true_median_s(each: bool) -> float:
    """The median of very many samples."""
    timer = SimulatedPhone(np.random.default_rng(SEED)).program(RUN_S, tells_each=each)
    return float(np.median([sample for _ in range(20_000) for sample in timer(1, MAX_GROUPS)]))
