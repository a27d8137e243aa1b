"""The board: one page of all models and phones with their newest results, in one file that needs no server.

Where builds were run on labelled inputs, it draws their speed against their quality on each phone. On the front are the
builds that no other one beats in both; rejected medians, and those of one sample, are points beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

from farm.common.durations import NO_INTERVAL, digits, ends_words, many
from farm.common.files import short_hash
from farm.common.selector import natural
from farm.measure.conditions import Verdict, common_estimate, moved_nominal, reasons_of
from farm.measure.metrics import LATENCY
from farm.results.series import (
    ResultSeries,
    accelerated,
    changes_in,
    has_interval,
    metric_of,
    reading_of,
    reported,
    series_key,
    series_of,
    traits_of,
)

MS = 1000
WIDTH, HEIGHT = 96, 24  # of a sparkline, CSS pixels
SPARKLINE_RESULTS = 50  # the newest
FRONT_WIDTH, FRONT_HEIGHT, MARGIN = 480, 260, 48  # of a drawing of speed against quality, CSS pixels


@dataclass(frozen=True, slots=True)
class BoardCell:
    """The results of one metric of one build on one phone."""

    value: str  # in `unit`; a latency at the phone's nominal speed
    unit: str
    reported: str  # in `unit`, as its job reported it; "": the same
    interval: str
    verdict: str
    reason: str  # the first of its verdict; "" when trusted
    at: str
    job: str
    results: int
    ran_on: str  # where the work ran; "": not known, or in the name of the build
    sparkline: str  # points of a polyline over the values, WIDTH x HEIGHT; "" for a single result
    change: str  # the last change of level, in words; "" without one
    worse: bool


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A metric of a build of a model, and its cells in the order of the phones; None: not measured there."""

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
class FrontPoint:
    """One build on one phone: how fast and how right."""

    model: str
    build: str
    median_ms: float  # at the phone's nominal speed
    verdict: str  # of the bench
    value: float  # in the metric's unit
    low: float
    high: float
    on_front: bool
    jobs: tuple[str, str]  # that measured its speed, and its quality


@dataclass(frozen=True, slots=True)
class Front:
    """The builds that ran on the same labelled inputs on one phone, the fastest first."""

    phone: str
    metric: str
    unit: str
    data: str  # short hash of the labelled inputs
    count: int  # labelled inputs
    points: tuple[FrontPoint, ...]

    @property
    def title(self) -> str:
        """The phone, the metric and the labelled inputs in words."""
        return f"{self.phone}: {self.metric} of {many(self.count, 'labelled input', ',')} ({self.data})"

    def place(self, median_ms: float, value: float) -> tuple[float, float]:
        """Where a point is drawn, CSS pixels from the upper left corner."""
        times, values = [each.median_ms for each in self.points], [
            end for each in self.points for end in (each.low, each.high)
        ]  # fmt: skip
        x = _between(median_ms, 0.0, max(times)) * (FRONT_WIDTH - 2 * MARGIN) + MARGIN
        y = FRONT_HEIGHT - MARGIN - _between(value, min(values), max(values)) * (FRONT_HEIGHT - 2 * MARGIN)
        return round(x, 1), round(y, 1)

    @property
    def line(self) -> str:
        """The points of the polyline through the front, a step for each build."""
        drawn: list[tuple[float, float]] = []
        last: float | None = None
        for each in self.points:
            if each.on_front:
                drawn += [(each.median_ms, last)] if last is not None else []
                drawn.append((each.median_ms, each.value))
                last = each.value
        return " ".join(f"{x},{y}" for x, y in (self.place(*each) for each in drawn))


@dataclass(frozen=True, slots=True)
class Board:
    """What the page shows."""

    phones: tuple[BoardPhone, ...]
    rows: tuple[BoardRow, ...]
    fronts: tuple[Front, ...] = ()


def board_of(rows: Iterable[Mapping[str, Any]]) -> Board:
    """The newest series of each metric, build and phone: after a system update the results of before are not shown.

    A model file that was measured under several names has the newest of them.
    """
    rows = list(rows)
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
    speeds = {key: each[-1] for key, each in newest.items() if metric_of(each[-1]) is LATENCY}
    return Board(tuple(phones), tuple(table), tuple(_fronts(speeds, rows)))


def _fronts(
    newest: Mapping[tuple[tuple[str, ...], str], Mapping[str, Any]], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Front]:
    """For each phone, metric and file of labelled inputs, the builds whose speed is known, too.

    `newest`: the newest result of each build on each phone.
    """
    qualities: dict[tuple[str, str, str], dict[tuple[str, ...], Mapping[str, Any]]] = {}
    for row in sorted((row for row in rows if row.get("quality")), key=lambda row: row["seq"]):
        group = row["device"], row["quality"]["metric"], str(row["quality"].get("data", ""))
        qualities.setdefault(group, {})[_numbers_of(row)] = row
    for (phone, metric, data), found in sorted(qualities.items(), key=lambda each: (natural(each[0][0]), each[0])):
        speeds = sorted(
            (row for (_, device), row in newest.items() if device == phone and _numbers_of(row) in found),
            key=lambda row: float(common_estimate(row)["median_s"]),
        )
        if speeds:
            yield _front_of(phone, metric, data, [(row, found[_numbers_of(row)]) for row in speeds])


def _front_of(
    phone: str, metric: str, data: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Front:
    """`pairs`: the rows of each build's speed and quality, the fastest first."""
    from farm.measure.quality import METRICS  # numpy: not at the daemon's start

    known = METRICS[metric]
    points: list[FrontPoint] = []
    best: float | None = None
    for speed, row in pairs:
        value, low, high = (row["quality"][name] * known.factor for name in ("value", "low", "high"))
        counts = speed["verdict"] != Verdict.REJECTED and has_interval(speed)
        better = counts and (best is None or (value > best if known.higher else value < best))
        best = value if better else best
        build = ", ".join(filter(None, _build_of(speed)[1:]))
        median_ms = common_estimate(speed)["median_s"] * MS
        points.append(
            FrontPoint(
                row["name"], build, median_ms, speed["verdict"], value, low, high, better, (speed["job"], row["job"])
            )
        )
    count = int(pairs[0][1]["quality"]["count"])
    return Front(phone, metric, known.unit, short_hash(data), count, tuple(points))


def _between(value: float, low: float, high: float) -> float:
    """From 0 to 1; the middle where the ends are one."""
    return (value - low) / (high - low) if high > low else 0.5


def board_page(board: Board, at: datetime) -> str:
    """The page: HTML with its style inside, no script, nothing to load."""
    from jinja2 import Environment, StrictUndefined

    text = (files("farm.results") / "board.html").read_text("utf-8")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(text)
    return template.render(
        board=board, at=at.strftime("%Y-%m-%d %H:%M UTC"), width=WIDTH, height=HEIGHT,
        front=(FRONT_WIDTH, FRONT_HEIGHT, MARGIN), digits=digits,
    )  # fmt: skip


def _build_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    words = (row["model"], row.get("target"), row.get("precision"), *traits_of(row))
    return tuple(str(word or "") for word in words)


def _numbers_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What shapes the numbers of a build, wherever its threads run."""
    return series_key(row, ("model", "target", "precision", "tuned", "textures", "inputs"))


def _cell(series: ResultSeries) -> BoardCell:
    row, metric, now = series[-1], metric_of(series[-1]), reading_of(series[-1])
    told = reported(row) if moved_nominal([row]) else None
    found = changes_in(series)
    last = found[-1] if found else None
    undone = last is not None and any(change.until == last.index for change in found)
    doubts = [each.cause for each in reasons_of(row.get("reasons") or ()) if each.verdict == row["verdict"]]
    return BoardCell(
        value=digits(now.value * metric.factor),
        unit=metric.shown,
        reported=digits(told.value * metric.factor) if told else "",
        interval=ends_words(now.low, now.high, metric.factor) if now.low else "" if metric.single else NO_INTERVAL,
        verdict=row["verdict"],
        reason=doubts[0] if doubts else "",
        at=row["at"][:16].replace("T", " "),
        job=row["job"],
        results=len(series),
        ran_on="" if accelerated(row) else str(row.get("ran_on") or ""),
        sparkline=_sparkline_points([reading_of(each).value for each in series[-SPARKLINE_RESULTS:]]),
        change=f"{last.ratio - 1:+.1%}{' (back)' * undone} since {series[last.index]['at'][:10]}" if last else "",
        worse=bool(last and metric.is_worse(last.ratio)),
    )


def _sparkline_points(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = max(high - low, 0.02 * high)  # a fiftieth from bottom to top at least: noise is no mountain
    step = WIDTH / (len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{HEIGHT - 1 - (value - low) / span * (HEIGHT - 2):.1f}"
        for place, value in enumerate(values)
    )
