"""Series of results: rows that may be compared with each other, and the changes of level in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from farm.measure.conditions import common_estimate

if TYPE_CHECKING:
    from farm.measure.regression import Change

# Rows that may be compared, oldest first.
ResultSeries = Sequence[Mapping[str, Any]]
# Columns that comparable results have alike: all else that shapes a number explains its changes. Times of different
# reference kernels have nothing in common to compare them by.
COMPARABLE_BY = ("model", "device", "epoch", "target", "precision", "tuned", "textures", "kernel")


def series_of(rows: Iterable[Mapping[str, Any]]) -> list[ResultSeries]:
    """Rows apart by model, phone, system version, kind of build and reference kernel; each series oldest first."""
    known = ({**row, "kernel": row.get("reference", {}).get("kernel", "")} for row in rows if has_number(row))

    def key(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row.get(name) or "") for name in COMPARABLE_BY)  # a row of an older release lacks some

    ordered = sorted(known, key=lambda row: (key(row), row["seq"]))
    return [list(some) for _, some in groupby(ordered, key)]


def has_number(row: Mapping[str, Any]) -> bool:
    """Whether its estimate has a median inside an interval: samples that are beyond all bounds give none."""
    low, median, high = (row.get("estimate", {}).get(name) for name in ("low_s", "median_s", "high_s"))
    return None not in (low, median, high) and bool(0 < low <= median <= high < math.inf)


def changes_in(series: ResultSeries) -> tuple[Change, ...]:
    """The changes of level among the trusted results of a series."""
    from farm.measure.regression import Point, changes  # numpy: `farm --help` does without

    return changes(
        [
            Point(
                at_s=datetime.fromisoformat(row["at"]).timestamp(),
                median_s=common_estimate(row)["median_s"],
                low_s=common_estimate(row)["low_s"],
                high_s=common_estimate(row)["high_s"],
                epoch=row["epoch"],
                trusted=row["verdict"] == "trusted",
            )
            for row in series
        ]
    )
