"""The measuring loop: samples of a model with the reference kernel beside each, and two builds in turns (ABBA).

A sample is timed on the phone itself (TVM's time_evaluator); the host only says when the next one begins, so no round
trip lies inside one. How many samples are enough is farm.measure's decision.

Two runtime bundles take turns with one build (`BundleTurns`): changing the bundle restarts the phone's RPC server, so
each turn is a session of its own with a block of samples in it, and a block's median is what is paired. In A B B A the
two blocks under B have no change between them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from farm.common.errors import Code, PhoneError, UserError
from farm.measure.amounts import UNKNOWN, Follows
from farm.measure.assess import Assessment, assess, more_samples
from farm.measure.comparison import FIRST_PAIRS, MIN_EFFECT, Comparison, compare, more_pairs
from farm.measure.conditions import ENOUGH_SAMPLES, PhoneCondition, Reason, Verdict
from farm.measure.series import MAX_S, MIN_S, SampleSeries, series
from farm.model.specs import BundleUse
from farm.worker.session import on_phone

MS = 1000.0
RUNS_PER_UNTIMED = 4  # TVM runs a model once, untimed, before each block of samples: at most a fifth of the time
MAX_IN_BLOCK = 4  # samples between two readings of the reference kernel
LOOK_EVERY_S = 5.0  # a look takes a phone a fifth of a second, in which it times nothing
MAX_SAMPLES = 4000  # of one try; more are asked for by name (`repeat`)
MIN_SAMPLE_S = 0.01  # the runs of a sample last at least so long together
MAX_RUNS = 1_000_000  # of a model in one sample
FIRST_RUNS, FIRST_RUNS_S = 5, 0.25  # single runs before the first sample: at most so many, until they took so long
ABOUT_AS_FAST = 1.1  # times; builds whose first runs are nearer get samples of as many runs each
EQUAL_LENGTH = 1.05  # times; samples of two builds whose lengths are nearer are equally long
MAX_UNEQUAL = 1.25  # times; beyond, a comparison says so
ORDER_SEED = 20261122  # fixed: every comparison takes its turns in the same order

Clock = Callable[[], float]
# Times something on a phone, given number and repeat: `repeat` samples in seconds per run, each the mean of `number`
# runs. One more run before them is untimed.
Timer = Callable[[int, int], Sequence[float]]


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How much to measure. With `repeat` exactly so many samples are taken, however wide the interval is."""

    half_width: float
    measure_s: float
    min_sample_s: float = MIN_SAMPLE_S
    number: int | None = None
    repeat: int | None = None
    block: int | None = None  # samples at once; None: `block_size` decides


@dataclass(slots=True)
class TakenSamples:
    """Samples in the order they were taken. Seconds; starts count from the first one."""

    number: int  # runs averaged into one sample
    first_run_s: float  # of those before the first sample, which found out `number`
    seconds: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    reference_s: list[float] = field(default_factory=list)
    looks: list[tuple[float, PhoneCondition]] = field(default_factory=list)  # at the phone meanwhile, and when

    def series(self) -> SampleSeries:
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
            "looks": looks_to_wire(self.looks),
        }


def looks_to_wire(looks: Sequence[tuple[float, PhoneCondition]]) -> list[dict[str, Any]]:
    """Plain JSON: `at_s`, and the fields of the condition that are known."""
    return [
        {"at_s": round(at_s, 3), **{name: value for name, value in asdict(look).items() if value is not None}}
        for at_s, look in looks
    ]


@dataclass(frozen=True, slots=True)
class PairedSamples:
    """Two builds timed in turns: pairs 0 and 1 are a round (A B B A, or B A A B), and so on."""

    a_s: list[float]
    b_s: list[float]
    number_a: int
    number_b: int
    comparison: Comparison
    doubts: tuple[Reason, ...] = ()  # about how they were timed


def timer_of(machine: Any, device: Any) -> Timer:
    """A model that has run on a phone (relax.VirtualMachine with its inputs set), as something to time."""

    @cache
    def evaluator(number: int, repeat: int) -> Any:
        return machine.time_evaluator("invoke_stateful", device, number=number, repeat=repeat)

    def timed(number: int, repeat: int) -> list[float]:
        with on_phone("timing the model"):
            return [_checked_time(sample, "the model") for sample in evaluator(number, repeat)("main").results]

    return timed


def _checked_time(seconds: float, what: str) -> float:
    """A time by the phone's clock, seconds. A clock with long ticks, or without any, says that no time passed."""
    if not MIN_S <= seconds <= MAX_S:
        raise PhoneError(
            f"the phone's clock says that {what} took {seconds:g} s: no number comes of that", Code.PHONE_CLOCK_WRONG
        )
    return float(seconds)


def runs_per_sample(run_s: float, min_sample_s: float) -> int:
    """How many runs of so many seconds make a sample long enough for the phone's clock."""
    return max(1, min(MAX_RUNS, math.ceil(min_sample_s / run_s)))


def first_runs(model: Timer, most: int = FIRST_RUNS, number: int = 1) -> list[float]:
    """First samples of `number` runs, seconds of a run.

    The fastest decides how many runs make a sample: after an interrupted one they were too few.
    """
    found = list(model(number, 1))
    while len(found) < most and sum(found) * number < FIRST_RUNS_S:
        found += model(number, 1)
    return found


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How many runs a sample of one of two builds may have."""

    first: int = 1  # of the samples that find out how long a run takes; later samples last at least as long
    least: int = 1
    most: int = MAX_RUNS

    def within(self, number: int) -> int:
        """The number, or the nearest one that is allowed."""
        return max(self.least, min(self.most, number))


ANY_RUNS = RunLimits()


def equal_runs(
    run_a_s: float, run_b_s: float, limits: tuple[RunLimits, RunLimits] = (ANY_RUNS, ANY_RUNS)
) -> tuple[int, int]:
    """How many runs make samples of either of two builds that last equally long.

    An interruption of the phone is in every long sample with its share, and in few short ones as a whole: medians of
    samples of two lengths differ where the builds do not. Builds about as fast have as many runs each.
    """
    each = ((run_a_s, limits[0]), (run_b_s, limits[1]))
    wanted_s = max(MIN_SAMPLE_S, *(run_s * one.first for run_s, one in each))
    wanted_s = max(
        min(wanted_s, *(run_s * one.most for run_s, one in each)), *(run_s * one.least for run_s, one in each)
    )
    (fast_s, fast), (slow_s, slow) = sorted(each, key=lambda one: one[0])

    def beside(number: int) -> int:
        as_fast = slow_s <= ABOUT_AS_FAST * fast_s
        return fast.within(number if as_fast else round(number * slow_s / fast_s))

    def apart(number: int) -> float:
        lengths = beside(number) * fast_s, number * slow_s
        return max(lengths) / min(lengths)

    begin = slow.within(math.ceil(wanted_s / slow_s))
    numbers = range(begin, slow.within(2 * begin + 3) + 1)  # a few runs may be no whole number of the faster build's
    number = next((one for one in numbers if apart(one) <= EQUAL_LENGTH), min(numbers, key=apart))
    return (beside(number), number) if each[1] == (slow_s, slow) else (number, beside(number))


def _unequal(lengths_s: tuple[float, float]) -> tuple[Reason, ...]:
    """A doubt about samples of two builds that do not last equally long."""
    if max(lengths_s) <= MAX_UNEQUAL * min(lengths_s):
        return ()
    a, b = (f"{MS * each:.3g} ms" for each in lengths_s)
    evidence = "What interrupts the phone changes medians of short and of long samples by different amounts."
    hint = "use {runs} in the program's command, or other --runs"
    return (Reason("unequal_samples", Verdict.SUSPECT, f"samples of A last {a}, of B {b}", evidence, hint),)


def block_size(number: int) -> int:
    """How many samples to take at once, so that the untimed run before them costs little."""
    return min(MAX_IN_BLOCK, max(1, math.ceil(RUNS_PER_UNTIMED / number)))


def measure(
    model: Timer,
    reference: Callable[[], float] | None,
    plan: SamplingPlan,
    *,
    nominal_s: float | None = None,
    follows: Follows = UNKNOWN,
    clock: Clock = time.monotonic,
    on_assessed: Callable[[TakenSamples, Assessment], None] | None = None,
    look: Callable[[], PhoneCondition] | None = None,
) -> tuple[TakenSamples, Assessment]:
    """Take samples until the median is known as exactly as the plan wants, or its time is over.

    Args:
        model: what to time.
        reference: one reading of the reference kernel, seconds; None: there is none.
        plan: how much.
        nominal_s: the kernel's nominal time on this phone; None: its median in this run.
        follows: how far the model follows the clock, by earlier benches.
        clock: monotonic seconds.
        on_assessed: sees each standing between two rounds of samples, while the phone has nothing to do.
        look: reads the phone's condition; called every 5 s between two blocks of samples. None: it is not read.
    """
    first_s = first_runs(model, 1 if plan.number else FIRST_RUNS)
    taken = TakenSamples(plan.number or runs_per_sample(min(first_s), plan.min_sample_s), first_s[0])
    began_s = clock()
    wanted = plan.repeat or ENOUGH_SAMPLES
    at_once = plan.block or block_size(taken.number)
    next_look_s = LOOK_EVERY_S
    while True:
        while len(taken.seconds) < wanted and (plan.repeat or clock() - began_s < plan.measure_s):
            if look is not None and clock() - began_s >= next_look_s:
                taken.looks.append((clock() - began_s, look()))
                next_look_s = clock() - began_s + LOOK_EVERY_S
            _block(model, reference, taken, min(at_once, wanted - len(taken.seconds)), began_s, clock)
        assessment = assess(taken.series(), nominal_s, half_width=plan.half_width, follows=follows)
        if plan.repeat or clock() - began_s >= plan.measure_s:
            return taken, assessment
        more = more_samples(assessment, plan.half_width, most=MAX_SAMPLES)
        if not more:
            return taken, assessment
        if on_assessed is not None:
            on_assessed(taken, assessment)
        wanted = len(taken.seconds) + more


def _block(
    model: Timer, reference: Callable[[], float] | None, taken: TakenSamples, size: int, began_s: float, clock: Clock
) -> None:
    reading = math.nan
    if reference is not None:
        with on_phone("timing the reference kernel"):
            reading = _checked_time(reference(), "the reference kernel")
    begun_s = clock() - began_s
    samples = model(taken.number, size)
    ended_s = clock() - began_s
    # The phone does not report when each one began: they follow one another, after the untimed run; and all of them
    # before the host had them, however far the phone's clock jumped.
    begun_s += min(samples)
    for sample in samples:
        taken.start_s.append(min(begun_s, ended_s))
        begun_s += sample * taken.number
    taken.seconds.extend(samples)
    # One reading for the block: farm.measure interpolates between it and the next block's.
    taken.reference_s.extend([reading, *[math.nan] * (len(samples) - 1)])


def time_pairs(
    a: Timer,
    b: Timer,
    *,
    measure_s: float,
    min_effect: float = MIN_EFFECT,
    shuffled: bool = True,
    limits: tuple[RunLimits, RunLimits] = (ANY_RUNS, ANY_RUNS),
    clock: Clock = time.monotonic,
) -> PairedSamples:
    """Time two builds in turns, A B B A or B A A B by chance, until the answer is sure or the time is over.

    What interrupts a phone at a fixed rate (a display, audio, a quota) falls into step with turns of a fixed order, and
    always hits the same build. So which build begins a round is drawn, and samples of both last equally long.

    Args:
        a: the build that is known.
        b: the one that may be faster.
        measure_s: at most so long, but for the first pairs.
        min_effect: smaller differences are none.
        shuffled: False: each round is A B B A after one first run of each, for builds between which a change is slow.
        limits: of the runs in a sample of A and of B.
        clock: monotonic seconds.
    """
    most = FIRST_RUNS if shuffled else 1
    run_a_s, run_b_s = (min(first_runs(one, most, of.first)) for one, of in zip((a, b), limits, strict=True))
    number_a, number_b = equal_runs(run_a_s, run_b_s, limits)
    doubts = _unequal((number_a * run_a_s, number_b * run_b_s))
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
        comparison = compare(a_s, b_s, min_effect=min_effect, doubts=doubts)
        more = 0 if clock() - began_s >= measure_s else more_pairs(comparison)
        if not more:
            return PairedSamples(a_s, b_s, number_a, number_b, comparison, doubts)
        wanted = len(a_s) + more + more % 2


BLOCK_SAMPLES = 8  # under one bundle: 0.1 s, beside 0.5 s for a change and a session


# The model in a session under one bundle, and one reading of the reference kernel there, seconds.
BundleTurn = tuple[Timer, Callable[[], float]]


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """The times of one turn, seconds."""

    samples_s: tuple[float, ...]
    reference_s: float  # geometric mean of the readings before and after

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"samples_s": list(self.samples_s), "reference_s": self.reference_s}


class BundleTurns:
    """Takes blocks; `timer` makes each side one that `time_pairs` times."""

    def __init__(
        self,
        bundles: tuple[BundleUse, BundleUse],
        change: Callable[[str], None],
        turn: Callable[[int], AbstractContextManager[BundleTurn]],
    ) -> None:
        """`change`: to a bundle by its hash. `turn`: a session for side 0 or 1, under the bundle that is on now."""
        self._bundles = bundles
        self._change = change
        self._turn = turn
        self._on = ""
        self.blocks: tuple[list[TimedBlock], list[TimedBlock]] = ([], [])

    def timer(self, side: int) -> Timer:
        """A block under that side's bundle as one sample: its median.

        The reference kernel runs under the side's own bundle, so no sample is divided by it: a bundle under which
        everything is slower would then be as fast. What the clock does in a straight line cancels in A B B A.
        """

        def timed(number: int, repeat: int) -> list[float]:  # noqa: ARG001 - a block is one sample
            block = self._block(side, number)
            self.blocks[side].append(block)
            return [median(block.samples_s)]

        return timed

    def _block(self, side: int, number: int) -> TimedBlock:
        wanted = self._bundles[side].hash
        if wanted != self._on:
            self._change(wanted)
            self._on = wanted
        with self._turn(side) as (model, reading):
            before = reading()
            samples = tuple(model(number, BLOCK_SAMPLES))
            return TimedBlock(samples, math.sqrt(before * reading()))

    def reference_ratio(self) -> float:
        """How many times as long the reference kernel takes under B, in the median of the blocks' pairs."""
        return median(b.reference_s / a.reference_s for a, b in zip(*self.blocks, strict=False))


def check_versions(bundles: Sequence[BundleUse], tvm: str) -> None:
    """Whether libraries of this TVM run under all of them. Pure."""
    for bundle in bundles:
        if bundle.tvm != tvm:
            raise UserError(
                f"bundle {bundle.name} is of TVM {bundle.tvm or '?'}, the toolchain compiles with TVM {tvm}: its"
                " libraries do not run there",
                Code.BUNDLE_MISMATCH,
                hint="bench with each bundle in its own toolchain, and compare the two results",
            )
