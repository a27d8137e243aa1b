"""What every benchmark shares: figures with goals, the table, the one JSON line, the exit code.

A benchmark is a module `benchmarks/bench_NAME.py` with `def run(context: Context) -> list[Figure]`.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from farm.common.errors import ExitCode, FarmError, HostError
from farm.control.client import ControlClient
from farm.simulation.postgres import check_programs

PREFIX = "bench_"
ASK_EVERY_S = 0.05
ONLY_BY_NAME = frozenset({"soak", "lab_chaos", "versions"})  # these take as long as they are told to; not part of "all"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `stock` is the rival's from the same run, `goal` what was promised, in words."""

    figure: str
    value: float
    unit: str
    stock: float | None = None
    goal: str = ""
    ok: bool = True


def under(figure: str, value: float, unit: str, goal: float | None, stock: float | None = None) -> Figure:
    """A number that was promised to stay below `goal`; None: nothing was promised of it."""
    if goal is None:
        return Figure(figure, value, unit, stock)
    return Figure(figure, value, unit, stock, f"under {goal:g}", value < goal)


@dataclass(frozen=True, slots=True)
class Context:
    """What a benchmark is given."""

    folder: Path  # empty, its own, deleted afterwards
    say: Callable[[str], None] = field(default=lambda text: print(f"  {text}", file=sys.stderr, flush=True))


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest of `values` that `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def cpu_percent(processes: Sequence[psutil.Process], seconds: float) -> list[float]:
    """Percent of a core that each needs during the next `seconds`."""
    before, begun = [sum(each.cpu_times()[:2]) for each in processes], time.monotonic()
    time.sleep(seconds)
    passed_s = time.monotonic() - begun
    return [
        100 * (sum(each.cpu_times()[:2]) - used_s) / passed_s for each, used_s in zip(processes, before, strict=True)
    ]


@contextmanager
def asked(socket: Path, verb: str, **fields: Any) -> Iterator[list[float]]:
    """Ask a daemon the same thing meanwhile, over and over; the list gets the seconds of each answer."""
    answers: list[float] = []
    over = threading.Event()

    def ask() -> None:
        with ControlClient(socket) as client:
            while not over.wait(ASK_EVERY_S):
                begun_s = time.monotonic()
                client.call(verb, **fields)
                answers.append(time.monotonic() - begun_s)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def until(condition: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    """Look until it is so.

    Raises:
        HostError: it was not in time.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise HostError(otherwise)
        time.sleep(0.01)


def names() -> list[str]:
    """Every benchmark there is."""
    folder = Path(__file__).parent
    return sorted(
        module.name.removeprefix(PREFIX)
        for module in pkgutil.iter_modules([str(folder)])
        if module.name.startswith(PREFIX)
    )


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark, or all; returns the exit code."""
    known = names()
    wanted = list(arguments) or [name for name in known if name not in ONLY_BY_NAME]
    for name in wanted:
        if name not in known:
            print(f"there is no benchmark {name!r}; there are: {', '.join(known)}", file=sys.stderr)
            return ExitCode.USAGE
    figures: list[Figure] = []
    for name in wanted:
        measured = _run(name)
        print(_table(name, measured), flush=True)
        prefix = "" if len(wanted) == 1 else f"{name}: "
        figures += [replace(each, figure=prefix + each.figure) for each in measured]
    ok = all(each.ok for each in figures)
    title = wanted[0] if len(wanted) == 1 else "all"
    print(json.dumps({"name": title, "ok": ok, "figures": [_as_json(each) for each in figures]}), flush=True)
    return ExitCode.OK if ok else ExitCode.FAILED


def _run(name: str) -> list[Figure]:
    module: ModuleType = importlib.import_module(f"benchmarks.{PREFIX}{name}")
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"farm-bench-{name}-"))
    try:
        if name.startswith("lab_"):
            check_programs()
        figures: list[Figure] = module.run(Context(folder))
    except FarmError as error:
        # A benchmark that cannot run has not met its goal; the others still run.
        print(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)
        if error.evidence:
            print(error.evidence, file=sys.stderr)
        figures = [Figure("could not run", 0.0, "", goal=error.message, ok=False)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return figures


def _as_json(figure: Figure) -> dict[str, object]:
    return {key: _rounded(value) for key, value in asdict(figure).items()}


def _rounded(value: object) -> object:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _table(name: str, figures: Iterable[Figure]) -> str:
    head = ("figure", "value", "unit", "stock", "goal", "")
    rows = [
        (
            each.figure,
            f"{each.value:.4g}",
            each.unit,
            "-" if each.stock is None else f"{each.stock:.4g}",
            each.goal,
            ("ok" if each.goal else "") if each.ok else "MISSED",
        )
        for each in figures
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
    return "\n".join((f"== {name}", lines[0], "-" * len(lines[0]), *lines[1:]))
