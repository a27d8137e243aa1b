"""Measured and tuned models: every bench of a model over time, and the kept sets of tuning records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from math import isclose
from statistics import median
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from farm.common.durations import digits, interval_words
from farm.common.errors import FarmError
from farm.measure.conditions import common_estimate, moved_nominal
from farm.model.identity import target_words
from farm.results.board import HEIGHT, WIDTH, Board, board_of
from farm.results.columns import runtime_words, traits_of
from farm.results.series import BUILD, has_interval, has_median, times_of
from farm.web.job_views import lenient
from farm.web.page import ask, render
from farm.web.plots import Line, Panel, Plot, Table, time_words, unit_of
from farm.web.rendering import moment

router = APIRouter()
PAGE_RESULTS = 100
BOARD_RESULTS = 1000  # the newest, whose models and phones `/history` begins with
BOARD_PAGE = 500
# Results that differ in one of these are not one line over time.
SAME = (*BUILD, "runtime", "tvm", "bundle", "epoch", "device")

Text = Annotated[str, Query(max_length=255)]
Point = tuple[float, float | None, float | None, str]  # median, low and high in seconds (None: no interval), verdict


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
        common_estimate=common_estimate,
        has_interval=has_interval,
        build_words=build_words,
        before=rows[-1]["seq"] if more else None,
        plots=[plot.figure() for plot in (*pair_plots(pair, log=log), *line_plots(shown, log=log))],
        board=Board((), ()) if model else await _board(request),
        spark=(WIDTH, HEIGHT),
        words=time_words,
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
    return await asyncio.to_thread(board_of, rows)


def pair_plots(pair: Sequence[Mapping[str, Any]], *, log: bool = False) -> list[Plot]:
    """A and B beside each other; nothing but for two."""
    plot = history_plot([_point(row) for row in pair], log=log) if len(pair) == 2 else None
    return [] if plot is None else [replace(plot, id="pair", title="A and B", x_label="1: A, 2: B")]


def line_plots(rows: Sequence[Mapping[str, Any]], *, log: bool = False) -> list[Plot]:
    """A plot for each line of results that can be compared; `rows` are newest first."""

    def line(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row.get(name) or "") for name in SAME)

    plots, oldest_first = [], rows[::-1]
    ordered = sorted(oldest_first, key=lambda row: (line(row), row["at"]))  # a host's clock may have been set back
    for number, (_, group) in enumerate(groupby(ordered, key=line)):
        results = [row for row in group if has_median(row)]
        reported = [row["estimate"]["median_s"] for row in results]
        plot = history_plot([_point(row) for row in results], [row["at"] for row in results], reported, log=log)
        if plot is not None:
            plots.append(plot.named(f"history-{number}", _line_title(results[0])))
    return plots


def _point(row: Mapping[str, Any]) -> Point:
    return (*times_of(row), str(row.get("verdict", "")))


def _line_title(row: Mapping[str, Any]) -> str:
    return f"{row['device']}: {build_words(row)}"


def build_words(row: Mapping[str, Any]) -> str:
    """What was measured: `cpu float32, tuned, TVM 0.27`, or `ort, threads=2, ort 1.31.1`."""
    target = " ".join(filter(None, (row.get("target"), row.get("precision"))))
    return ", ".join(filter(None, (target, *traits_of(row), runtime_words(row))))


def history_plot(
    points: Sequence[Point], at: Sequence[str] = (), reported_s: Sequence[float] = (), *, log: bool = False
) -> Plot | None:
    """Results of one model on one phone: medians with their intervals. None for fewer than two.

    Args:
        points: oldest first.
        at: when each was measured (ISO 8601), oldest first: x is time. Empty: x is the number of the result, from 1.
        reported_s: the median that the job of each reported, seconds; drawn where it differs from the point's.
        log: whether times have a logarithmic axis.
    """
    if len(points) < 2:
        return None
    factor, unit = unit_of(median([point[0] for point in points]))
    x: list[float] = [round(datetime.fromisoformat(each).timestamp()) for each in at] or [
        float(n + 1) for n in range(len(points))
    ]
    room = max((x[-1] - x[0]) * 0.04, 10.0) if at else 1.0

    def of(place: int, *, trusted: bool | None = None) -> list[float | None]:
        return [
            value / factor if value is not None and (trusted is None or (verdict == "trusted") is trusted) else None
            for *times, verdict in points
            for value in (times[place],)
        ]

    pairs = zip(reported_s or (point[0] for point in points), points, strict=True)
    first = [None if isclose(then, now[0], rel_tol=1e-3) else then / factor for then, now in pairs]
    rescaled = sum(each is not None for each in first)
    lines = [
        Line(name="trusted", values=of(0, trusted=True), tone="a"),
        Line(name="suspect or rejected", values=of(0, trusted=False), tone="warn"),
        Line(name="interval, high", values=of(2), kind="high", tone="quiet"),
        Line(name="interval, low", values=of(1), kind="low", tone="quiet"),
    ]
    summary = f"{len(points)} results, the newest {time_words(points[-1][0])}, the first {time_words(points[0][0])}."
    if rescaled:
        lines.append(Line(name="as reported then", values=first, tone="quiet"))
        summary += f" {rescaled} rescaled to today's nominal speed: what they reported then is grey."
    shown = [
        (n, digits(m / factor), interval_words({"low_s": low_s, "high_s": high_s}, "s", 1 / factor, "to"), verdict)
        for n, (m, low_s, high_s, verdict) in zip([moment(each) for each in at] or map(str, x), points, strict=True)
    ]
    then = [("-" if each is None else digits(each),) for each in first] if rescaled else [()] * len(points)
    return Plot(
        id="history",
        title="Medians over time",
        summary=summary,
        x_label="measured at" if at else "result, oldest first",
        span=(round(x[0] - room), round(x[-1] + room)),
        time=bool(at),
        panels=[Panel(label=f"median, {unit}", x=x, log=log, lines=lines)],
        table=Table(
            head=("measured at" if at else "result", f"median, {unit}", f"interval, {unit}", "verdict",
                  *([f"reported then, {unit}"] if rescaled else ())),
            rows=[(*row, *more) for row, more in zip(shown, then, strict=True)],
        ),
    )  # fmt: skip
