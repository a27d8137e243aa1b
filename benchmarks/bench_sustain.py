"""Whether `farm.measure.sustained` finds when a phone throttles, and its plateau: runs on the virtual phone's physics.

A phone with some busy cores warms in simulated time for half an hour; the physics say when its clock falls and where it
ends. Samples scatter by 1 %, in some cases most of it from one sample to the next. Two builds are compared in runs of
ten minutes whose speeds differ as a whole, too. No phone and no command takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Context, Figure
from benchmarks.rates import Case, Goal, rates
from benchmarks.simulated_runs import NOISE, TRUE_S, Noise, Random, ar
from farm.kinds.sustain.compare import compare_ends
from farm.kinds.sustain.worker import Course, report
from farm.measure.comparison import MIN_EFFECT
from farm.measure.conditions import PhoneCondition
from farm.measure.series import FloatArray, SampleSeries, series
from farm.measure.sustained import CourseForm, SustainedSpeed, sustained
from farm.simulation.physics import AMBIENT_C, IDLE_GPU_W, cpu_watts, heat, throttling_of
from farm.simulation.state import PhoneState, ThrottlingStatus

RUN_S = 1800
COMPARED_S = 600
SAMPLES_A_SECOND = 1
NEAR, NEAR_SLOWDOWN = 0.05, 0.03
RUNS = 100
MORE_RUNS = 400  # 0 of 385 shows "under 1 %", and 1 of 100 does not show "at least 95 %"
SEED = 20261127
GOAL = Goal(95)
AT_S = np.arange(RUN_S, dtype=np.float64)
FORMS = {
    CourseForm.STEPS: 1 + 0.15 * (AT_S >= 400) + 0.15 * (AT_S >= 900),
    CourseForm.EXPONENTIAL: 1 - 0.3 * np.expm1(-AT_S / 240),
    CourseForm.OSCILLATION: np.where(AT_S < 300, 1.0, np.where(AT_S % 2, 1.1, 1.3)),
}


def run(context: Context) -> list[Figure]:
    """The rate of each case."""
    return rates(context, _cases, SEED)


def _cases() -> list[Case]:
    found = []
    for cores in (1, 2, 3):
        shares = clock_shares(cores)
        for name, noise in (("independent", ar(0.0)), ("AR(1) 0.8", ar(0.8))):
            about = f"{cores} busy cores, {name} noise"
            found.append(Case(f"throttling and plateau within 5 %: {about}", RUNS, _finds_both(shares, noise), GOAL))
    for form, times in FORMS.items():
        for name, noise in (("independent", ar(0.0)), ("AR(1) 0.8", ar(0.8))):
            about = f"slowdown within 3 %, {form}, {name} noise"
            found.append(Case(about, RUNS, _finds_slowdown(form, times, noise), GOAL))
    swinging = clock_shares(4)
    found.append(Case("throttling within 5 %: 4 cores, swings later", RUNS, _finds_throttling(swinging, ar(0.0)), GOAL))
    for name, noise in (("independent", ar(0.0)), ("AR(1) 0.8", ar(0.8))):
        found.append(Case(f"no throttling seen where none is: {name} noise", MORE_RUNS, _sees_none(noise), Goal(99)))
    for about, runs, apart, goal in (("1 % apart", MORE_RUNS, 0.01, Goal(0, 1)), ("2 % apart", RUNS, 0.02, None)):
        equal = _differs(1.0, apart)
        found.append(Case(f"compare of equal builds: not the same: runs {about}", runs, equal, goal))
    found.append(Case("compare finds 10 % at the end, runs 1 % apart", MORE_RUNS, _differs(1.1, 0.01), GOAL))
    return found


def clock_shares(busy_cores: float) -> FloatArray:
    """The clock's share of its highest in each second of a run that begins on a cool phone."""
    temps_c, status, share = dict(PhoneState().temps_c), ThrottlingStatus.NONE, 1.0
    shares = []
    for _ in range(RUN_S):
        shares.append(share)
        temps_c = heat(temps_c, {"cpu": cpu_watts(busy_cores, share), "gpu": IDLE_GPU_W}, AMBIENT_C, 1.0)
        status, share = throttling_of(temps_c["skin"], status)
    return np.array(shares)


def _samples(random: Random, shares: FloatArray, noise: Noise) -> SampleSeries:
    level_s = TRUE_S / np.repeat(shares, SAMPLES_A_SECOND)
    drawn = level_s * np.exp(NOISE * noise(random, level_s.size))
    return series(drawn, np.arange(level_s.size) / SAMPLES_A_SECOND)


def _finds_both(shares: FloatArray, noise: Noise) -> Callable[[Random], bool | None]:
    knee_s, plateau_s = float(np.argmax(shares < 1.0)), TRUE_S / float(shares[-1])

    def trial(random: Random) -> bool:
        found = sustained(_samples(random, shares, noise))
        return _near(found.throttled_after_s, knee_s) and _near(_plateau_s(found), plateau_s)

    return trial


def _finds_throttling(shares: FloatArray, noise: Noise) -> Callable[[Random], bool | None]:
    knee_s = float(np.argmax(shares < 1.0))
    return lambda random: _near(sustained(_samples(random, shares, noise)).throttled_after_s, knee_s)


def _sees_none(noise: Noise) -> Callable[[Random], bool | None]:
    return lambda random: sustained(_samples(random, np.ones(RUN_S), noise)).throttled_after_s is None


def _finds_slowdown(form: CourseForm, times: FloatArray, noise: Noise) -> Callable[[Random], bool | None]:
    """Whether the slowdown at the end and its form are found; the last two seconds are a period of the oscillation."""
    truth = float(times[-2:].mean() / times[0])

    def trial(random: Random) -> bool:
        found = sustained(_samples(random, 1 / times, noise))
        return found.form is form and math.isclose(found.slowdown, truth, rel_tol=NEAR_SLOWDOWN)

    return trial


def _differs(slower: float, apart: float) -> Callable[[Random], bool | None]:
    """Whether two builds are told apart at the end of their runs, B so many times as slow as A.

    `apart`: the standard deviation of a whole run's speed, relative, which no sample shows.
    """

    def run(random: Random, times: float) -> dict[str, Any]:
        shares = np.full(COMPARED_S, math.exp(apart * random.standard_normal()) / times)
        samples = _samples(random, shares, ar(0.0))
        course = Course(1, samples.seconds.tolist(), samples.start_s.tolist(), [(float(COMPARED_S), PhoneCondition())])
        return report(course, COMPARED_S)

    def trial(random: Random) -> bool:
        return compare_ends(run(random, 1.0), run(random, slower), MIN_EFFECT).answer in ("faster", "slower")

    return trial


def _plateau_s(found: SustainedSpeed) -> float | None:
    return None if found.plateau is None else found.plateau.median_s


def _near(found: float | None, truth: float) -> bool:
    return found is not None and math.isclose(found, truth, rel_tol=NEAR)
