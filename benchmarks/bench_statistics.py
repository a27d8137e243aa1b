"""Whether what farm.measure says is so: simulated runs whose truth is known, thousands of each kind.

Samples scatter by 1 %, the reference kernel by 0.3 %, if not said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from benchmarks import simulated_runs as runs
from benchmarks.harness import Context, Figure, under
from benchmarks.rates import Case, Goal, rates
from benchmarks.simulated_runs import NOMINAL_S, QUIET_NOISE, TRUE_S, Noise, Random, Shape
from farm.measure.amounts import follows_between
from farm.measure.assess import Assessment, assess, more_samples
from farm.measure.comparison import (
    FIND_EFFECT,
    FIRST_PAIRS,
    MIN_EFFECT,
    Comparison,
    ComparisonAnswer,
    compare,
    more_pairs,
)
from farm.measure.conditions import ENOUGH_SAMPLES, Verdict
from farm.measure.interval import student
from farm.measure.regression import Point, changes
from farm.measure.series import FloatArray, SampleSeries
from farm.worker.timing import SamplingPlan, measure, time_pairs

HALF_WIDTH = 0.01
IN_STEP_S = 6.0  # a comparison of two builds on a simulated phone
MAX_SAMPLES = 320
MAX_IN_TIME = 2000  # samples of noise in time: 30 s
MAX_PAIRS = 800
ALL_LOOKS = 2000  # pairs, as `farm compare` takes at most: every look there is
SEED = 20261122
# So many take about six minutes on two idle cores; 0 of 385 shows "under 1 %".
SAMPLED_RUNS = 800
COVERAGE_RUNS = 600
DETECTION_RUNS = 400
ALARM_RUNS = 400
LOOKED_RUNS = 400
POWER_RUNS = 1500
HISTORY_RUNS = 800
IN_TIME_RUNS = 100
COST_RUNS = 200


def run(context: Context) -> list[Figure]:
    """The rate of every property, and whether it meets its goal."""
    return [*rates(context, _cases, SEED), *_cost()]


def _cases() -> list[Case]:
    return [*_coverage(), *_slow_noise(), *_detection(), *_comparison(), *_history()]


# What is asked of them ---------------------------------------------------------------------------------------------


def _sampled(
    random: Random, shape: Shape, nominal_s: float = NOMINAL_S, most: int = MAX_SAMPLES, step_s: float = 1.0
) -> Assessment:
    """As a bench run does it: a first batch, then as many more as it says, until it says enough."""
    whole = runs.series(random, shape(random, most), step_s=step_s)
    count = ENOUGH_SAMPLES
    while True:
        found = assess(
            SampleSeries(whole.seconds[:count], whole.start_s[:count], whole.reference_s[:count]),
            nominal_s,
            half_width=HALF_WIDTH,
        )
        more = more_samples(found, HALF_WIDTH, most=most)
        if more == 0:
            return found
        count += more


def _sampled_covers(shape: Shape) -> Callable[[Random], bool]:
    return lambda random: _covers(_sampled(random, shape))


def _in_time(noise: Noise) -> Callable[[Random], bool | None]:
    return _trusted_covers(runs.shape(noise))


def _trusted_covers(shape: Shape) -> Callable[[Random], bool | None]:
    """Of trusted runs of at most 30 s, whether the interval has the true median."""

    def trial(random: Random) -> bool | None:
        found = _sampled(random, shape, most=MAX_IN_TIME, step_s=runs.STEP_S)
        return _covers(found) if _trusted(found) else None

    return trial


def _estimated_covers(shape: Shape, between: float) -> Callable[[Random], bool]:
    """The nominal is the median of 5 benches' references, whose levels differ by `between`."""

    def trial(random: Random) -> bool:
        readings = runs.REFERENCE_NOISE * random.normal(size=(5, ENOUGH_SAMPLES)) + between * random.normal(size=(5, 1))
        nominal_s = NOMINAL_S * math.exp(float(np.median(np.median(readings, axis=1))))
        return _covers(_sampled(random, shape, nominal_s))

    return trial


def _covers(found: Assessment) -> bool:
    return found.estimate.low_s <= TRUE_S <= found.estimate.high_s


def _coverage() -> list[Case]:
    goal = Goal(93, 97)
    least = Goal(93)  # where the clock drifts, how far the model follows it is in the interval too
    shapes: list[tuple[str, Shape, Goal | None]] = [
        ("iid", runs.shape(runs.normal), goal),
        ("iid, one-sided", runs.shape(runs.one_sided), goal),
        ("linear drift to +-10 %", runs.shape(runs.normal, runs.drift), least),
        ("drift and AR(1) 0.3", runs.shape(runs.ar(0.3), runs.drift), least),
        ("drift and AR(1) 0.5", runs.shape(runs.ar(0.5), runs.drift), least),
        ("drift and AR(1) 0.7", runs.shape(runs.ar(0.7), runs.drift), least),
        ("t with 3 degrees", runs.shape(runs.heavy), None),
        ("bursts of outliers", runs.shape(runs.bursts), None),
    ]
    cases = [
        Case(
            f"coverage, sampled to +-1 %: {name}",
            SAMPLED_RUNS if goal else DETECTION_RUNS,
            _sampled_covers(shape),
            goal,
        )
        for name, shape, goal in shapes
    ]
    for between, wanted in ((0.0, least), (0.005, least)):
        told = f"coverage, sampled to +-1 %: iid, nominal of 5 benches {between:.1%} apart"
        cases.append(Case(told, COVERAGE_RUNS, _estimated_covers(runs.shape(runs.normal), between), wanted))
    warm = _fixed(runs.shape(runs.normal, runs.flat, runs.warming(0.05)), 120, _covers)
    cases.append(Case("coverage, 120 samples: warm-up of 5 % of the run", DETECTION_RUNS, warm))
    for count in (40, 80, 160):
        for name, noise in (("iid", runs.normal), ("AR(1) 0.7", runs.ar(0.7))):
            shape = runs.shape(noise, runs.drift)
            cases.append(
                Case(f"coverage, {count} samples: drift, {name}", COVERAGE_RUNS, _fixed(shape, count, _covers), least)
            )
    four = _fixed(runs.shape(runs.normal, runs.drift), ENOUGH_SAMPLES, _covers, 4)
    cases.append(Case(f"coverage, {ENOUGH_SAMPLES} samples, 4 to a reading: drift, iid", COVERAGE_RUNS, four, least))
    return cases


def _fixed(shape: Shape, count: int, holds: Callable[[Assessment], bool], beside: int = 1) -> Callable[[Random], bool]:
    def trial(random: Random) -> bool:
        return holds(assess(runs.series(random, shape(random, count), beside), NOMINAL_S, half_width=10 * HALF_WIDTH))

    return trial


def _slow_noise() -> list[Case]:
    ou = runs.ornstein_uhlenbeck
    models: list[tuple[str, Noise, Goal | None]] = [
        *((f"Ornstein-Uhlenbeck, {1e3 * each:g} ms", ou(each), Goal(93)) for each in (0.05, 0.1, 0.2)),
        ("AR(1) 0.8", runs.ar(0.8), Goal(93)),
        ("half of it Ornstein-Uhlenbeck, 200 ms", runs.with_noise(ou(0.2), 0.5), None),
        *((f"4 bursts of 80 ms a second, {each} sigma high", runs.dense_bursts(each), Goal(93)) for each in (1, 2, 5)),
        *((f"1/f to {each} s", runs.flicker(each), Goal(93)) for each in (3, 12, 60)),
        ("t with 3 degrees", runs.heavy, Goal(93)),
        ("a tenth are spikes", runs.spikes, Goal(93)),
        ("a sine of 1 s", runs.periodic(1.0, 1.5), Goal(93)),
        ("half of it Ornstein-Uhlenbeck, 1 s", runs.with_noise(ou(1.0), 0.5), None),
        ("two clocks 5 % apart, 0.5 s each time", runs.two_speeds(5, 0.5), None),
        ("two clocks 3 % apart, 2 s each time", runs.two_speeds(3, 2.0), None),
    ]
    cases = [Case("coverage of trusted runs in time: iid", COVERAGE_RUNS, _in_time(runs.normal), Goal(93, 97))]
    for name, noise, goal in models:
        cases.append(Case(f"coverage of trusted runs in time: {name}", IN_TIME_RUNS, _in_time(noise), goal))
    for clock, speed in (
        ("1 to 8 % down", runs.slower),
        ("that drifts to +-10 %", runs.drift),
        ("that steps by 2 to 4 %", runs.stepping),
        ("with two levels 2 to 4 % apart", runs.two_clocks),
    ):
        for share in (1.0, 0.5, 0.0):
            followed = _trusted_covers(runs.following(share, speed))
            told = f"coverage of trusted runs in time: a clock {clock}, followed by {share:.0%}"
            cases.append(Case(told, IN_TIME_RUNS, followed, Goal(93)))
    for share in (1.0, 0.8, 0.0):
        told = f"coverage of trusted runs after ten benches at clocks 3 % apart, followed by {share:.0%}"
        cases.append(Case(told, IN_TIME_RUNS, _after_benches(share), Goal(93)))
    for name, noise in (
        ("half of it Ornstein-Uhlenbeck, 1 s", runs.with_noise(ou(1.0), 0.5)),
        ("two clocks 3 % apart, 2 s each time", runs.two_speeds(3, 2.0)),
        ("a random walk of 0.05 sigma a sample", runs.wandering(0.05)),
        ("a sine of 5 s", runs.periodic(5.0, 1.5)),
    ):
        cases.append(Case(f"not trusted, 30 s: {name}", IN_TIME_RUNS, _whole(noise, _not_trusted), Goal(95)))
    for name, noise, goal in (
        ("Ornstein-Uhlenbeck, 100 ms", ou(0.1), Goal(95)),
        ("a third of it 1/f to 60 s", runs.with_noise(runs.flicker(60), 0.33), Goal(70)),
        ("1/f to 12 s", runs.flicker(12), None),
        ("4 bursts of 80 ms a second, 5 sigma high", runs.dense_bursts(5), None),
    ):
        cases.append(Case(f"trusted, 30 s: {name}", IN_TIME_RUNS, _whole(noise, _trusted), goal))
    return cases


def _after_benches(share: float) -> Callable[[Random], bool | None]:
    """Of trusted runs at a constant clock, whether the interval has the true median."""

    def trial(random: Random) -> bool | None:
        clocks = 1 + 0.03 * random.normal(size=10)
        medians_s = TRUE_S * clocks**share * np.exp(QUIET_NOISE * random.normal(size=clocks.size))
        clock = 1 + 0.03 * random.normal()
        drawn = runs.following(share, lambda _, count: np.full(count, clock))(random, MAX_SAMPLES)
        known = follows_between(medians_s, NOMINAL_S * clocks)
        found = assess(runs.series(random, drawn), NOMINAL_S, half_width=HALF_WIDTH, follows=known)
        return _covers(found) if _trusted(found) else None

    return trial


def _whole(noise: Noise, holds: Callable[[Assessment], bool]) -> Callable[[Random], bool]:
    def trial(random: Random) -> bool:
        drawn = runs.series(random, runs.shape(noise)(random, MAX_IN_TIME), step_s=runs.STEP_S)
        return holds(assess(drawn, NOMINAL_S, half_width=HALF_WIDTH))

    return trial


def _cost() -> list[Figure]:
    """Samples that independent noise costs, and how many Student's t of their mean would need for the same interval."""
    random = np.random.default_rng(SEED)
    found = [_sampled(random, runs.shape(runs.normal), most=MAX_IN_TIME, step_s=runs.STEP_S) for _ in range(COST_RUNS)]
    t_width = student(0.975, 59) * runs.NOISE  # of one sample
    ratios = [each.used * (each.estimate.half_width / t_width) ** 2 for each in found]
    return [
        under("samples of a run to +-1 %, iid (mean)", float(np.mean([each.count for each in found])), "samples", 90),
        under("samples, over those of a t interval as wide, iid", float(np.median(ratios)), "times", 2),
    ]


def _not_trusted(found: Assessment) -> bool:
    return found.verdict is not Verdict.TRUSTED


def _trusted(found: Assessment) -> bool:
    return found.verdict is Verdict.TRUSTED


def _detection() -> list[Case]:
    goal = Goal(99)
    bad: list[tuple[str, Shape, Goal | None]] = []
    for name, speed, wanted in (
        ("a throttling step", runs.throttled, goal),
        ("two clocks, mixed", runs.levels(2), goal),
        ("two clocks, dwelling", runs.dwelling, goal),
        ("three clocks, mixed", runs.levels(3), None),
        ("a dip of 6 samples", runs.dip, None),
    ):
        bad.append((f"{name}, model and reference", runs.shape(runs.normal, speed), wanted))
        bad.append((f"{name}, model alone", runs.shape(runs.normal, runs.flat, speed), wanted))
    bad.append(("warming up all the time, model alone", runs.shape(runs.normal, runs.flat, runs.warming(0.3)), None))
    bad.append(("a throttling step, AR(1) 0.5, model and reference", runs.shape(runs.ar(0.5), runs.throttled), goal))
    bad.append(("two clocks, AR(1) 0.5, model alone", runs.shape(runs.ar(0.5), runs.flat, runs.levels(2)), goal))
    bad.append(("stops of 5 samples' time", runs.shape(runs.normal, runs.flat, runs.stops), None))
    cases = [
        Case(f"not trusted, {count} samples: {name}", DETECTION_RUNS, _fixed(shape, count, _not_trusted), wanted)
        for count in (ENOUGH_SAMPLES, 120)
        for name, shape, wanted in bad
        if wanted or count == ENOUGH_SAMPLES
    ]
    for name, shape in (
        ("a throttling step", runs.shape(runs.normal, runs.throttled)),
        ("two clocks, mixed", runs.shape(runs.normal, runs.levels(2))),
    ):
        blocked = _fixed(shape, ENOUGH_SAMPLES, _not_trusted, 4)
        told = f"not trusted, {ENOUGH_SAMPLES} samples, 4 to a reading: {name}, model and reference"
        cases.append(Case(told, DETECTION_RUNS, blocked, goal))
    for name, run_s in (("10 ms", TRUE_S), ("0.3 s", 0.3)):
        told = f"not trusted, samples of {name}: the phone stands still for 50 ms of every 200"
        cases.append(Case(told, DETECTION_RUNS, _stopped(run_s)))
    good = [
        ("iid", runs.shape(runs.normal), Goal(95)),
        ("drift, AR(1) 0.5", runs.shape(runs.ar(0.5), runs.drift), None),
        ("one-sided", runs.shape(runs.one_sided), None),
        ("t with 3 degrees", runs.shape(runs.heavy), None),
        ("log-normal, sigma 1", runs.shape(runs.very_skewed), None),
        ("bursts of outliers", runs.shape(runs.bursts), None),
    ]
    return cases + [
        Case(f"trusted, 120 samples: {name}", DETECTION_RUNS, _fixed(shape, 120, _trusted), wanted)
        for name, shape, wanted in good
    ]


def paired(
    random: Random, noise: Noise, scale: float, effect: float, drift: float, most: int
) -> tuple[FloatArray, FloatArray]:
    """Seconds of A and of B, slower by `effect`, in rounds A B B A; noise in units of `scale`."""
    count = 2 * most
    times = TRUE_S * np.exp(scale * noise(random, count) + drift * np.arange(count) / FIRST_PAIRS / 2)
    rounds = times.reshape(-1, 4)
    return rounds[:, [0, 3]].ravel(), rounds[:, [1, 2]].ravel() * (1 + effect)


def compared_whole(a_s: FloatArray, b_s: FloatArray, min_effect: float, most: int) -> Comparison:
    """A comparison that takes more pairs until `compare` wants no more."""
    pairs = FIRST_PAIRS
    while True:
        found = compare(a_s[:pairs], b_s[:pairs], min_effect=min_effect)
        more = more_pairs(found, most=most)
        if more == 0:
            return found
        pairs += more


def _false_alarm(
    noise: Noise, scale: float, drift: float, min_effect: float = MIN_EFFECT, most: int = MAX_PAIRS
) -> Callable[[Random], bool]:
    """Two equal builds, compared until `compare` wants no more pairs."""

    def trial(random: Random) -> bool:
        found = compared_whole(*paired(random, noise, scale, 0.0, drift, most), min_effect, most)
        return found.answer in (ComparisonAnswer.FASTER, ComparisonAnswer.SLOWER)

    return trial


def _in_step(random: Random, period_s: float, stop_s: float) -> bool:
    """Two equal builds on a phone that does something else at a fixed rate."""
    phone = runs.Phone(random, period_s, stop_s)
    a, b = phone.model(TRUE_S), phone.model(TRUE_S)
    found = time_pairs(a, b, measure_s=IN_STEP_S, clock=phone.clock).comparison
    return found.answer in (ComparisonAnswer.FASTER, ComparisonAnswer.SLOWER)


def _any_rate(random: Random) -> bool:
    period_s = math.exp(random.uniform(math.log(0.005), math.log(0.2)))
    return _in_step(random, period_s, period_s * random.uniform(0.05, 0.2))


def _stopped(run_s: float) -> Callable[[Random], bool]:
    """A bench of a phone that stands still for 50 ms of every 200."""

    def trial(random: Random) -> bool:
        phone = runs.Phone(random, 0.2, 0.05)
        _, found = measure(
            phone.model(run_s),
            phone.reference,
            SamplingPlan(HALF_WIDTH, 30.0),
            nominal_s=runs.REFERENCE_S,
            clock=phone.clock,
        )
        return _not_trusted(found)

    return trial


def _found(noise: Noise, scale: float, drift: float) -> Callable[[Random], bool]:
    """A 3 % slower build is called so by fresh pairs, as many as a comparison of the first 40 pairs asked for."""

    def trial(random: Random) -> bool:
        pilot = paired(random, noise, scale, FIND_EFFECT, drift, FIRST_PAIRS)
        pairs = compare(pilot[0], pilot[1]).needed_pairs
        fresh = paired(random, noise, scale, FIND_EFFECT, drift, pairs)
        return compare(fresh[0], fresh[1]).answer is ComparisonAnswer.SLOWER

    return trial


def _comparison() -> list[Case]:
    cases = []
    for name, noise, drift in (
        ("iid", runs.normal, 0.0),
        ("AR(1) 0.7", runs.ar(0.7), 0.0),
        ("drift 10 %", runs.normal, 0.1),
        ("t with 3 degrees", runs.heavy, 0.0),
    ):
        goal = None if noise is runs.heavy else Goal(high=1)
        power = None if noise is runs.heavy else Goal(95)
        for scale in (0.01, 0.04) if noise is not runs.heavy else (0.01,):
            told = f"{name}, noise {scale:.0%}"
            cases.append(Case(f"false alarm of compare: {told}", ALARM_RUNS, _false_alarm(noise, scale, drift), goal))
        for scale in (0.01, 0.02):
            told = f"{name}, noise {scale:.0%}"
            cases.append(
                Case(f"3 % found by the pairs it states: {told}", POWER_RUNS, _found(noise, scale, drift), power)
            )
    for noise, scale, min_effect, name in (
        (runs.normal, 0.02, 0.002, "iid"),
        (runs.normal, 0.01, 0.001, "iid"),
        (runs.ar(0.7), 0.02, 0.002, "AR(1) 0.7"),
    ):
        told = f"false alarm of compare --min-effect {min_effect:g}: {name}, noise {scale:.0%}"
        alarm = _false_alarm(noise, scale, 0.0, min_effect, ALL_LOOKS)
        cases.append(Case(told, LOOKED_RUNS, alarm, Goal(high=1)))
    frame = "false alarm of compare: the phone stops for 2 ms of every 16.7 ms"
    cases.append(Case(frame, LOOKED_RUNS, lambda random: _in_step(random, 1 / 60, 0.002), Goal(high=1)))
    rates = "false alarm of compare: stops at a fixed rate (5 to 200 ms, 5 to 20 % of them)"
    return [*cases, Case(rates, LOOKED_RUNS, _any_rate, Goal(high=1))]


def _results(random: Random, noise: Noise, count: int, between: float, shift: float = 0.0) -> list[Point]:
    """Results of one model over time: runs differ by `between`; the last five are slower by `shift`."""
    levels = TRUE_S * np.exp(between * noise(random, count))
    levels[-5:] *= 1 + shift
    levels[random.integers(0, count)] *= 1.2 if random.random() < 0.3 else 1.0  # a single outlier, anywhere
    return [Point(float(at), each, each * 0.995, each * 1.005, "one") for at, each in enumerate(levels.tolist())]


def _two_levels(count: int) -> Callable[[Random], bool]:
    """Each result at one of two levels 5 % apart, by chance: nothing changed."""

    def trial(random: Random) -> bool:
        levels = TRUE_S * np.exp(0.003 * random.normal(size=count)) * (1 + 0.05 * (random.random(count) < 0.5))
        return bool(changes([Point(float(at), s, s * 0.995, s * 1.005, "one") for at, s in enumerate(levels.tolist())]))

    return trial


def _history() -> list[Case]:
    def alarm(noise: Noise, count: int, between: float) -> Callable[[Random], bool]:
        return lambda random: bool(changes(_results(random, noise, count, between)))

    def seen(random: Random) -> bool:
        return any(change.rose for change in changes(_results(random, runs.normal, 20, 0.005, 0.05)))

    cases = [
        Case(
            f"false alarm of history: {count} results, {between:.1%} between, {name}",
            HISTORY_RUNS,
            alarm(noise, count, between),
            Goal(high=1),
        )
        for name, noise in (("iid", runs.normal), ("AR(1) 0.8", runs.ar(0.8)), ("a tenth outliers", runs.outliers))
        for count in (6, 12, 40)
        for between in (0.005, 0.02)
    ]
    cases += [
        Case(f"false alarm of history: {count} results at two levels 5 % apart", HISTORY_RUNS, _two_levels(count))
        for count in (6, 12, 40)
    ]
    return [*cases, Case("history: 5 % slower for 5 of 20 results is seen", HISTORY_RUNS, seen)]
