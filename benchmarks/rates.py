"""Rates of properties over simulated runs, with goals: what benchmarks of statistics are made of.

Each rate is a mean over runs, with its own 95 % interval (Wilson) behind its name. A goal is met when that interval
lies inside it, missed when it lies outside, else not shown: more runs would tell. The exit code goes by the rates
themselves, of few runs by their intervals.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.harness import Context, Figure
from benchmarks.simulated_runs import Random
from farm.measure.quality import wilson

PROCESSES = 2
MIN_COUNT = 150  # runs; a rate of fewer misses its goal only where its interval does
MAX_WRONG = 0.05  # of all runs: where few are trusted, so many may be so wrongly


@dataclass(frozen=True)
class Goal:
    """A rate's lower and upper limit, in percent."""

    low: float = 0.0
    high: float = 100.0

    def holds(self, rate: float) -> bool:
        """Whether a rate in percent is inside; "under" excludes its limit."""
        return self.low <= rate <= self.high and (self.low > 0 or rate < self.high)

    def verdict(self, low: float, high: float) -> str:
        """What the interval of a rate, in percent, says of it."""
        if self.holds(low) and self.holds(high):
            return "met"
        return "missed" if high < self.low or low > self.high else "not shown"

    def __str__(self) -> str:
        if self.high == 100:
            return f"at least {self.low:g} %"
        return f"under {self.high:g} %" if self.low == 0 else f"{self.low:g}-{self.high:g} %"


@dataclass(frozen=True)
class Case:
    """One property to measure: `trial` says of one simulated run whether it held; None: the run does not count."""

    name: str
    runs: int
    trial: Callable[[Random], bool | None]
    goal: Goal | None = None


def rates(context: Context, cases_of: Callable[[], Sequence[Case]], seed: int) -> list[Figure]:
    """The rate of every case, and whether it meets its goal.

    `cases_of` is a module's function, called in each process; `seed` is that of every case: neither its name nor its
    place changes what it draws.
    """
    cases = cases_of()
    context.say(f"{sum(case.runs for case in cases)} simulated runs of {len(cases)} kinds")
    figures = []
    processes = min(PROCESSES, os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        for case, held in zip(cases, pool.map(partial(_held, cases_of, seed), range(len(cases))), strict=True):
            figures.append(_figure(case, held))
            context.say(f"{figures[-1].value:5.1f} %  {figures[-1].figure}  {figures[-1].goal}")
    return figures


def _held(cases_of: Callable[[], Sequence[Case]], seed: int, number: int) -> tuple[int, int]:
    """In how many runs it held, of how many that count."""
    case = cases_of()[number]
    random = np.random.default_rng(seed)
    found = [held for held in (case.trial(random) for _ in range(case.runs)) if held is not None]
    return sum(found), len(found)


def _figure(case: Case, counted: tuple[int, int]) -> Figure:
    held, of = counted
    if not of:
        return Figure(f"{case.name} (no run of {case.runs} counts)", 100.0, "%", goal="", ok=True)
    rate = 100 * held / of
    low, high = (100 * end for end in wilson(held, of))
    goal = "" if case.goal is None else f"{case.goal}: {case.goal.verdict(low, high)}"
    shown = of >= MIN_COUNT or (case.goal is not None and case.goal.verdict(low, high) == "missed")
    few_wrong = of < case.runs and of - held <= MAX_WRONG * case.runs
    ok = case.goal is None or case.goal.holds(rate) or not shown or few_wrong
    counted_of = "" if of == case.runs else f"; {of} of {case.runs} count"
    return Figure(f"{case.name} ({held}/{of}, {low:.1f}-{high:.1f}{counted_of})", rate, "%", goal=goal, ok=ok)
