"""Series of results: rows that may be compared with each other, and the changes of level in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from farm.measure.conditions import common_estimate

if TYPE_CHECKING:
    from farm.measure.regression import Change, Point

# Rows that may be compared, oldest first.
ResultSeries = Sequence[Mapping[str, Any]]
# Columns that comparable results have alike: all else that shapes a number explains its changes. Times of different
# reference kernels have nothing in common to compare them by.
COMPARABLE_BY = ("model", "device", "epoch", "target", "precision", "tuned", "textures", "placement", "kernel")


def series_of(rows: Iterable[Mapping[str, Any]]) -> list[ResultSeries]:
    """Rows apart by model, phone, system version, kind of build and reference kernel; each series oldest first."""
    known = ({**row, "kernel": row.get("reference", {}).get("kernel", "")} for row in rows if has_number(row))
    ordered = sorted(known, key=lambda row: (series_key(row), row["seq"]))
    return [list(some) for _, some in groupby(ordered, series_key)]


def series_key(row: Mapping[str, Any], columns: Sequence[str] = COMPARABLE_BY) -> tuple[str, ...]:
    """The columns that comparable results have alike; "" for one that a row of an older release lacks."""
    whole = {"kernel": row.get("reference", {}).get("kernel", ""), **row}
    return tuple(str(whole.get(name) or "") for name in columns)


def has_number(row: Mapping[str, Any]) -> bool:
    """Whether its estimate has a median inside an interval: samples that are beyond all bounds give none."""
    low, median, high = (row.get("estimate", {}).get(name) for name in ("low_s", "median_s", "high_s"))
    return None not in (low, median, high) and bool(0 < low <= median <= high < math.inf)


def changes_in(series: ResultSeries) -> tuple[Change, ...]:
    """The changes of level among the trusted results of a series."""
    from farm.measure.regression import changes  # numpy: `farm --help` does without

    return changes([point_of(row) for row in series])


def point_of(row: Mapping[str, Any]) -> Point:
    """A row at today's nominal speed, as `farm.measure` has results."""
    from farm.measure.regression import Point

    times = common_estimate(row)
    return Point(
        at_s=datetime.fromisoformat(row["at"]).timestamp(),
        median_s=times["median_s"],
        low_s=times["low_s"],
        high_s=times["high_s"],
        epoch=row["epoch"],
        trusted=row["verdict"] == "trusted",
    )
