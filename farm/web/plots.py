"""The parts of a plot, the small statistics behind one, and the readings that plots of a kind of job need. Pure.

A plot is one or several panels under each other on one axis of x; static/plots.js draws it. Times are drawn in the
unit that suits their size. The plots of each kind are in `farm/kinds/<kind>/page.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from farm.common.durations import time_unit, with_unit

MAX_BINS = 48
TABLE_ROWS = 16
CROWDED = 2.0  # values further above the 95 % quantile than so many times are drawn at the upper edge

Numbers = Sequence[float | None]


Reading = tuple[float, float]  # seconds since 1970, °C


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a panel. `tone`: colour in plots.js.

    `kind`: points, beyond (they lie above the panel), line, steps, bars, or high and then low of error bars.
    """

    name: str
    values: Numbers
    kind: str = "points"
    tone: str = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line across a panel at `at` of the axis, or a band up to `to`."""

    name: str
    at: float
    axis: str = "y"
    to: float | None = None
    tone: str = "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes; every series has a value, or None, for each x."""

    label: str  # of the y axis, with its unit
    x: Sequence[float]
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    height: int = 240  # CSS pixels
    zero: bool = True  # whether y begins at 0
    least_span: float = 0.0  # of y at least, where it does not begin at 0
    top: float | None = None  # where y ends; None: where the values do
    log: bool = False  # whether y is a logarithmic axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The numbers of a plot for readers who do not see it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure with the sentence and the table that say the same."""

    id: str
    title: str
    summary: str  # one or two sentences
    x_label: str
    span: tuple[float, float]  # of x, the same for all panels
    panels: Sequence[Panel]
    table: Table
    time: bool = False  # whether x is seconds since 1970, which the browser shows as dates

    def named(self, id: str, title: str) -> Plot:  # noqa: A002 (what HTML calls it)
        """The same under another name."""
        return replace(self, id=id, title=title)

    def figure(self) -> dict[str, Any]:
        """The values that templates/plots.html shows. Of many samples this takes long: not for the daemon's loop."""
        data = htmlsafe_json_dumps(self.data())
        return {"id": self.id, "title": self.title, "summary": self.summary, "table": self.table, "data": data}

    def data(self) -> dict[str, Any]:
        """For plots.js; plain JSON without numbers that are none."""
        return {
            "title": self.title,
            "x_label": self.x_label,
            "span": list(self.span),
            "time": self.time,
            "panels": [_plain(panel) for panel in self.panels],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSource:
    """The data for the plots of a job."""

    shown: Mapping[str, Any]  # the answer of `job.show`
    samples: Mapping[str, Any] | None = None  # the raw samples (`certificate.raw` of the result); None: they are gone
    readings: Sequence[Reading] = ()  # the phone's temperatures since the job began

    @property
    def result(self) -> Mapping[str, Any]:
        """The job's result; empty while there is none."""
        return object_of(self.shown.get("result"))


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPage:
    """The plots on the page of a job; `PAGE` in the page.py of its kind."""

    plots: Callable[[PlotSource], list[Plot]] = lambda _: []
    samples: bool = False  # whether they are drawn of raw samples
    readings: bool = False  # whether they show the phone's temperatures
    live: bool = False  # whether they are drawn while the job runs


def unit_of(seconds: float) -> tuple[float, str]:
    """The divisor of seconds, and the unit's name, as tables of commands have them."""
    unit, scale = time_unit(abs(seconds) * 1e3)
    return 1e-3 / scale, unit


def time_words(seconds: float) -> str:
    """A time with its unit."""
    return with_unit(seconds * 1e3)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, on the line between its neighbours (numpy's default)."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def bins(ordered: Sequence[float]) -> list[float]:
    """Edges of equally wide bins over sorted values, by the rule of Freedman and Diaconis, `MAX_BINS` at most."""
    low, high = ordered[0], ordered[-1]
    if high <= low:
        half = abs(low) * 0.01 or 0.5
        return [low - half, low + half]
    between = quantile(ordered, 0.75) - quantile(ordered, 0.25)
    width = 2 * between / len(ordered) ** (1 / 3) or (high - low) / MAX_BINS
    count = max(1, min(MAX_BINS, math.ceil((high - low) / width)))
    return [low + (high - low) * number / count for number in range(count + 1)]


def counted(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many values lie in each bin; the last one has its upper edge too."""
    width, counts = edges[1] - edges[0], [0] * (len(edges) - 1)
    for value in values:
        counts[max(0, min(len(counts) - 1, int((value - edges[0]) / width)))] += 1
    return counts


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def upper_edge(values: Sequence[float]) -> float:
    """Up to where values are drawn."""
    usual = quantile(sorted(values), 0.95)
    return max(values) if max(values) <= CROWDED * usual else 1.5 * usual


def evenly(count: int, most: int = TABLE_ROWS) -> list[int]:
    """At most so many places of a list: the first, the last, and evenly many between."""
    if count <= most:
        return list(range(count))
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]


def numbers_of(value: object) -> list[float]:
    """A list of numbers; empty when it is none."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, int | float) for each in value):
        return []
    return [float(each) for each in value]


def object_of(value: object) -> Mapping[str, Any]:
    """A JSON object; empty when it is none: results are of any release."""
    return value if isinstance(value, Mapping) else {}
