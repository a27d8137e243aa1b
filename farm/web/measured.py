"""Measured and tuned models: every bench of a model over time, and the kept sets of tuning records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from math import isclose
from statistics import median
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from farm.common.durations import digits, in_one_unit, interval_words
from farm.common.errors import FarmError
from farm.measure.conditions import moved_nominal
from farm.model.identity import target_words
from farm.results.board import HEIGHT, WIDTH, Board, board_of
from farm.results.series import (
    BUILD,
    has_interval,
    has_median,
    of_branch,
    runtime_words,
    side_branch,
    times_of,
    traits_of,
)
from farm.web.job_views import lenient
from farm.web.page import PageRoute, ask, render
from farm.web.plots import Line, Panel, Plot, Table, time_words, unit_of
from farm.web.rendering import moment

router = APIRouter(route_class=PageRoute)
PAGE_RESULTS = 100
BOARD_RESULTS = 1000  # the newest, whose models and phones `/history` begins with
BOARD_PAGE = 500
# Results that differ in one of these are not one line over time.
SAME = (*BUILD, "runtime", "tvm", "bundle", "epoch", "device")

Text = Annotated[str, Query(max_length=255)]


class HistoryPoint(NamedTuple):
    """One result in a plot of several. Seconds."""

    median_s: float
    low_s: float | None  # None: no interval
    high_s: float | None
    verdict: str
    at: str = ""  # when it was measured, ISO 8601; "": x is the number of the result
    reported_s: float | None = None  # the median that its job reported, drawn where it differs from the point's


@router.get("/history")
async def history(
    request: Request,
    model: Text = "",
    device: Text = "",
    before: int | None = None,
    trusted: bool = False,
    log: bool = False,
    a: Text = "",
    b: Text = "",
) -> Response:
    """Every bench of a model, newest first, and how its medians went on each phone; two of them, A and B, beside.

    `trusted`: only results of that verdict; `log`: plots have a logarithmic axis.
    """
    models = (await ask(request, "history.models", model=model))["models"] if model else []
    hashes = sorted({each["model"] for each in models})
    rows: Sequence[Mapping[str, Any]] = ()
    more = False
    if len(hashes) == 1:
        asked = {"model": hashes[0], "device": device, "limit": PAGE_RESULTS}
        page = await ask(request, "history.list", **asked, **({"before": before} if before is not None else {}))
        rows, more = lenient(page["rows"]), page["more"]
    shown = [row for row in rows if not trusted or row["verdict"] == "trusted"]
    pair = [row for job in (a, b) for row in rows if job and row["job"] == job and has_interval(row)]
    return render(
        request,
        "history.html",
        model=model,
        device=device,
        models=models,
        several=len(hashes) > 1,
        rows=shown,
        measured=bool(rows),
        name=rows[0]["name"] if rows else model,
        trusted=trusted,
        log=log,
        chosen=(a, b),
        pair=pair if len(pair) == 2 else [],
        compared=await _compared(request, pair) if len(pair) == 2 else [],
        unlike=[word for word in SAME if len(pair) == 2 and (pair[0].get(word) or "") != (pair[1].get(word) or "")],
        moved=moved_nominal(rows),
        has_interval=has_interval,
        build_words=build_words,
        before=rows[-1]["seq"] if more else None,
        plots=[plot.figure() for plot in (*pair_plots(pair, log=log), *line_plots(shown, log=log))],
        board=Board((), ()) if model else await _board(request),
        spark=(WIDTH, HEIGHT),
        row_times=row_times,
    )


@router.get("/records")
async def records(request: Request, name: Text = "") -> Response:
    """The newest sets of tuning records."""
    sets = (await ask(request, "records.list", name=name))["sets"]
    return render(request, "records.html", sets=sets, name=name, target_words=target_words)


@router.get("/records/{number}")
async def one_set(request: Request, number: int) -> Response:
    """One set: the best of each task."""
    kept = lenient(await ask(request, "records.show", set=str(number)))
    return render(request, "record_set.html", kept=kept, tasks=kept["best"]["tasks"] or (), target_words=target_words)


async def _compared(request: Request, pair: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences about B beside A, as `farm compare A B` prints them; the last one why they may not be compared."""
    try:
        shown = [await ask(request, "job.show", job=row["job"]) for row in pair]
        return await asyncio.to_thread(_comparison_of, *(each["result"]["certificate"] for each in shown))
    except (FarmError, ValueError) as error:
        return [str(error)]


def _comparison_of(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    from farm.measure.comparison import compare_stored, two_models  # numpy: not at the daemon's start

    found = compare_stored(a, b)
    return [found.sentence, *(reason.cause for reason in found.reasons), *two_models(a, b)]


async def _board(request: Request) -> Board:
    """Models and phones with the newest results, made beside the daemon's loop."""
    rows: list[dict[str, Any]] = []
    asked: dict[str, int] = {}
    while len(rows) < BOARD_RESULTS:
        page = await ask(request, "history.list", limit=BOARD_PAGE, **asked)
        rows += page["rows"]
        if not page["more"]:
            break
        asked["before"] = rows[-1]["seq"]
    return await asyncio.to_thread(lambda: board_of(of_branch(rows)))


def pair_plots(pair: Sequence[Mapping[str, Any]], *, log: bool = False) -> list[Plot]:
    """A and B beside each other; nothing but for two."""
    points = [HistoryPoint(*times_of(row), str(row.get("verdict", ""))) for row in pair]
    plot = history_plot(points, log=log) if len(pair) == 2 else None
    return [] if plot is None else [replace(plot, id="pair", title="A and B", x_label="1: A, 2: B")]


def line_plots(rows: Sequence[Mapping[str, Any]], *, log: bool = False) -> list[Plot]:
    """A plot for each line of results that can be compared; `rows` are newest first."""

    def line(row: Mapping[str, Any]) -> tuple[str, ...]:
        return *(str(row.get(name) or "") for name in SAME), side_branch(row)

    plots, oldest_first = [], rows[::-1]
    ordered = sorted(oldest_first, key=lambda row: (line(row), row["at"]))  # a host's clock may have been set back
    for number, (_, group) in enumerate(groupby(ordered, key=line)):
        results = [row for row in group if has_median(row)]
        points = [
            HistoryPoint(*times_of(row), str(row.get("verdict", "")), row["at"], row["estimate"]["median_s"])
            for row in results
        ]
        plot = history_plot(points, log=log)
        if plot is not None:
            plots.append(plot.named(f"history-{number}", _line_title(results[0])))
    return plots


def _line_title(row: Mapping[str, Any]) -> str:
    branch = side_branch(row)
    return f"{row['device']}: {build_words(row)}{', branch ' * bool(branch)}{branch}"


def row_times(row: Mapping[str, Any]) -> list[str]:
    """Its median, the ends of its interval, and the median and the ends at today's speed: in one unit, `-` for none."""
    today: Sequence[float | None] = times_of(row) if has_median(row) else (None, None, None)
    found = (row.get("estimate") or {}) if has_interval(row) else {}
    reported = [(row.get("estimate") or {}).get("median_s"), found.get("low_s"), found.get("high_s")]
    return in_one_unit([each and each * 1e3 for each in (*reported, *today)], aligned=False)


def build_words(row: Mapping[str, Any]) -> str:
    """What was measured: `cpu float32, tuned, TVM 0.27`, or `ort, threads=2, ort 1.31.1`."""
    target = " ".join(filter(None, (row.get("target"), row.get("precision"))))
    return ", ".join(filter(None, (target, *traits_of(row), runtime_words(row))))


def history_plot(points: Sequence[HistoryPoint], *, log: bool = False) -> Plot | None:
    """Results of one model on one phone: medians with their intervals. None for fewer than two.

    Args:
        points: oldest first; x is time if they say when they were measured, else their number, from 1.
        log: whether times have a logarithmic axis.
    """
    if len(points) < 2:
        return None
    factor, unit = unit_of(median([point.median_s for point in points]))
    timed = all(point.at for point in points)
    x = [round(datetime.fromisoformat(each.at).timestamp()) if timed else n for n, each in enumerate(points, 1)]
    room = max((x[-1] - x[0]) * 0.04, 10.0) if timed else 1.0

    def scaled(values: Iterable[float | None]) -> list[float | None]:
        return [None if each is None else each / factor for each in values]

    def medians(*, trusted: bool) -> list[float | None]:
        return scaled(each.median_s if (each.verdict == "trusted") is trusted else None for each in points)

    first = scaled(
        None if then is None or isclose(then, median_s, rel_tol=1e-3) else then for median_s, *_, then in points
    )
    rescaled = sum(each is not None for each in first)
    lines = [
        Line(name="trusted", values=medians(trusted=True), tone="a"),
        Line(name="suspect or rejected", values=medians(trusted=False), tone="warn"),
        Line(name="interval, high", values=scaled(each.high_s for each in points), kind="high", tone="quiet"),
        Line(name="interval, low", values=scaled(each.low_s for each in points), kind="low", tone="quiet"),
    ]
    summary = f"{len(points)} results, the newest {time_words(points[-1].median_s)},"
    summary += f" the first {time_words(points[0].median_s)}."
    if rescaled:
        lines.append(Line(name="as reported then", values=first, tone="quiet"))
        summary += f" {rescaled} rescaled to today's nominal speed: what they reported then is grey."
    shown = [
        (
            moment(each.at) if timed else str(n),
            digits(each.median_s / factor),
            interval_words(each._asdict(), "s", 1 / factor, "to"),
            each.verdict,
        )
        for n, each in enumerate(points, 1)
    ]
    then = [("-" if each is None else digits(each),) for each in first] if rescaled else [()] * len(points)
    return Plot(
        id="history",
        title="Medians over time",
        summary=summary,
        x_label="measured at" if timed else "result, oldest first",
        span=(round(x[0] - room), round(x[-1] + room)),
        time=timed,
        panels=[Panel(label=f"median, {unit}", x=x, log=log, lines=lines)],
        table=Table(
            head=("measured at" if timed else "result", f"median, {unit}", f"interval, {unit}", "verdict",
                  *([f"reported then, {unit}"] if rescaled else ())),
            rows=[(*row, *more) for row, more in zip(shown, then, strict=True)],
        ),
    )  # fmt: skip
