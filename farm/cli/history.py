"""`farm history MODEL`: what a model measured on each phone over time, and when it became slower."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import complete, plots, terminal
from farm.cli.context import JsonFlag, connect, local_time, print_json, print_table, tell
from farm.cli.terminal import ASCII, Glyphs
from farm.core.durations import digits
from farm.core.errors import UserError
from farm.core.nominal import scaled

if TYPE_CHECKING:
    from farm.control.client import ControlClient
    from farm.measure.regression import Change

PAGE = 500
SHORT_HASH = 12
PLOT_COLUMNS = 40
# Results of one line of history: all else that shapes a number is what its changes are blamed on. Times of different
# reference kernels have nothing in common to compare them by.
SAME = ("model", "device", "epoch", "target", "precision", "tuned", "kernel")


def history(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's name, its file, or the beginning of its SHA-256.", autocompletion=complete.models
        ),
    ],
    device: Annotated[str, typer.Option(help="Only this phone.", autocompletion=complete.devices)] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Of each model, the newest so many.")] = 1000,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the course and each result's interval.")] = False,
    json: JsonFlag = False,
) -> None:
    """Every stored bench of a model by phone, system version and build, with the changes of level found in them.

    All results of a phone are given at one nominal speed, the latest that is known.

    Exit code 0 whether or not there is a regression; 2 when nothing of that name was measured.
    """
    with connect() as client:
        hashes = _hashes(client, model)
        rows = [row for sha256 in hashes for row in _rows(client, sha256, device, limit)]
    if not (lines := lines_of(rows)):
        where = f" on {device}" if device else ""
        raise UserError(
            f"nothing called {model} was measured{where}", hint="farm bench measures; farm job list --kind bench"
        )
    if json:
        print_json({"ok": True, "lines": [_line_json(each) for each in lines]})
        return
    for number, line in enumerate(lines):
        if number:
            tell()
        _print_line(line, plot=plot)


class Line:
    """Results that may be compared, oldest first, and the changes in them."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """`rows`: as stored, oldest first."""
        self.rows = rows
        self.changes = _changes(self.rows)


def lines_of(rows: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Rows apart by model, phone, system version, kind of build and reference kernel; each line oldest first."""
    known = ({**row, "kernel": row.get("reference", {}).get("kernel", "")} for row in rows if _has_number(row))

    def key(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in SAME)

    ordered = sorted(known, key=lambda row: (key(row), row["seq"]))
    return [Line(list(some)) for _, some in groupby(ordered, key)]


def _has_number(row: Mapping[str, Any]) -> bool:
    """Whether its estimate has a median inside an interval: samples that are beyond all bounds give none."""
    low, median, high = (row.get("estimate", {}).get(name) for name in ("low_s", "median_s", "high_s"))
    return None not in (low, median, high) and bool(0 < low <= median <= high < math.inf)


def drawn(row: Mapping[str, Any], low_s: float, high_s: float, marks: Glyphs = ASCII) -> str:
    """A result's interval on a scale from `low_s` to `high_s`, its median marked."""
    estimate = row["estimate"]
    scale = (low_s, high_s)
    return plots.interval(estimate["low_s"], estimate["median_s"], estimate["high_s"], scale, PLOT_COLUMNS, marks)


def _hashes(client: ControlClient, model: str) -> list[str]:
    """Of what people call it; of a file, its own."""
    path = Path(model)
    if path.is_file():
        return [hashlib.sha256(path.read_bytes()).hexdigest()]
    answer = client.call("history.models", model=model)
    return list(dict.fromkeys(each["model"] for each in answer["models"]))


def _rows(client: ControlClient, sha256: str, device: str, limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while len(rows) < limit:
        before = {"before": rows[-1]["seq"]} if rows else {}
        wanted = min(PAGE, limit - len(rows))
        answer = client.call("history.list", model=sha256, device=device, limit=wanted, **before)
        rows += answer["rows"]
        if not answer["more"]:
            break
    return rows


def _changes(rows: Sequence[Mapping[str, Any]]) -> tuple[Change, ...]:
    from farm.measure.regression import Point, changes

    return changes(
        [
            Point(
                at_s=datetime.fromisoformat(row["at"]).timestamp(),
                median_s=row["estimate"]["median_s"],
                low_s=row["estimate"]["low_s"],
                high_s=row["estimate"]["high_s"],
                epoch=row["epoch"],
                trusted=row["verdict"] == "trusted",
            )
            for row in rows
        ]
    )


def _print_line(line: Line, *, plot: bool) -> None:
    first = line.rows[0]
    build = ", ".join(filter(None, (first["target"], first["precision"], "tuned" if first.get("tuned") else "")))
    tell(f"{first['name']} ({first['model'][:SHORT_HASH]}) on {first['device']}: {build}")
    kernel = f", reference kernel {first['kernel']}" if first["kernel"] else ""
    tell(f"  system {first['epoch'] or 'unknown'}{kernel}")
    if said := scaled(line.rows):
        tell(f"  times are {said}")
    low_s = min(row["estimate"]["low_s"] for row in line.rows)
    high_s = max(row["estimate"]["high_s"] for row in line.rows)
    marks = terminal.glyphs()
    if plot and len(line.rows) > 1:
        medians = [row["estimate"]["median_s"] for row in line.rows]
        tell(f"  course {plots.sparkline(medians, PLOT_COLUMNS, marks)}, medians from the oldest to the latest")
    scale = f"{digits(low_s * 1000)} .. {digits(high_s * 1000)} ms"
    print_table(
        ("  WHEN", "MEDIAN ms", "95% INTERVAL", "VERDICT", "TVM", "JOB", *([scale] if plot else [])),
        [
            (
                f"  {local_time(row['at'])}",
                digits(row["estimate"]["median_s"] * 1000),
                f"{digits(row['estimate']['low_s'] * 1000)} .. {digits(row['estimate']['high_s'] * 1000)}",
                row["verdict"], row.get("tvm") or "-", row["job"],
                *([drawn(row, low_s, high_s, marks)] if plot else []),
            )
            for row in line.rows
        ],
    )  # fmt: skip
    for change in line.changes:
        tell(f"  {_said(change, line.rows)}")
    doubtful = sum(row["verdict"] != "trusted" for row in line.rows)
    if doubtful:
        tell(f"  changes are looked for in trusted results only: {doubtful} of {len(line.rows)} are not")


def _said(change: Change, rows: Sequence[Mapping[str, Any]]) -> str:
    row = rows[change.index]
    word = "regression" if change.slower else "improvement"
    return (
        f"{word}: {digits(change.before_s * 1000)} -> {digits(change.after_s * 1000)} ms ({change.ratio - 1:+.1%}) "
        f"since {row['job']}, {change.results_after} results"
    )


def _line_json(line: Line) -> dict[str, Any]:
    first = line.rows[0]
    return {
        **{name: first.get(name) for name in ("name", *SAME)},
        "results": [dict(row) for row in line.rows],
        "changes": [
            {
                "job": line.rows[change.index]["job"],
                "at": line.rows[change.index]["at"],
                "before_s": change.before_s,
                "after_s": change.after_s,
                "ratio": change.ratio,
                "slower": change.slower,
                "results_after": change.results_after,
            }
            for change in line.changes
        ],
    }
