"""Whether `farm ci` fails builds that are slower, and never others: simulated results whose truth is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks import simulated_runs as runs
from benchmarks.bench_statistics import ALARM_RUNS, ALL_LOOKS, SEED, compared_whole, paired
from benchmarks.harness import Context, Figure
from benchmarks.rates import Case, Goal, rates
from benchmarks.simulated_runs import TRUE_S, Noise, Random
from farm.measure.comparison import MIN_EFFECT
from farm.measure.regression import Point, ratio_to_baseline
from farm.results.ci import CiAnswer, FailLimit, answer_of, compared

BASELINE_RUNS = 3000


def run(context: Context) -> list[Figure]:
    """How often unchanged builds fail, and slower ones."""
    return rates(context, _cases, SEED)


def _cases() -> list[Case]:
    return [*_ci_bench(), *_ci_compare()]


def _fails(noise: Noise, count: int, between: float, effect: float, limit: FailLimit) -> Callable[[Random], bool]:
    """Whether `farm ci bench` fails: two results that are slower by `effect`, against so many of the baseline."""

    def trial(random: Random) -> bool:
        levels = TRUE_S * np.exp(between * noise(random, count + 2))
        levels[-2:] *= 1 + effect
        *baseline, first, second = (
            Point(float(at), s, s * 0.995, s * 1.005, "one") for at, s in enumerate(levels.tolist())
        )
        found = [ratio_to_baseline(baseline, new) for new in (first, second)]
        return all(answer_of(each.low, each.high, limit) is CiAnswer.SLOWER for each in found)

    return trial


def _ci_bench() -> list[Case]:
    any_slower, by_2 = FailLimit.parse("slower by 0 %"), FailLimit.parse("slower by 2 %")
    cases = [
        Case(
            f"false alarm of ci bench, {limit.text}: {count} results, {between:.1%} between, {name}",
            BASELINE_RUNS,
            _fails(noise, count, between, 0.0, limit),
            Goal(high=1),
        )
        for name, noise in (("iid", runs.normal), ("AR(1) 0.8", runs.ar(0.8)), ("a tenth outliers", runs.outliers))
        for count in (3, 10, 20)
        for between in (0.005, 0.02)
        for limit in (any_slower, by_2)
        if limit is by_2 or name == "iid"
    ]
    for effect, limit in ((0.03, any_slower), (0.05, by_2)):
        told = f"ci bench, {limit.text}: {effect:.0%} slower is found, 20 results, 0.5% between, iid"
        cases.append(Case(told, BASELINE_RUNS, _fails(runs.normal, 20, 0.005, effect, limit), Goal(95)))
    return cases


def _ci_compare() -> list[Case]:
    def slower(scale: float, effect: float, limit: FailLimit) -> Callable[[Random], bool]:
        def trial(random: Random) -> bool:
            found = compared_whole(*paired(random, runs.normal, scale, effect, 0.0, ALL_LOOKS), MIN_EFFECT, ALL_LOOKS)
            return compared(found.to_wire(), "net", "phone", "main", limit).answer is CiAnswer.SLOWER

        return trial

    cases = []
    for scale in (0.01, 0.02):
        for percent, effect, goal in ((1, 0.0, Goal(high=1)), (1, 0.03, Goal(95)), (2, 0.05, Goal(95))):
            limit = FailLimit.parse(f"slower by {percent} %")
            what = f"{effect:.0%} slower is found" if effect else "false alarm"
            told = f"ci compare, {limit.text}: {what}, iid, noise {scale:.0%}"
            cases.append(Case(told, ALARM_RUNS, slower(scale, effect, limit), goal))
    return cases
