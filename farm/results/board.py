"""The board: one page of all models and phones with their newest results, in one file that needs no server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

from farm.common.durations import NO_INTERVAL, digits, interval_words
from farm.common.files import short_hash
from farm.common.selector import natural
from farm.measure.conditions import common_estimate, reasons_of
from farm.results.series import ResultSeries, changes_in, has_interval, series_of, traits_of

MS = 1000
WIDTH, HEIGHT = 96, 24  # of a sparkline, CSS pixels
SPARKLINE_RESULTS = 50  # the newest


@dataclass(frozen=True, slots=True)
class BoardCell:
    """The results of one build on one phone."""

    median: str  # ms, at the phone's nominal speed
    interval: str
    verdict: str
    reason: str  # the first of its verdict; "" when trusted
    at: str
    job: str
    results: int
    sparkline: str  # points of a polyline over the medians, WIDTH x HEIGHT; "" for a single result
    change: str  # the last change of level, in words; "" without one
    slower: bool


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A build of a model, and its cells in the order of the phones; None: not measured there."""

    model: str
    sha256: str
    build: str
    cells: tuple[BoardCell | None, ...]


@dataclass(frozen=True, slots=True)
class BoardPhone:
    """A column."""

    name: str
    soc: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Board:
    """What the page shows."""

    phones: tuple[BoardPhone, ...]
    rows: tuple[BoardRow, ...]


def board_of(rows: Iterable[Mapping[str, Any]]) -> Board:
    """The newest series of each build and phone: after a system update the results of before are not shown.

    A model file that was measured under several names has the newest of them.
    """
    newest: dict[tuple[tuple[str, ...], str], ResultSeries] = {}
    for series in sorted(series_of(rows), key=lambda each: each[-1]["seq"]):
        newest[_build_of(series[-1]), series[-1]["device"]] = series
    latest = {series[-1]["device"]: series[-1] for series in sorted(newest.values(), key=lambda each: each[-1]["seq"])}
    phones = sorted(
        (BoardPhone(name, row.get("soc") or "", row.get("gpu") or "") for name, row in latest.items()),
        key=lambda phone: (phone.soc, natural(phone.name)),
    )
    names = {build: str(series[-1]["name"]) for (build, _), series in newest.items()}
    table = [
        BoardRow(
            name, short_hash(build[0]), ", ".join(filter(None, build[1:])),
            tuple(_cell(newest[build, phone.name]) if (build, phone.name) in newest else None for phone in phones),
        )
        for build, name in sorted(names.items(), key=lambda each: (each[1], each[0]))
    ]  # fmt: skip
    return Board(tuple(phones), tuple(table))


def board_page(board: Board, at: datetime) -> str:
    """The page: HTML with its style inside, no script, nothing to load."""
    from jinja2 import Environment, StrictUndefined

    text = (files("farm.results") / "board.html").read_text("utf-8")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(text)
    return template.render(board=board, at=at.strftime("%Y-%m-%d %H:%M UTC"), width=WIDTH, height=HEIGHT)


def _build_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    words = (row["model"], row.get("target"), row.get("precision"), *traits_of(row))
    return tuple(str(word or "") for word in words)


def _cell(series: ResultSeries) -> BoardCell:
    row = series[-1]
    times = common_estimate(row)
    found = changes_in(series)
    last = found[-1] if found else None
    undone = last is not None and any(change.until == last.index for change in found)
    doubts = [each.cause for each in reasons_of(row.get("reasons") or ()) if each.verdict == row["verdict"]]
    return BoardCell(
        median=digits(times["median_s"] * MS),
        interval=interval_words(times, "s", MS) if has_interval(row) else NO_INTERVAL,
        verdict=row["verdict"],
        reason=doubts[0] if doubts else "",
        at=row["at"][:16].replace("T", " "),
        job=row["job"],
        results=len(series),
        sparkline=_sparkline_points([common_estimate(each)["median_s"] for each in series[-SPARKLINE_RESULTS:]]),
        change=f"{last.ratio - 1:+.1%}{' (back)' * undone} since {series[last.index]['at'][:10]}" if last else "",
        slower=bool(last and last.slower),
    )


def _sparkline_points(medians_s: Sequence[float]) -> str:
    if len(medians_s) < 2:
        return ""
    low, high = min(medians_s), max(medians_s)
    span = max(high - low, 0.02 * high)  # a fiftieth from bottom to top at least: noise is no mountain
    step = WIDTH / (len(medians_s) - 1)
    return " ".join(
        f"{place * step:.1f},{HEIGHT - 1 - (median_s - low) / span * (HEIGHT - 2):.1f}"
        for place, median_s in enumerate(medians_s)
    )
