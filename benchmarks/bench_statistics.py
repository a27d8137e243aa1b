"""Whether what farm.measure says is so: simulated runs whose truth is known, thousands of each kind.

Each rate is a mean over runs; `+-` in its name is the half width of its own 95 % interval (Wilson). Goals are for the
rates themselves. Samples scatter by 1 %, the reference kernel by 0.3 %, if not said otherwise.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import Context, Figure
from farm.measure.assess import Assessment, assess
from farm.measure.comparison import FIRST_PAIRS, Answer, compare, more_pairs
from farm.measure.conditions import Verdict
from farm.measure.regression import Point, changes
from farm.measure.sampling import FIRST_SAMPLES, more_samples
from farm.measure.series import FloatArray, Series

TRUE_S = 1e-3
NOMINAL_S = 1e-4
NOISE = 0.01
REFERENCE_NOISE = 0.003
HALF_WIDTH = 0.01
MOST_SAMPLES = 320
MOST_PAIRS = 800
BURN_IN = 60  # values of an AR(1) process, so that it is in its middle when a run begins
FIND_EFFECT = 0.03
PROCESSES = 2
COVERAGE_RUNS = 1000
DETECTION_RUNS = 300
ALARM_RUNS = 600
POWER_RUNS = 400
HISTORY_RUNS = 1000

Random = np.random.Generator
# What a shape draws: noise of the samples (in units of NOISE), speed of model and reference, speed of the model alone.
Drawn = tuple[FloatArray, FloatArray, FloatArray]
Shape = Callable[[Random, int], Drawn]


@dataclass(frozen=True)
class Goal:
    """A rate's lower and upper limit, in percent."""

    low: float = 0.0
    high: float = 100.0

    def __str__(self) -> str:
        if self.high == 100:
            return f"at least {self.low:g} %"
        return f"under {self.high:g} %" if self.low == 0 else f"{self.low:g}-{self.high:g} %"


@dataclass(frozen=True)
class Case:
    """One property to measure: `trial` says of one simulated run whether it held."""

    name: str
    runs: int
    trial: Callable[[Random], bool]
    goal: Goal | None = None


def run(context: Context) -> list[Figure]:
    """The rate of every property, and whether it meets its goal."""
    cases = _cases()
    context.say(f"{sum(case.runs for case in cases)} simulated runs of {len(cases)} kinds")
    figures = []
    processes = min(PROCESSES, os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        for case, held in zip(cases, pool.map(_held, range(len(cases))), strict=True):
            figures.append(_figure(case, held))
            context.say(f"{figures[-1].value:5.1f} %  {case.name}")
    return figures


def _cases() -> list[Case]:
    return [*_coverage(), *_detection(), *_comparison(), *_history()]


def _held(number: int) -> int:
    case = _cases()[number]
    random = np.random.default_rng(zlib.crc32(case.name.encode()))
    return sum(case.trial(random) for _ in range(case.runs))


def _figure(case: Case, held: int) -> Figure:
    rate = held / case.runs
    z2 = 1.96**2
    half = 1.96 * math.sqrt(rate * (1 - rate) / case.runs + z2 / 4 / case.runs**2) / (1 + z2 / case.runs)
    ok = case.goal is None or case.goal.low <= 100 * rate <= case.goal.high
    if case.goal is not None and case.goal.low == 0:
        ok = 100 * rate < case.goal.high
    goal = "" if case.goal is None else str(case.goal)
    return Figure(f"{case.name} (n={case.runs}, +-{100 * half:.1f})", 100 * rate, "%", goal=goal, ok=ok)


# Shapes ------------------------------------------------------------------------------------------------------------


def _ar(likeness: float) -> Callable[[Random, int], FloatArray]:
    def drawn(random: Random, count: int) -> FloatArray:
        fresh = random.normal(size=count + BURN_IN) * math.sqrt(1 - likeness**2)
        values = np.empty_like(fresh)
        last = 0.0
        for place, each in enumerate(fresh):
            last = likeness * last + each
            values[place] = last
        return values[BURN_IN:]

    return drawn


def _normal(random: Random, count: int) -> FloatArray:
    return random.normal(size=count)


def _one_sided(random: Random, count: int) -> FloatArray:
    return random.exponential(size=count) - math.log(2)


def _heavy(random: Random, count: int) -> FloatArray:
    return random.standard_t(3, size=count)


def _very_skewed(random: Random, count: int) -> FloatArray:
    return np.exp(random.normal(size=count)) - 1


def _bursts(random: Random, count: int) -> FloatArray:
    """Now and then one to three samples in a row take up to a third longer."""
    values = random.normal(size=count)
    for begin in np.flatnonzero(random.random(count) < 0.02):
        values[begin : begin + random.integers(1, 4)] += random.uniform(5, 30)
    return values


def _flat(_random: Random, count: int) -> FloatArray:
    return np.ones(count)


def _drift(random: Random, count: int) -> FloatArray:
    """Up to 10 % up or down over the run."""
    return 1 + random.uniform(-0.1, 0.1) * np.arange(count) / count


def _throttled(random: Random, count: int) -> FloatArray:
    """5 to 40 % slower from some place in the middle 80 % on."""
    speed = np.ones(count)
    speed[int(count * random.uniform(0.1, 0.9)) :] += random.uniform(0.05, 0.4)
    return speed


def _levels(number: int) -> Callable[[Random, int], FloatArray]:
    def drawn(random: Random, count: int) -> FloatArray:
        return np.asarray(1 + random.uniform(0.08, 0.3) * random.integers(0, number, size=count), dtype=np.float64)

    return drawn


def _dwelling(random: Random, count: int) -> FloatArray:
    """Two clocks 8 to 30 % apart, about 5 samples each time."""
    dwells = np.cumsum(random.random(count) < 0.2) % 2
    return np.asarray(1 + random.uniform(0.08, 0.3) * dwells, dtype=np.float64)


def _dip(random: Random, count: int) -> FloatArray:
    """6 samples in the run's later two thirds take 10 to 40 % longer."""
    speed = np.ones(count)
    begin = random.integers(count // 3, count - 6)
    speed[begin : begin + 6] += random.uniform(0.1, 0.4)
    return speed


def _warming(part: float) -> Callable[[Random, int], FloatArray]:
    def drawn(_random: Random, count: int) -> FloatArray:
        return np.asarray(1 + 0.1 * np.exp(-np.arange(count) / (part * count)), dtype=np.float64)

    return drawn


Noise = Callable[[Random, int], FloatArray]


def _shape(noise: Noise, both: Noise = _flat, own: Noise = _flat) -> Shape:
    return lambda random, count: (noise(random, count), both(random, count), own(random, count))


def _series(random: Random, drawn: Drawn, beside: int = 1) -> Series:
    """A run in which `beside` samples share each reading of the reference kernel."""
    noise, both, own = drawn
    jitter = REFERENCE_NOISE * random.normal(size=noise.size)
    seconds = np.asarray(TRUE_S * both * own * np.exp(NOISE * noise), dtype=np.float64)
    reference_s = np.asarray(NOMINAL_S * both * np.exp(jitter), dtype=np.float64)
    shared = np.where(np.arange(noise.size) % beside, math.nan, reference_s)
    return Series(seconds, np.arange(noise.size, dtype=np.float64), shared)


# What is asked of them ---------------------------------------------------------------------------------------------


def _sampled(random: Random, shape: Shape) -> Assessment:
    """As a bench run does it: a first batch, then as many more as it says, until it says enough."""
    whole = _series(random, shape(random, MOST_SAMPLES))
    count = FIRST_SAMPLES
    while True:
        found = assess(
            Series(whole.seconds[:count], whole.start_s[:count], whole.reference_s[:count]),
            NOMINAL_S,
            half_width=HALF_WIDTH,
        )
        more = more_samples(found, HALF_WIDTH, most=MOST_SAMPLES)
        if more == 0:
            return found
        count += more


def _sampled_covers(shape: Shape) -> Callable[[Random], bool]:
    return lambda random: _covers(_sampled(random, shape))


def _covers(found: Assessment) -> bool:
    return found.estimate.low_s <= TRUE_S <= found.estimate.high_s


def _coverage() -> list[Case]:
    goal = Goal(93, 97)
    shapes: list[tuple[str, Shape, Goal | None]] = [
        ("iid", _shape(_normal), goal),
        ("iid, one-sided", _shape(_one_sided), goal),
        ("linear drift to +-10 %", _shape(_normal, _drift), goal),
        ("drift and AR(1) 0.3", _shape(_ar(0.3), _drift), goal),
        ("drift and AR(1) 0.5", _shape(_ar(0.5), _drift), goal),
        ("drift and AR(1) 0.7", _shape(_ar(0.7), _drift), goal),
        ("t with 3 degrees", _shape(_heavy), None),
        ("bursts of outliers", _shape(_bursts), None),
    ]
    cases = [
        Case(f"coverage, sampled to +-1 %: {name}", COVERAGE_RUNS, _sampled_covers(shape), goal)
        for name, shape, goal in shapes
    ]
    warm = _fixed(_shape(_normal, _flat, _warming(0.05)), 120, _covers)
    cases.append(Case("coverage, 120 samples: warm-up of 5 % of the run", DETECTION_RUNS, warm))
    for count in (40, 80, 160):
        for name, noise in (("iid", _normal), ("AR(1) 0.7", _ar(0.7))):
            shape = _shape(noise, _drift)
            cases.append(
                Case(f"coverage, {count} samples: drift, {name}", COVERAGE_RUNS, _fixed(shape, count, _covers), goal)
            )
    four = _fixed(_shape(_normal, _drift), FIRST_SAMPLES, _covers, 4)
    cases.append(Case(f"coverage, {FIRST_SAMPLES} samples, 4 to a reading: drift, iid", COVERAGE_RUNS, four))
    return cases


def _fixed(shape: Shape, count: int, holds: Callable[[Assessment], bool], beside: int = 1) -> Callable[[Random], bool]:
    def trial(random: Random) -> bool:
        return holds(assess(_series(random, shape(random, count), beside), NOMINAL_S, half_width=10 * HALF_WIDTH))

    return trial


def _not_trusted(found: Assessment) -> bool:
    return found.verdict is not Verdict.TRUSTED


def _trusted(found: Assessment) -> bool:
    return found.verdict is Verdict.TRUSTED


def _detection() -> list[Case]:
    goal = Goal(99)
    bad: list[tuple[str, Shape, Goal | None]] = []
    for name, speed, wanted in (
        ("a throttling step", _throttled, goal),
        ("two clocks, mixed", _levels(2), goal),
        ("two clocks, dwelling", _dwelling, goal),
        ("three clocks, mixed", _levels(3), None),
        ("a dip of 6 samples", _dip, None),
    ):
        bad.append((f"{name}, model and reference", _shape(_normal, speed), wanted))
        bad.append((f"{name}, model alone", _shape(_normal, _flat, speed), wanted))
    bad.append(("warming up all the time, model alone", _shape(_normal, _flat, _warming(0.3)), None))
    bad.append(("a throttling step, AR(1) 0.5, model and reference", _shape(_ar(0.5), _throttled), goal))
    bad.append(("two clocks, AR(1) 0.5, model alone", _shape(_ar(0.5), _flat, _levels(2)), goal))
    cases = [
        Case(f"not trusted, {count} samples: {name}", DETECTION_RUNS, _fixed(shape, count, _not_trusted), wanted)
        for count in (FIRST_SAMPLES, 120)
        for name, shape, wanted in bad
        if wanted or count == FIRST_SAMPLES
    ]
    for name, shape in (
        ("a throttling step", _shape(_normal, _throttled)),
        ("two clocks, mixed", _shape(_normal, _levels(2))),
    ):
        blocked = _fixed(shape, FIRST_SAMPLES, _not_trusted, 4)
        told = f"not trusted, {FIRST_SAMPLES} samples, 4 to a reading: {name}, model and reference"
        cases.append(Case(told, DETECTION_RUNS, blocked, goal))
    good = [
        ("iid", _shape(_normal), Goal(95)),
        ("drift, AR(1) 0.5", _shape(_ar(0.5), _drift), None),
        ("one-sided", _shape(_one_sided), None),
        ("t with 3 degrees", _shape(_heavy), None),
        ("log-normal, sigma 1", _shape(_very_skewed), None),
        ("bursts of outliers", _shape(_bursts), None),
    ]
    return cases + [
        Case(f"trusted, 120 samples: {name}", DETECTION_RUNS, _fixed(shape, 120, _trusted), wanted)
        for name, shape, wanted in good
    ]


def _pairs(random: Random, noise: Noise, scale: float, effect: float, drift: float, most: int) -> list[FloatArray]:
    count = 2 * most
    times = TRUE_S * np.exp(scale * noise(random, count) + drift * np.arange(count) / FIRST_PAIRS / 2)
    rounds = times.reshape(-1, 4)
    return [rounds[:, [0, 3]].ravel(), rounds[:, [1, 2]].ravel() * (1 + effect)]


def _false_alarm(noise: Noise, scale: float, drift: float) -> Callable[[Random], bool]:
    """Two equal builds, compared until `compare` wants no more pairs."""

    def trial(random: Random) -> bool:
        a_s, b_s = _pairs(random, noise, scale, 0.0, drift, MOST_PAIRS)
        pairs = FIRST_PAIRS
        while True:
            found = compare(a_s[:pairs], b_s[:pairs], find_effect=FIND_EFFECT)
            more = more_pairs(found, most=MOST_PAIRS)
            if more == 0:
                return found.answer in (Answer.FASTER, Answer.SLOWER)
            pairs += more

    return trial


def _found(noise: Noise, scale: float, drift: float) -> Callable[[Random], bool]:
    """A 3 % slower build is called so by fresh pairs, as many as a comparison of the first 40 pairs asked for."""

    def trial(random: Random) -> bool:
        pilot = _pairs(random, noise, scale, FIND_EFFECT, drift, FIRST_PAIRS)
        pairs = compare(pilot[0], pilot[1], find_effect=FIND_EFFECT).needed_pairs
        fresh = _pairs(random, noise, scale, FIND_EFFECT, drift, pairs)
        return compare(fresh[0], fresh[1], find_effect=FIND_EFFECT).answer is Answer.SLOWER

    return trial


def _comparison() -> list[Case]:
    cases = []
    for name, noise, drift in (
        ("iid", _normal, 0.0),
        ("AR(1) 0.7", _ar(0.7), 0.0),
        ("drift 10 %", _normal, 0.1),
        ("t with 3 degrees", _heavy, 0.0),
    ):
        goal = None if noise is _heavy else Goal(high=1)
        power = None if noise is _heavy else Goal(95)
        for scale in (0.01, 0.04) if noise is not _heavy else (0.01,):
            told = f"{name}, noise {scale:.0%}"
            cases.append(Case(f"false alarm of compare: {told}", ALARM_RUNS, _false_alarm(noise, scale, drift), goal))
        for scale in (0.01, 0.02):
            told = f"{name}, noise {scale:.0%}"
            cases.append(
                Case(f"3 % found by the pairs it states: {told}", POWER_RUNS, _found(noise, scale, drift), power)
            )
    return cases


def _results(random: Random, count: int, between: float, shift: float = 0.0) -> list[Point]:
    """Results of one model over time: runs differ by `between`; the last five are slower by `shift`."""
    levels = TRUE_S * np.exp(between * random.normal(size=count))
    levels[-5:] *= 1 + shift
    levels[random.integers(0, count)] *= 1.2 if random.random() < 0.3 else 1.0  # a single outlier, anywhere
    return [Point(float(at), each, each * 0.995, each * 1.005, "one") for at, each in enumerate(levels.tolist())]


def _history() -> list[Case]:
    def alarm(count: int, between: float) -> Callable[[Random], bool]:
        return lambda random: bool(changes(_results(random, count, between)))

    def seen(random: Random) -> bool:
        return any(change.slower for change in changes(_results(random, 20, 0.005, 0.05)))

    cases = [
        Case(
            f"false alarm of history: {count} results, {between:.1%} between",
            HISTORY_RUNS,
            alarm(count, between),
            Goal(high=1),
        )
        for count in (6, 12, 40)
        for between in (0.005, 0.02)
    ]
    return [*cases, Case("history: 5 % slower for 5 of 20 results is seen", HISTORY_RUNS, seen)]
