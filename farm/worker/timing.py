"""The measuring loop: samples of a model with the reference kernel beside each, and two builds in turns (ABBA).

A sample is timed on the phone itself (TVM's time_evaluator); the host only says when the next one begins, so no round
trip lies inside one. How many samples are enough is farm.measure's decision.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np

from farm.core.errors import PhoneError
from farm.measure.assess import Assessment, assess
from farm.measure.comparison import FIRST_PAIRS, MIN_EFFECT, Comparison, compare, more_pairs
from farm.measure.sampling import FIRST_SAMPLES, more_samples
from farm.measure.series import LONGEST_S, SHORTEST_S, Series, series
from farm.worker.session import on_phone

MS = 1000.0
RUNS_PER_UNTIMED = 4  # TVM runs a model once, untimed, before each block of samples: at most a fifth of the time
MOST_IN_BLOCK = 4  # samples between two readings of the reference kernel
MOST_SAMPLES = 4000  # of one try; more are asked for by name (`repeat`)
MIN_SAMPLE_S = 0.01  # of two builds in turns
MOST_RUNS = 1_000_000  # of a model in one sample
FIRST_RUNS, FIRST_RUNS_S = 5, 0.25  # first runs, while they took less than so in all: they say how many make a sample
MOST_APART = 4.0  # times; builds whose first runs are nearer get samples of as many runs each
ORDER_SEED = 20261122  # fixed: every comparison takes its turns in the same order

Clock = Callable[[], float]


class PhoneClockError(PhoneError):
    """The phone's clock told a time that is none."""

    code = "phone_clock"


class Timer(Protocol):
    """Something on a phone that can be timed."""

    def __call__(self, number: int, repeat: int) -> Sequence[float]:
        """`repeat` samples in seconds per run, each the mean of `number` runs; one more run before them is untimed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. With `repeat` exactly so many samples are taken, whatever they say."""

    half_width: float
    measure_s: float
    min_sample_s: float = MIN_SAMPLE_S
    number: int | None = None
    repeat: int | None = None


@dataclass(slots=True)
class Taken:
    """Samples in the order they were taken. Seconds; starts count from the first one."""

    number: int  # runs averaged into one sample
    first_run_s: float  # of those before the first sample, which found out `number`
    seconds: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    reference_s: list[float] = field(default_factory=list)

    def series(self) -> Series:
        """For farm.measure."""
        return series(self.seconds, self.start_s, self.reference_s)

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON; a nanosecond is as exact as a phone's clock."""
        reference = [None if math.isnan(value) else round(value, 10) for value in self.reference_s]
        starts = [round(value, 6) for value in self.start_s]
        return {
            "number": self.number,
            "first_run_s": self.first_run_s,
            "seconds": [round(value, 10) for value in self.seconds],
            "start_s": starts,
            "reference_s": reference,
        }


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two builds timed in turns: pairs 0 and 1 are a round (A B B A, or B A A B), and so on."""

    a_s: list[float]
    b_s: list[float]
    number_a: int
    number_b: int
    comparison: Comparison


def timer_of(machine: Any, device: Any) -> Timer:
    """A model that has run on a phone (relax.VirtualMachine with its inputs set), as something to time."""

    @cache
    def evaluator(number: int, repeat: int) -> Any:
        return machine.time_evaluator("invoke_stateful", device, number=number, repeat=repeat)

    def timed(number: int, repeat: int) -> list[float]:
        with on_phone("timing the model"):
            return [_time(sample, "the model") for sample in evaluator(number, repeat)("main").results]

    return timed


def _time(told: float, what: str) -> float:
    """A time that a phone told, seconds. A clock with long ticks, or without any, says that no time passed.

    Raises:
        PhoneClockError: it is none.
    """
    if not SHORTEST_S <= told <= LONGEST_S:
        raise PhoneClockError(f"the phone's clock says that {what} took {told:g} s: no number comes of that")
    return float(told)


def runs_per_sample(run_s: float, min_sample_s: float) -> int:
    """How many runs of so many seconds make a sample long enough for the phone's clock."""
    return max(1, min(MOST_RUNS, math.ceil(min_sample_s / run_s)))


def first_runs(model: Timer, most: int = FIRST_RUNS) -> list[float]:
    """Single runs, seconds. The fastest says how long one takes: an interrupted one makes samples too short."""
    found = list(model(1, 1))
    while len(found) < most and sum(found) < FIRST_RUNS_S:
        found += model(1, 1)
    return found


def runs_alike(run_a_s: float, run_b_s: float) -> tuple[int, int]:
    """How many runs make a sample of either of two builds: as many of both, unless one is far slower."""
    if max(run_a_s, run_b_s) > MOST_APART * min(run_a_s, run_b_s):
        return runs_per_sample(run_a_s, MIN_SAMPLE_S), runs_per_sample(run_b_s, MIN_SAMPLE_S)
    number = runs_per_sample(min(run_a_s, run_b_s), MIN_SAMPLE_S)
    return number, number


def block_size(number: int) -> int:
    """How many samples to take at once, so that the untimed run before them costs little."""
    return min(MOST_IN_BLOCK, max(1, math.ceil(RUNS_PER_UNTIMED / number)))


def measure(
    model: Timer,
    reference: Callable[[], float] | None,
    plan: Plan,
    *,
    nominal_s: float | None = None,
    clock: Clock = time.monotonic,
    look: Callable[[Taken, Assessment], None] | None = None,
) -> tuple[Taken, Assessment]:
    """Take samples until the median is known as exactly as the plan wants, or its time is over.

    Args:
        model: what to time.
        reference: one reading of the reference kernel, seconds; None: there is none.
        plan: how much.
        nominal_s: the kernel's nominal time on this phone; None: its median in this run.
        clock: monotonic seconds.
        look: sees each standing between two rounds of samples, while the phone has nothing to do.

    Raises:
        PhoneError: the phone failed.
    """
    first_s = first_runs(model, 1 if plan.number else FIRST_RUNS)
    taken = Taken(plan.number or runs_per_sample(min(first_s), plan.min_sample_s), first_s[0])
    began_s = clock()
    wanted = plan.repeat or FIRST_SAMPLES
    while True:
        while len(taken.seconds) < wanted and (plan.repeat or clock() - began_s < plan.measure_s):
            _block(model, reference, taken, min(block_size(taken.number), wanted - len(taken.seconds)), began_s, clock)
        assessment = assess(taken.series(), nominal_s, half_width=plan.half_width)
        if plan.repeat or clock() - began_s >= plan.measure_s:
            return taken, assessment
        more = more_samples(assessment, plan.half_width, most=MOST_SAMPLES)
        if not more:
            return taken, assessment
        if look is not None:
            look(taken, assessment)
        wanted = len(taken.seconds) + more


def _block(
    model: Timer, reference: Callable[[], float] | None, taken: Taken, size: int, began_s: float, clock: Clock
) -> None:
    reading = math.nan
    if reference is not None:
        with on_phone("timing the reference kernel"):
            reading = _time(reference(), "the reference kernel")
    begun_s = clock() - began_s
    samples = model(taken.number, size)
    ended_s = clock() - began_s
    # The phone does not tell when each one began: they follow one another, after the untimed run; and all of them
    # before the host had them, however far the phone's clock jumped.
    begun_s += min(samples)
    for sample in samples:
        taken.start_s.append(min(begun_s, ended_s))
        begun_s += sample * taken.number
    taken.seconds.extend(samples)
    # One reading for the block: farm.measure takes those between from the line to the next.
    taken.reference_s.extend([reading, *[math.nan] * (len(samples) - 1)])


def time_pairs(
    a: Timer,
    b: Timer,
    *,
    measure_s: float,
    min_effect: float = MIN_EFFECT,
    shuffled: bool = True,
    clock: Clock = time.monotonic,
) -> Pairs:
    """Time two builds in turns, A B B A or B A A B by chance, until the answer is sure or the time is over.

    What interrupts a phone at a fixed rate (a display, audio, a quota) falls into step with turns of a fixed order, and
    always hits the same build; so does it when the samples of one are of another length. So which build begins a round
    is drawn, and builds that are about as fast have as many runs in a sample.

    Args:
        a: the build that is known.
        b: the one that may be faster.
        measure_s: at most so long, but for the first pairs.
        min_effect: smaller differences are none.
        shuffled: False: each round is A B B A after one first run of each, for builds that are dear to change.
        clock: monotonic seconds.

    Raises:
        PhoneError: the phone failed.
    """
    most = FIRST_RUNS if shuffled else 1
    number_a, number_b = runs_alike(min(first_runs(a, most)), min(first_runs(b, most)))
    order = np.random.default_rng(ORDER_SEED)
    a_s: list[float] = []
    b_s: list[float] = []
    turns = ((a, number_a, a_s), (b, number_b, b_s))
    began_s, wanted = clock(), FIRST_PAIRS
    while True:
        while len(a_s) < wanted and (len(a_s) < 2 or clock() - began_s < measure_s):
            first = turns[::-1] if shuffled and order.integers(2) else turns
            for build, number, samples in (*first, *first[::-1]):
                samples.append(build(number, 1)[0])
        comparison = compare(a_s, b_s, min_effect=min_effect)
        more = 0 if clock() - began_s >= measure_s else more_pairs(comparison)
        if not more:
            return Pairs(a_s, b_s, number_a, number_b, comparison)
        wanted = len(a_s) + more + more % 2
