"""How well `farm history` finds planted changes in simulated histories, beside Apache Otava where it is installed.

Otava stays out of farm's environment: `OTAVA_PYTHON` names the interpreter of another one, with
`pip install apache-otava` (default: this interpreter). Without it `stock` is empty. HISTORY_RUNS is the number of
histories of each kind; HISTORY_WIDE=1 adds noise of 2 % and 20 results, which have no goals.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import numpy as np

from benchmarks.harness import Context, Figure, under
from benchmarks.simulated_runs import TRUE_S, Random, ar
from farm.measure.regression import Point, changes
from farm.measure.series import FloatArray

SEED = 20261130
NEAR = 2  # results by which an edge may be off
MAX_FALSE = 1.0  # percent
DELAY_AT, DELAY_COUNT = 60, 80
MANY = 10_000
Edges = list[int]
Finder = Callable[[Sequence[list[float]]], list[Edges]]
# Read histories, write the changes that Otava finds with its recommended window and a p-value as of its documentation.
_OTAVA = """
import json, sys
from otava.analysis import compute_change_points
def find(times):
    return [int(c.index) for c in compute_change_points(times, window_len=50, max_pvalue=0.001, min_magnitude=0.02)[0]]
for line in sys.stdin:
    print(json.dumps([find(times) for times in json.loads(line)]), flush=True)
"""


def run(context: Context) -> list[Figure]:
    """F1 of each noise, size and planted change; false histories; excursions; delay; time."""
    runs = int(os.environ.get("HISTORY_RUNS", "100"))
    with _otava(context) as stock:
        return _all(context, runs, stock)


def _all(context: Context, runs: int, stock: Finder | None) -> list[Figure]:
    wide = bool(os.environ.get("HISTORY_WIDE"))
    figures: list[Figure] = []
    for count in (30, 80, 200, *(20,) * wide):
        for sigma in (0.006, 0.002, *(0.02,) * wide):
            goals = count >= 30 and sigma < 0.02
            for noise in NOISES:
                figures += _figures(noise, count, sigma, runs, stock, goals=goals)
                context.say(f"{count} results, {sigma:.1%}, {noise}")
    return [*figures, *_delays(runs, stock), _time()]


# Histories ---------------------------------------------------------------------------------------------------------


def _drift(random: Random, count: int) -> FloatArray:
    period = math.exp(random.uniform(math.log(40), math.log(160)))
    return np.asarray(0.03 * np.sin(2 * np.pi * (np.arange(count) / period + random.random())))


def _outliers(random: Random, count: int) -> FloatArray:
    return np.asarray(np.abs(0.15 * random.normal(size=count)) * (random.random(count) < 0.1))


def _weekly(random: Random, count: int) -> FloatArray:
    return np.asarray(0.01 * np.sin(2 * np.pi * (np.arange(count) / 7 + random.random())))


def _builds(apart: float) -> Callable[[Random, int], FloatArray]:
    return lambda random, count: np.asarray(apart * (random.random(count) < 0.5))


# Added to independent noise of a standard deviation; AR(0.8) stands for that noise.
NOISES: dict[str, Callable[[Random, int], FloatArray] | None] = {
    "independent": lambda _, count: np.zeros(count),
    "AR(0.8)": None,
    "a tenth outliers": _outliers,
    "drift with heat": _drift,
    "builds 1.2 % apart": _builds(0.012),
    "builds 3 % apart": _builds(0.03),
    "weekly": _weekly,
}


def _noise(name: str, random: Random, count: int, sigma: float) -> FloatArray:
    added = NOISES[name]
    if added is None:
        return sigma * ar(0.8)(random, count)
    return sigma * random.normal(size=count) + added(random, count)


def _planted(name: str, random: Random, count: int) -> tuple[FloatArray, Edges]:
    """Levels (log) and where they change. An eighth of the results at either end is left alone."""
    levels, edge = np.zeros(count), max(count // 8, 4)
    edges: Edges = []
    if name.startswith("step"):
        edges = [int(random.integers(edge, count - edge + 1))]
    elif name == "newest 3":
        edges = [count - 3]
    elif name.startswith("fixed"):
        length = 4 if name == "fixed 5 %" else int(random.integers(4, min(25, count // 3)))
        first = int(random.integers(edge, count - length - edge + 1))
        edges = [first, first + length]
    if edges:
        effect = {"step 3 %": 0.03, "fixed any": float(random.choice([0.05, 0.1, 0.5, 1.0]))}.get(name, 0.05)
        levels[edges[0] : edges[1] if len(edges) > 1 else None] = math.log1p(effect)
    return levels, edges


PLANTED = ("step 3 %", "step 5 %", "newest 3", "fixed 5 %", "fixed any")


def _histories(noise: str, planted: str, count: int, sigma: float, runs: int) -> Iterator[tuple[list[float], Edges]]:
    for number in range(runs):
        random = np.random.default_rng([SEED, number, count, round(sigma * 1e5), len(planted), len(noise)])
        levels, edges = _planted(planted, random, count)
        yield (TRUE_S * np.exp(levels + _noise(noise, random, count, sigma))).tolist(), edges


# Finding and counting ----------------------------------------------------------------------------------------------


def _points(times: list[float]) -> list[Point]:
    return [Point(float(at), each, each * 0.998, each * 1.002, "one") for at, each in enumerate(times)]


def _farm(histories: Sequence[list[float]]) -> list[Edges]:
    return [[change.index for change in changes(_points(times))] for times in histories]


@contextmanager
def _otava(context: Context) -> Iterator[Finder | None]:
    """A function that asks a process with Otava; None where it is not installed."""
    python = os.environ.get("OTAVA_PYTHON", sys.executable)
    pipe = subprocess.PIPE
    with subprocess.Popen([python, "-c", _OTAVA], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        asked, answers, errors = process.stdin, process.stdout, process.stderr
        assert asked is not None
        assert answers is not None
        assert errors is not None

        def found(histories: Sequence[list[float]]) -> list[Edges]:
            asked.write(json.dumps(histories) + "\n")
            asked.flush()
            return [[int(each) for each in edges] for edges in json.loads(answers.readline())]

        try:
            found([[1.0] * 20])
        except (OSError, ValueError):
            why = (errors.read().strip().splitlines() or ["no answer"])[-1]
            context.say(f"without Otava: {python}: {why}; OTAVA_PYTHON names an interpreter that has it")
            yield None
        else:
            yield found
            asked.close()


def _score(found: Sequence[Edges], true: Sequence[Edges]) -> tuple[float, float, float]:
    """F1, recall and precision of edges, each found edge for one true edge at most."""
    hits = 0
    for edges, planted in zip(found, true, strict=True):
        left = list(edges)
        for edge in planted:
            near = [each for each in left if abs(each - edge) <= NEAR]
            hits += bool(near)
            left = [each for each in left if each not in near[:1]]
    of_true, of_found = sum(map(len, true)), sum(map(len, found))
    return 2 * hits / (of_true + of_found), hits / of_true, hits / max(of_found, 1)


def _figures(noise: str, count: int, sigma: float, runs: int, stock: Finder | None, *, goals: bool) -> Iterator[Figure]:
    where = f"{count} results, {sigma:.1%}, {noise}"
    quiet = [times for times, _ in _histories(noise, "none", count, sigma, runs)]
    rate, theirs = (100 * float(np.mean(list(map(bool, find(quiet))))) if find else None for find in (_farm, stock))
    yield under(f"false histories: {where}", rate or 0.0, "%", MAX_FALSE if goals else None, theirs)
    for planted in PLANTED:
        histories = list(_histories(noise, planted, count, sigma, runs))
        times, true = [each for each, _ in histories], [edges for _, edges in histories]
        answers = [changes(_points(each)) for each in times]
        f1, recall, precision = _score([[change.index for change in each] for each in answers], true)
        rival = _score(stock(times), true) if stock else None
        name = f"F1 of {planted}: {where} (recall {recall:.3f}, precision {precision:.3f}"
        name += f"; Otava {rival[1]:.3f}, {rival[2]:.3f})" if rival else ")"
        if rival and goals:
            yield Figure(name, f1, "", rival[0], "at least Otava's", f1 >= rival[0])
        else:
            yield Figure(name, f1, "", rival[0] if rival else None)
        if planted.startswith("fixed") and sigma < 0.02:
            listed = [
                any(
                    abs(change.index - first) <= NEAR and change.until is not None and abs(change.until - back) <= NEAR
                    for change in answer
                )
                for answer, (first, back) in zip(answers, true, strict=True)
            ]
            yield Figure(f"{planted} listed from .. to: {where}", 100 * float(np.mean(listed)), "%")


def _delays(runs: int, stock: Finder | None) -> Iterator[Figure]:
    """Results until a step of 5 % is found, 20 at most."""
    for noise in NOISES:
        waited: dict[str, list[int]] = {"farm": [], "otava": []}
        for number in range(max(runs // 4, 1)):
            random = np.random.default_rng([SEED, number, len(noise)])
            levels = math.log(1.05) * (np.arange(DELAY_COUNT) >= DELAY_AT)
            times = (TRUE_S * np.exp(levels + _noise(noise, random, DELAY_COUNT, 0.006))).tolist()
            parts = [times[:end] for end in range(DELAY_AT + 1, DELAY_COUNT + 1)]
            for name, find in (("farm", _farm), ("otava", stock)):
                if find:
                    seen = [any(abs(each - DELAY_AT) <= NEAR for each in edges) for edges in find(parts)]
                    waited[name].append(seen.index(True) + 1 if any(seen) else len(parts) + 1)
        theirs = float(median(waited["otava"])) if waited["otava"] else None
        yield Figure(f"results until 5 % is found: 0.6%, {noise}", float(median(waited["farm"])), "results", theirs)


def _time() -> Figure:
    times = next(_histories("drift with heat", "step 5 %", MANY, 0.006, 1))[0]
    points = _points(times)
    begun = time.process_time()
    changes(points)
    return under(f"{MANY:,} results, drift with heat", time.process_time() - begun, "s of CPU", 1.0)
