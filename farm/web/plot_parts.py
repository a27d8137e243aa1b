"""What a plot is made of, and the small statistics behind one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from farm.core.durations import digits

MOST_BINS = 48

Numbers = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a panel. `tone`: colour in plots.js.

    `kind`: points, beyond (they lie above the panel), line, steps, bars, or high and then low of a band.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The numbers of a plot for readers who do not see it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot as the page has it."""

    id: str
    title: str
    said: str
    table: Table
    data: Markup  # JSON for plots.js


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure. `said`: in a sentence or two, what it shows."""

    id: str
    title: str
    said: str
    x_label: str
    span: tuple[float, float]  # of x, the same for all panels
    panels: Sequence[Panel]
    table: Table

    def named(self, id: str, title: str) -> Plot:  # noqa: A002 (what HTML calls it)
        """The same under another name."""
        return replace(self, id=id, title=title)

    def figure(self) -> Figure:
        """For the page. Of many samples this takes long: not for the daemon's loop."""
        data = htmlsafe_json_dumps(self.data())
        return Figure(id=self.id, title=self.title, said=self.said, table=self.table, data=data)

    def data(self) -> dict[str, Any]:
        """For plots.js; plain JSON without numbers that are none."""
        return {
            "title": self.title,
            "x_label": self.x_label,
            "span": list(self.span),
            "panels": [_plain(panel) for panel in self.panels],
        }


def unit_of(seconds: float) -> tuple[float, str]:
    """What to divide seconds by, and the unit's name: milliseconds, as all tables have them, below a second."""
    return (1.0, "s") if abs(seconds) >= 1 else (1e-3, "ms")


def time_words(seconds: float) -> str:
    """A time with its unit."""
    factor, unit = unit_of(seconds)
    return f"{digits(seconds / factor)} {unit}"


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, on the line between its neighbours (numpy's default)."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def bins(ordered: Sequence[float]) -> list[float]:
    """Edges of equally wide bins over sorted values, by the rule of Freedman and Diaconis, `MOST_BINS` at most."""
    low, high = ordered[0], ordered[-1]
    if high <= low:
        half = abs(low) * 0.01 or 0.5
        return [low - half, low + half]
    between = quantile(ordered, 0.75) - quantile(ordered, 0.25)
    width = 2 * between / len(ordered) ** (1 / 3) or (high - low) / MOST_BINS
    count = max(1, min(MOST_BINS, math.ceil((high - low) / width)))
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
