"""`farm history MODEL`: a model's measurements on each phone over time, and when it became slower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import complete
from farm.cli.connection import JsonFlag, connect
from farm.cli.output import emit, local_time, plots, table, terminal
from farm.cli.output.terminal import ASCII, Glyphs
from farm.cli.stored_results import model_hashes, stored_results
from farm.common.durations import in_one_unit, many, range_words
from farm.common.errors import UserError
from farm.common.files import short_hash
from farm.measure.conditions import common_estimate, moved_nominal
from farm.results.series import (
    COMPARABLE_BY,
    changes_in,
    has_interval,
    runtime_words,
    series_of,
    side_branch,
    times_of,
    traits_of,
)

if TYPE_CHECKING:
    from farm.measure.regression import Change

PLOT_COLUMNS = 40


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
    """Every stored bench of a model by phone, system version and build, with the changes of level found in them.

    MEDIAN is what the job reported. Where the phone's nominal speed has changed since, RESCALED is that median at
    today's, at which changes are searched for.

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
        raise UserError(f"no result of {model}{where} has a finite median", hint=f"the newest: {one}")
    pages = chain.from_iterable(["", *_page(*series, plot=plot)] for series in found)
    emit({"ok": True, "lines": [_series_json(*series) for series in found]}, islice(pages, 1, None), json=json)


def drawn(row: Mapping[str, Any], low_s: float, high_s: float, marks: Glyphs = ASCII) -> str:
    """A result's interval on a scale from `low_s` to `high_s`, its median marked; at today's nominal."""
    return plots.interval(*_times(row), (low_s, high_s), PLOT_COLUMNS, marks)


def _times(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Low, median and high at today's nominal; all three are the median of a result without an interval."""
    median_s, low_s, high_s = times_of(row)
    return low_s or median_s, median_s, high_s or median_s


def _page(rows: Sequence[Mapping[str, Any]], changes: Sequence[Change], *, plot: bool) -> Iterator[str]:
    last = rows[-1]
    build = ", ".join(filter(None, (last["target"], last["precision"], *traits_of(last))))
    branch = f", branch {side_branch(last)}" if side_branch(last) else ""
    yield f"{last['name']} ({short_hash(last['model'])}) on {last['device']}: {build}{branch}"
    kernel = f", reference kernel {last['kernel']}" if last["kernel"] else ""
    yield f"  system {last['epoch'] or 'unknown'}{kernel}"
    if moved := moved_nominal(rows):
        yield f"  {moved}"
    low_s, high_s = min(_times(row)[0] for row in rows), max(_times(row)[2] for row in rows)
    marks = terminal.glyphs()
    if plot and len(rows) > 1:
        medians = [common_estimate(row)["median_s"] for row in rows]
        yield f"  course {plots.sparkline(medians, PLOT_COLUMNS, marks)}, medians from the oldest to the latest"
    today = ["RESCALED"] if moved else []
    reported = [row["estimate"]["median_s"] * 1000 for row in rows]
    words = in_one_unit([*reported, *(_rescaled_ms(row) for row in rows)])
    shown = zip(rows, words[: len(rows)], words[len(rows) :], strict=True)
    commit = ["COMMIT"] if any(row.get("commit") for row in rows) else []
    scale = " .. ".join(in_one_unit([low_s * 1000, high_s * 1000], aligned=False))
    yield from table(
        (
            "  WHEN", "MEDIAN", "95 % RANGE", *today, "VERDICT", "RUNTIME", *commit, "JOB",
            *([scale] if plot else []),
        ),
        [
            (
                f"  {local_time(row['at'], to='minutes')}",
                median,
                range_words(row["estimate"], "s"),
                *(rescaled.removeprefix("-") for _ in today),
                row["verdict"], runtime_words(row) or "-",
                *(str(row.get("commit", "-"))[:12] for _ in commit), row["job"],
                *([drawn(row, low_s, high_s, marks)] if plot else []),
            )
            for row, median, rescaled in shown
        ],
        spare=("RUNTIME", "95 % RANGE"),
    )  # fmt: skip
    yield from (f"  {line}" for line in _change_lines(changes, rows))
    if alone := sum(not has_interval(row) for row in rows):
        yield f"  -: no interval, as one sample has none; {alone} of {len(rows)} are shown, and judged nowhere"
    doubtful = sum(row["verdict"] != "trusted" for row in rows)
    if doubtful:
        yield f"  only trusted results are searched for changes: {doubtful} of {len(rows)} are not trusted"


def _rescaled_ms(row: Mapping[str, Any]) -> float | None:
    """The median at today's nominal speed, None where the job reported it at that speed."""
    return common_estimate(row)["median_s"] * 1000 if moved_nominal([row]) else None


def _change_lines(changes: Sequence[Change], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each change; a change and the change that undoes it share a line."""
    undone = {change.until for change in changes}
    for change in changes:
        if change.index in undone:
            continue
        word = "regression" if change.slower else "improvement"
        before, after = in_one_unit([change.before_s * 1000, change.after_s * 1000], aligned=False)
        when = f"since {rows[change.index]['job']}"
        if change.until is not None:
            when = f"from {rows[change.index]['job']} to {rows[change.until - 1]['job']}, undone"
        yield f"{word}: {before} -> {after} ({change.ratio - 1:+.1%}) {when}, {many(change.results_after, 'result')}"


def _series_json(rows: Sequence[Mapping[str, Any]], changes: Sequence[Change]) -> dict[str, Any]:
    return {
        **{name: rows[-1].get(name) for name in ("name", *COMPARABLE_BY)},
        "branch": side_branch(rows[-1]),
        "results": [dict(row) for row in rows],
        "changes": [
            {
                "job": rows[change.index]["job"],
                "at": rows[change.index]["at"],
                "until": None if change.until is None else rows[change.until]["job"],
                "before_s": change.before_s,
                "after_s": change.after_s,
                "ratio": change.ratio,
                "slower": change.slower,
                "results_after": change.results_after,
            }
            for change in changes
        ],
    }
