"""Series of results: rows that may be compared with each other, and the changes of level in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from farm.measure.conditions import common_estimate

if TYPE_CHECKING:
    from farm.measure.regression import Change, Point

# Rows that may be compared, oldest first.
ResultSeries = Sequence[Mapping[str, Any]]
# Columns of a build: results of different builds are different series.
BUILD = ("target", "precision", "tuned", "textures", "inputs", "placement")
# Columns that comparable results have alike: all else that shapes a number explains its changes. Times of different
# reference kernels have nothing in common to compare them by.
COMPARABLE_BY = ("model", "device", "epoch", *BUILD, "kernel")
TRAITS = ("tuned", "textures")  # of a build, true or false
# Column -> its type in formats that have types. Times are seconds, at the phone's nominal speed.
COLUMNS: Mapping[str, type] = {
    "job": str, "at": str, "model": str, "model_sha256": str, "device": str, "soc": str, "gpu": str, "epoch": str,
    **{name: bool if name in TRAITS else str for name in BUILD},
    "runtime": str, "tvm": str, "bundle": str, "library_sha256": str, "branch": str, "commit": str,
    "verdict": str, "reasons": str, "median_s": float, "low_s": float, "high_s": float, "today_median_s": float,
    "reference_kernel": str, "reference_s": float, "nominal_s": float,
}  # fmt: skip
# The columns that name model, phone and build of a result.
SERIES_LABELS = ("model", "model_sha256", "device", "soc", *BUILD)
MAIN_BRANCHES = frozenset({"", "main", "master"})  # "": a result of no branch is what people measured by hand


def series_of(rows: Iterable[Mapping[str, Any]]) -> list[ResultSeries]:
    """Rows apart by branch, model, phone, system version, kind of build and reference kernel; each oldest first.

    A branch's results are never in the series of the main branch: it may be slower, and never be merged.
    """
    known = [cast("dict[str, Any]", copy(row)) for row in rows if has_median(row)]
    for row in known:
        row["kernel"] = row.get("reference", {}).get("kernel", "")

    def key(row: Mapping[str, Any]) -> tuple[str, ...]:
        return (*series_key(row), side_branch(row))

    ordered = sorted(known, key=lambda row: (key(row), row["seq"]))
    return [list(some) for _, some in groupby(ordered, key)]


def side_branch(row: Mapping[str, Any]) -> str:
    """The branch of a row's sources; "" for the main branch and for none."""
    branch = str(row.get("branch") or "")
    return "" if branch in MAIN_BRANCHES else branch


def of_branch(rows: Iterable[Mapping[str, Any]], branch: str = "") -> Iterator[Mapping[str, Any]]:
    """The rows of one branch; "", main and master are the main branch, to which results of no branch belong."""
    wanted = side_branch({"branch": branch})
    return (row for row in rows if side_branch(row) == wanted)


def series_key(row: Mapping[str, Any], columns: Sequence[str] = COMPARABLE_BY) -> tuple[str, ...]:
    """The columns that comparable results have alike; "" for one that a row of an older release lacks."""
    whole = {"kernel": row.get("reference", {}).get("kernel", ""), **row}
    return tuple(str(whole.get(name) or "") for name in columns)


def has_median(row: Mapping[str, Any]) -> bool:
    """Whether its estimate has a finite median, which can be shown."""
    return bool(0 < ((row.get("estimate") or {}).get("median_s") or math.nan) < math.inf)


def has_interval(row: Mapping[str, Any]) -> bool:
    """Whether its median lies inside an interval, and so can be judged: one sample has none."""
    found: Mapping[str, Any] = row.get("estimate") or {}
    low, median, high = (found.get(name) or math.nan for name in ("low_s", "median_s", "high_s"))
    return found.get("count") != 1 and bool(0 < low <= median <= high < math.inf)


def changes_in(series: ResultSeries) -> tuple[Change, ...]:
    """The changes of level among the trusted results of a series; what has no interval counts for none."""
    from farm.measure.regression import changes  # numpy: `farm --help` does without

    places = [at for at, row in enumerate(series) if has_interval(row) and row["at"]]
    found = changes([point_of(series[at]) for at in places])
    return tuple(
        replace(each, index=places[each.index], until=None if each.until is None else places[each.until])
        for each in found
    )


def point_of(row: Mapping[str, Any]) -> Point:
    """A row at today's nominal speed, as `farm.measure` has results."""
    from farm.measure.regression import Point

    median_s, low_s, high_s = times_of(row)
    at_s = datetime.fromisoformat(row["at"]).timestamp()
    return Point(at_s, median_s, low_s or median_s, high_s or median_s, row["epoch"], row["verdict"] == "trusted")


def times_of(row: Mapping[str, Any]) -> tuple[float, float | None, float | None]:
    """Its median and the ends of its interval at today's nominal speed, seconds; None: it has no interval."""
    found = common_estimate(row)
    return (found["median_s"], *((found["low_s"], found["high_s"]) if has_interval(row) else (None, None)))


def traits_of(row: Mapping[str, Any]) -> list[str]:
    """In words, what sets its build apart from others for the same target in the same precision."""
    return [name for name in TRAITS if row.get(name)] + [row[name] for name in ("inputs", "placement") if row.get(name)]


def runtime_words(row: Mapping[str, Any]) -> str:
    """Under what it ran, with its version where that is known: TVM 0.27, or a program's `ort 1.31.1`."""
    named = row.get("runtime") or {"name": row.get("tvm") and "TVM", "version": row.get("tvm")}
    return " ".join(filter(None, (named["name"], named["version"])))


OWN_REFERENCE = "tvm on this host"  # a result's numerics.reference where TVM's numbers were compared with TVM's own


def checked_against(result: Mapping[str, Any]) -> str:
    """What a result's numbers were compared with."""
    numerics = result.get("numerics")
    own = isinstance(numerics, Mapping) and numerics.get("reference") == OWN_REFERENCE
    return "TVM itself on the host, nothing else" if own else "the reference"


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `history.list` by `COLUMNS`; None where the result does not have it.

    `reasons` are the codes of its verdict with a space between; `today_median_s` is the median at the nominal speed of
    the phone's newest bench, by which results of different days compare.
    """
    estimate, reference = row.get("estimate") or {}, row.get("reference") or {}
    found = {
        **{name: row.get(name) for name in COLUMNS},
        "model": row.get("name"),
        "model_sha256": row.get("model"),
        "runtime": runtime_words(row),
        "reasons": " ".join(str(each.get("code", "")) for each in row.get("reasons") or ()),
        "median_s": estimate.get("median_s"),
        **{name: estimate[name] if has_interval(row) else None for name in ("low_s", "high_s")},
        "today_median_s": common_estimate(row).get("median_s"),
        "reference_kernel": reference.get("kernel") or None,
        "reference_s": reference.get("median_s"),
        "nominal_s": reference.get("nominal_s"),
    }
    return {name: _as(kind, found[name]) for name, kind in COLUMNS.items()}


def _as(kind: type, value: Any) -> Any:
    if value is None or value == "":
        return None
    if kind is float:
        return float(value) if isinstance(value, int | float) else None
    return value if isinstance(value, kind) else str(value) if kind is str else None
