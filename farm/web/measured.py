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

from farm.common.durations import digits, ends_words
from farm.common.errors import FarmError
from farm.measure.conditions import left_open, moved_nominal
from farm.measure.metrics import LATENCY, ResultMetric
from farm.model.identity import target_words
from farm.results.board import HEIGHT, WIDTH, Board, Front, board_of
from farm.results.series import (
    BUILD,
    by_metric,
    has_interval,
    metric_of,
    of_branch,
    reading_of,
    reported,
    runtime_words,
    series_key,
    side_branch,
    traits_of,
)
from farm.web.job_views import lenient
from farm.web.page import PageRoute, ask, render
from farm.web.plots import Line, Panel, Plot, Table, unit_of
from farm.web.rendering import moment

router = APIRouter(route_class=PageRoute)
PAGE_RESULTS = 100
BOARD_RESULTS = 1000  # the newest, whose models and phones `/history` begins with
BOARD_PAGE = 500
# Results that differ in one of these are not one line over time.
SAME = ("metric", *BUILD, "runtime", "tvm", "bundle", "epoch", "device")

Text = Annotated[str, Query(max_length=255)]


class HistoryPoint(NamedTuple):
    """One result in a plot of several."""

    value: float
    low: float | None  # None: no interval
    high: float | None
    verdict: str
    at: str = ""  # when it was measured, ISO 8601; "": x is the number of the result
    reported: float | None = None  # the value that its job reported, drawn where it differs from the point's


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
    """Every result of a model, newest first, and how its values went on each phone; two benches, A and B, beside.

    `trusted`: only results of that verdict; `log`: plots have a logarithmic axis.
    """
    models = (await ask(request, "history.models", model=model))["models"] if model else []
    hashes = sorted({each["model"] for each in models})
    rows: Sequence[Mapping[str, Any]] = ()
    more = False
    if len(hashes) == 1:
        asked = {"model": hashes[0], "device": device, "limit": PAGE_RESULTS}
        page = await ask(request, "history.list", **asked, **({"before": before} if before is not None else {}))
        rows, more = lenient(list(by_metric(page["rows"]))), page["more"]
    shown = [row for row in rows if not trusted or row["verdict"] == "trusted"]
    pair = [row for job in (a, b) for row in rows if job and row["job"] == job and is_side(row)]
    board = Board((), ()) if model else await _board(request)
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
        unlike=[word for word in SAME if len(pair) == 2 and len({series_key(row, [word]) for row in pair}) == 2],
        moved=moved_nominal(rows),
        has_interval=has_interval,
        is_side=is_side,
        build_words=build_words,
        before=rows[-1]["seq"] if more else None,
        plots=[plot.figure() for plot in (*pair_plots(pair, log=log), *line_plots(shown, log=log))],
        board=board,
        fronts=[front_plot(each, f"front-{number}").figure() for number, each in enumerate(board.fronts)],
        spark=(WIDTH, HEIGHT),
        row_words=row_words,
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
    rest = filter(None, (left_open(found.to_wire()),))
    return [found.sentence, *(reason.cause for reason in found.reasons), *rest, *two_models(a, b)]


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
    points = [HistoryPoint(*reading_of(row), str(row.get("verdict", ""))) for row in pair]
    plot = history_plot(points, log=log) if len(pair) == 2 else None
    return [] if plot is None else [replace(plot, id="pair", title="A and B", x_label="1: A, 2: B")]


def is_side(row: Mapping[str, Any]) -> bool:
    """Whether it can be A or B: a bench whose median has an interval."""
    return metric_of(row) is LATENCY and has_interval(row)


def line_plots(rows: Sequence[Mapping[str, Any]], *, log: bool = False) -> list[Plot]:
    """A plot for each line of results that can be compared; `rows` are newest first."""

    def line(row: Mapping[str, Any]) -> tuple[str, ...]:
        return *series_key(row, SAME), side_branch(row)

    plots, oldest_first = [], rows[::-1]
    ordered = sorted(oldest_first, key=lambda row: (line(row), row["at"]))  # a host's clock may have been set back
    for number, (_, group) in enumerate(groupby(ordered, key=line)):
        results = [(row, told) for row in group if (told := reported(row))]
        points = [
            HistoryPoint(*reading_of(row), str(row.get("verdict", "")), row["at"], told.value) for row, told in results
        ]
        plot = history_plot(points, log=log, metric=metric_of(results[0][0])) if results else None
        if plot is not None:
            plots.append(plot.named(f"history-{number}", _line_title(results[0][0])))
    return plots


def front_plot(front: Front, id: str) -> Plot:  # noqa: A002 (what HTML calls it)
    """Speed against quality of the builds on one phone."""
    points, label = front.points, f"{front.metric}{', ' * bool(front.unit)}{front.unit}"
    best = [each for each in points if each.on_front]
    names = ", ".join(f"{each.model} ({each.build})" for each in best)
    summary = (
        f"no other one is both faster and better than {names}" if best else "every median is rejected or one sample"
    )
    return Plot(
        id=id,
        title=front.title,
        summary=f"{len(points)} builds; {summary}.",
        x_label="median, ms",
        span=(0.0, 1.08 * points[-1].median_ms),
        panels=[
            Panel(
                label=label,
                x=[each.median_ms for each in points],
                lines=[
                    Line(name="front", values=[each.value if each.on_front else None for each in points], kind="line"),
                    Line(name="builds", values=[each.value for each in points], tone="b"),
                    Line(name="interval, high", values=[each.high for each in points], kind="high", tone="quiet"),
                    Line(name="interval, low", values=[each.low for each in points], kind="low", tone="quiet"),
                ],
                zero=False,
            )
        ],
        table=Table(
            head=("build", "median, ms", "verdict", label, "interval", "on the front"),
            rows=[
                (
                    f"{each.model}, {each.build}", digits(each.median_ms), each.verdict, digits(each.value),
                    f"{digits(each.low)} to {digits(each.high)}", "yes" if each.on_front else "no",
                )
                for each in points
            ],
        ),
    )  # fmt: skip


def _line_title(row: Mapping[str, Any]) -> str:
    branch = side_branch(row)
    return f"{row['device']}: {build_words(row)}{', branch ' * bool(branch)}{branch}"


def row_words(row: Mapping[str, Any]) -> list[str]:
    """Its value, the ends of its interval, and all three at today's speed: in one unit, `-` for none."""
    told = reported(row)
    return metric_of(row).words([*told, *reading_of(row)] if told else [None] * 6, aligned=False)


def build_words(row: Mapping[str, Any]) -> str:
    """What was measured: `cpu float32, tuned, TVM 0.27`, or `ort, threads=2, ort 1.31.1`."""
    target = " ".join(filter(None, (row.get("target"), row.get("precision"))))
    return ", ".join(filter(None, (target, *traits_of(row), runtime_words(row))))


def history_plot(points: Sequence[HistoryPoint], *, log: bool = False, metric: ResultMetric = LATENCY) -> Plot | None:
    """Results of one model on one phone: values with their intervals. None for fewer than two.

    Args:
        points: oldest first; x is time if they say when they were measured, else their number, from 1.
        log: whether values have a logarithmic axis.
        metric: what they are of.
    """
    if len(points) < 2:
        return None
    factor, unit = 1 / metric.factor, metric.shown
    if metric.unit == "s":
        factor, unit = unit_of(median([point.value for point in points]))
    word = ", ".join(filter(None, ("median" if metric is LATENCY else metric.name, unit)))
    timed = all(point.at for point in points)
    x = [round(datetime.fromisoformat(each.at).timestamp()) if timed else n for n, each in enumerate(points, 1)]
    room = max((x[-1] - x[0]) * 0.04, 10.0) if timed else 1.0

    def scaled(values: Iterable[float | None]) -> list[float | None]:
        return [None if each is None else each / factor for each in values]

    def values(*, trusted: bool) -> list[float | None]:
        return scaled(each.value if (each.verdict == "trusted") is trusted else None for each in points)

    first = scaled(None if then is None or isclose(then, value, rel_tol=1e-3) else then for value, *_, then in points)
    lines = [
        Line(name="trusted", values=values(trusted=True), tone="a"),
        Line(name="suspect or rejected", values=values(trusted=False), tone="warn"),
        Line(name="interval, high", values=scaled(each.high for each in points), kind="high", tone="quiet"),
        Line(name="interval, low", values=scaled(each.low for each in points), kind="low", tone="quiet"),
    ]
    newest, oldest = (metric.words([points[place].value])[0] for place in (-1, 0))
    summary = f"{len(points)} results, the newest {newest}, the first {oldest}."
    if rescaled := sum(each is not None for each in first):
        lines.append(Line(name="as reported then", values=first, tone="quiet"))
        summary += f" {rescaled} rescaled to today's nominal speed: what they reported then is grey."
    shown = [
        (
            moment(each.at) if timed else str(n),
            digits(each.value / factor),
            ends_words(each.low, each.high, 1 / factor, "to"),
            each.verdict,
        )
        for n, each in enumerate(points, 1)
    ]
    then = [("-" if each is None else digits(each),) for each in first] if rescaled else [()] * len(points)
    return Plot(
        id="history",
        title=f"{'medians' if metric is LATENCY else metric.name} over time".capitalize(),
        summary=summary,
        x_label="measured at" if timed else "result, oldest first",
        span=(round(x[0] - room), round(x[-1] + room)),
        time=timed,
        panels=[Panel(label=word, x=x, log=log, lines=lines)],
        table=Table(
            head=("measured at" if timed else "result", word, ", ".join(filter(None, ("interval", unit))), "verdict",
                  *([f"reported then, {unit}"] if rescaled else ())),
            rows=[(*row, *more) for row, more in zip(shown, then, strict=True)],
        ),
    )  # fmt: skip
