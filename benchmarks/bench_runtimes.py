"""Whether programs of other runtimes are measured as builds of TVM are: simulated calls whose truth is known.

A call takes 60 ms to start and runs 20 times. Runs scatter by 2 %, with a tail; each call has a speed of its own, which
scatters by 1 % (where its memory lies), and a tenth of the calls are interrupted. One program prints the mean of a
call, one prints each run; both are compared and benched by the code that measures phones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from benchmarks.harness import Context, Figure
from benchmarks.rates import Case, Goal, rates
from benchmarks.simulated_runs import Random
from farm.measure.comparison import ComparisonAnswer
from farm.programs.outputs import grouped
from farm.worker.programs import MAX_GROUPS
from farm.worker.timing import SamplingPlan, Timer, measure, time_pairs

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
    return cases


_SLOWER = frozenset({ComparisonAnswer.SLOWER})
_DIFFERENT = frozenset({ComparisonAnswer.SLOWER, ComparisonAnswer.FASTER})


def _answers(effect: float, each: bool, wanted: frozenset[ComparisonAnswer]) -> Callable[[Random], bool]:
    """Whether a comparison of two programs, B slower by `effect`, ends with one of these answers."""

    def trial(random: Random) -> bool:
        phone = SimulatedPhone(random)
        a = phone.program(RUN_S, tells_each=each)
        b = phone.program(RUN_S * (1 + effect), tells_each=each)
        return time_pairs(a, b, measure_s=COMPARE_S, clock=phone.clock).comparison.answer in wanted

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
