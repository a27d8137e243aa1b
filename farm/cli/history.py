"""`farm history MODEL`: a model's measurements on each phone over time, and when it became slower."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import complete
from farm.cli.connection import JsonFlag, connect
from farm.cli.output import columns_that_fit, emit, local_time, plots, table, terminal
from farm.cli.output.terminal import ASCII, Glyphs
from farm.cli.stored_results import model_hashes, stored_results
from farm.common.durations import many, relative_range
from farm.common.errors import UserError
from farm.common.files import short_hash
from farm.measure.conditions import moved_nominal
from farm.measure.metrics import LATENCY
from farm.results.series import (
    COMPARABLE_BY,
    changes_in,
    is_judged,
    metric_of,
    reading_of,
    reported,
    runtime_words,
    series_of,
    side_branch,
    traits_of,
)

if TYPE_CHECKING:
    from farm.measure.regression import Change

PLOT_COLUMNS = 40
SPARE, SPARE_BESIDE_PLOT = ("RUNTIME", "95 % RANGE"), ("VERDICT",)  # columns that a narrow terminal leaves out


def history(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's name, its file, or the beginning of its SHA-256.", autocompletion=complete.models
        ),
    ],
    device: Annotated[
        str,
        typer.Option("--on", "--device", metavar="DEVICE", help="Only this phone.", autocompletion=complete.devices),
    ] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many results of each model, the newest first.")
    ] = 1000,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the course and each result's interval.")] = False,
    json: JsonFlag = False,
) -> None:
    """Every stored result of a model by phone, system version, metric and build, with the changes of level in them.

    Benches have the metric latency; farm energy, memory and sustain store others. MEDIAN or VALUE is what the job
    reported. Where another nominal speed is agreed on for the phone, RESCALED is that median at
    that speed, at which changes are searched for.

    Exit code 0 whether or not there is a regression; 2 when nothing of that name was measured.
    """
    with connect() as client:
        hashes = model_hashes(client, model)
        rows = [row for sha256 in hashes for row in islice(stored_results(client, sha256, device, limit=limit), limit)]
    where = f" on {device}" if device else ""
    if not rows:
        raise UserError(
            f"nothing called {model} was measured{where}", hint="farm bench measures; farm job list --kind bench"
        )
    if not (found := [(series, changes_in(series)) for series in series_of(rows)]):
        one = f"farm job show {rows[0]['job']}"
        raise UserError(f"no result of {model}{where} has a finite value", hint=f"the newest: {one}")
    pages = chain.from_iterable(["", *_page(*series, plot=plot)] for series in found)
    emit({"ok": True, "lines": [_series_json(*series) for series in found]}, islice(pages, 1, None), json=json)


def drawn(row: Mapping[str, Any], low: float, high: float, marks: Glyphs = ASCII, columns: int = PLOT_COLUMNS) -> str:
    """A result's interval on a scale from `low` to `high`, its value marked; at today's nominal."""
    return plots.interval(*_ordered(row), (low, high), columns, marks)


def plot_columns(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    """How wide intervals, whose title is the last one, are drawn in lines of `width`: a cut one has no scale. Pure."""
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=False)] + [len(titles[-1])]
    kept = columns_that_fit(titles, widths, width, (*SPARE, *SPARE_BESIDE_PLOT))
    used = sum(each + 2 for name, each in zip(titles[:-1], widths, strict=False) if name in kept)
    return min(PLOT_COLUMNS, max(len(titles[-1]), width - used))


def _ordered(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Low, value and high at today's nominal; all three are the value of a result without an interval."""
    value, low, high = reading_of(row)
    return low or value, value, high or value


def _page(rows: Sequence[Mapping[str, Any]], changes: Sequence[Change], *, plot: bool) -> Iterator[str]:
    last = rows[-1]
    build = ", ".join(filter(None, (last["target"], last["precision"], *traits_of(last))))
    branch = f", branch {side_branch(last)}" if side_branch(last) else ""
    yield f"{last['name']} ({short_hash(last['model'])}) on {last['device']}: {build}{branch}"
    kernel = f", reference kernel {last['kernel']}" if last["kernel"] else ""
    yield f"  system {last['epoch'] or 'unknown'}{kernel}"
    if moved := moved_nominal(rows):
        yield f"  {moved}"
    metric = metric_of(last)
    title = "MEDIAN" if metric is LATENCY else "VALUE"
    low, high = min(_ordered(row)[0] for row in rows), max(_ordered(row)[2] for row in rows)
    marks = terminal.glyphs()
    if plot and len(rows) > 1:
        course = plots.sparkline([reading_of(row).value for row in rows], PLOT_COLUMNS, marks)
        yield f"  course {course}, {title.lower()}s from the oldest to the latest"
    today = ["RESCALED"] if moved else []
    told = [found for row in rows if (found := reported(row))]
    words = metric.words([*(each.value for each in told), *(_rescaled(row) for row in rows)])
    shown = zip(rows, told, words[: len(rows)], words[len(rows) :], strict=True)
    commit = ["COMMIT"] if any(row.get("commit") for row in rows) else []
    titles = ["  WHEN", title, "95 % RANGE", *today, "VERDICT", "RUNTIME", *commit, "JOB"]
    cells = [
        [
            f"  {local_time(row['at'], to='minutes')}",
            word,
            relative_range(*found),
            *(rescaled.removeprefix("-") for _ in today),
            row["verdict"], runtime_words(row) or "-",
            *(str(row.get("commit", "-"))[:12] for _ in commit), row["job"],
        ]
        for row, found, word, rescaled in shown
    ]  # fmt: skip
    if plot:
        titles.append(" .. ".join(metric.words([low, high], aligned=False)))
        wide = plot_columns(titles, cells, terminal.columns()) if sys.stdout.isatty() else PLOT_COLUMNS
        for line, row in zip(cells, rows, strict=True):
            line.append(drawn(row, low, high, marks, wide))
    yield from table(titles, cells, spare=(*SPARE, *SPARE_BESIDE_PLOT, titles[-1]) if plot else SPARE)
    yield from (f"  {line}" for line in _change_lines(changes, rows))
    if alone := sum(not is_judged(row) for row in rows):
        yield f"  -: no interval, as one sample has none; {alone} of {len(rows)} are shown, and judged nowhere"
    doubtful = sum(row["verdict"] != "trusted" for row in rows)
    if doubtful:
        yield f"  only trusted results are searched for changes: {doubtful} of {len(rows)} are not trusted"


def _rescaled(row: Mapping[str, Any]) -> float | None:
    """The value at today's nominal speed, None where the job reported it at that speed."""
    return reading_of(row).value if moved_nominal([row]) else None


def _change_lines(changes: Sequence[Change], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each change; a change and the change that undoes it share a line."""
    metric, undone = metric_of(rows[-1]), {change.until for change in changes}
    for change in changes:
        if change.index in undone:
            continue
        word = "regression" if metric.is_worse(change.ratio) else "improvement"
        before, after = metric.words([change.before, change.after], aligned=False)
        when = f"since {rows[change.index]['job']}"
        if change.until is not None:
            when = f"from {rows[change.index]['job']} to {rows[change.until - 1]['job']}, undone"
        yield f"{word}: {before} -> {after} ({change.ratio - 1:+.1%}) {when}, {many(change.results_after, 'result')}"


def _series_json(rows: Sequence[Mapping[str, Any]], changes: Sequence[Change]) -> dict[str, Any]:
    return {
        **{name: rows[-1].get(name) for name in ("name", *COMPARABLE_BY)},
        "unit": metric_of(rows[-1]).unit,
        "branch": side_branch(rows[-1]),
        "results": [dict(row) for row in rows],
        "changes": [
            {
                "job": rows[change.index]["job"],
                "at": rows[change.index]["at"],
                "until": None if change.until is None else rows[change.until]["job"],
                "before": change.before,
                "after": change.after,
                "ratio": change.ratio,
                "worse": metric_of(rows[-1]).is_worse(change.ratio),
                "results_after": change.results_after,
            }
            for change in changes
        ],
    }
