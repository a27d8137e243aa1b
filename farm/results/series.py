"""Series of results: rows that may be compared with each other, and the changes of level in them.

A stored row has the values of all metrics that its job measured. `by_metric` makes a row of each, with its `metric`;
all that reads a row's value does it by `reading_of` or `reported`, and has its unit from `metric_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from farm.common.durations import digits, with_unit
from farm.common.files import size_words
from farm.measure.conditions import common_estimate, ratio_words
from farm.measure.metrics import LATENCY, METRICS, ResultMetric

if TYPE_CHECKING:
    from farm.measure.regression import Change, Point

# Rows that may be compared, oldest first.
ResultSeries = Sequence[Mapping[str, Any]]
# Columns of a build, and how it was measured: results that differ in them are different series.
BUILD = ("target", "precision", "tuned", "textures", "inputs", "placement", "ran_on", "method")
# Columns that comparable results have alike: all else that shapes a number explains its changes. Times of different
# reference kernels have nothing in common to compare them by.
COMPARABLE_BY = ("model", "device", "epoch", "metric", *BUILD, "kernel")
TRAITS = ("tuned", "textures")  # of a build, true or false
# Column -> its type in formats that have types. Times are seconds, at the phone's nominal speed; `number` is the runs
# averaged into a sample, `offloaded` the part of the work that no CPU did; `value` with its interval is in `unit`.
COLUMNS: Mapping[str, type] = {
    "job": str, "at": str, "model": str, "model_sha256": str, "device": str, "soc": str, "gpu": str, "epoch": str,
    **{name: bool if name in TRAITS else str for name in BUILD},
    "runtime": str, "tvm": str, "bundle": str, "library_sha256": str, "branch": str, "commit": str,
    "verdict": str, "reasons": str, "metric": str, "unit": str, "value": float, "low": float, "high": float,
    "median_s": float, "low_s": float, "high_s": float, "today_median_s": float,
    "reference_kernel": str, "reference_s": float, "nominal_s": float, "p90_s": float, "p99_s": float, "number": float,
    "offloaded": float,
    "quality_metric": str, "quality": float, "quality_low": float, "quality_high": float, "quality_inputs": float,
}  # fmt: skip
# The columns that name model, phone and build of a result.
SERIES_LABELS = ("model", "model_sha256", "device", "soc", "metric", *BUILD)
MAIN_BRANCHES = frozenset({"", "main", "master"})  # "": a result of no branch is what people measured by hand


class Reading(NamedTuple):
    """A row's value of its metric, in the metric's unit."""

    value: float  # finite, above 0
    low: float | None  # of the 95 % interval; None: it has none
    high: float | None


def by_metric(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each stored row once for each metric that its job measured; one without any, of a model's quality, as it is."""
    for row in rows:
        named = [LATENCY.name] if row.get("estimate") else []
        named += [name for name in row.get("values") or () if name in METRICS and name != LATENCY.name]
        named = [row["metric"]] if row.get("metric") else named
        for name in named or [""]:
            one: Any = copy(row)  # an answer's own class names a field that an older daemon leaves out
            if name:
                one["metric"] = name
            yield one


def metric_of(row: Mapping[str, Any]) -> ResultMetric:
    """The metric of a row of `by_metric`; latency of a stored row."""
    return METRICS[row.get("metric") or LATENCY.name]


def series_of(rows: Iterable[Mapping[str, Any]]) -> list[ResultSeries]:
    """Rows apart by branch, model, phone, system version, metric, kind of build and kernel; each oldest first.

    A branch's results are never in the series of the main branch: it may be slower, and never be merged.
    """
    known = [row for row in by_metric(rows) if reported(row)]
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
    named = {"metric": metric_of(row).name, "ran_on": accelerated(row)}
    whole = {"kernel": row.get("reference", {}).get("kernel", ""), **row, **named}
    return tuple(str(whole.get(name) or "") for name in columns)


def accelerated(row: Mapping[str, Any]) -> str:
    """Where the work of a program ran, in words; "" on CPUs alone, or not known.

    TVM's units are known of profiled results only, and follow from the target: they set no results apart.
    """
    return str(row.get("ran_on") or "") if row.get("runtime") and row.get("offloaded") != 0 else ""


def reported(row: Mapping[str, Any]) -> Reading | None:
    """What the row's job reported of its metric; None: no finite value above 0. One sample has no interval."""
    metric = metric_of(row)
    if metric is LATENCY:
        estimate: Mapping[str, Any] = row.get("estimate") or {}
        found = [estimate.get(name) for name in ("median_s", "low_s", "high_s")]
        found[1:] = [None, None] if estimate.get("count") == 1 else found[1:]
    else:
        given: Mapping[str, Any] = (row.get("values") or {}).get(metric.name) or {}
        found = [given.get(name) for name in ("value", "low", "high")]
    value, low, high = (each or math.nan for each in found)
    if not 0 < value < math.inf:
        return None
    return Reading(value, low, high) if 0 < low <= value <= high < math.inf else Reading(value, None, None)


def has_interval(row: Mapping[str, Any]) -> bool:
    """Whether its value lies inside an interval: one sample has none."""
    return (found := reported(row)) is not None and found.low is not None


def is_judged(row: Mapping[str, Any]) -> bool:
    """Whether its value counts in comparisons: one has an interval, or is of a metric that a job reads once."""
    return has_interval(row) or (metric_of(row).single and reported(row) is not None)


def changes_in(series: ResultSeries) -> tuple[Change, ...]:
    """The changes of level among the trusted results of a series; what is not judged counts for none."""
    from farm.measure.regression import changes  # numpy: `farm --help` does without

    places = [at for at, row in enumerate(series) if is_judged(row) and row["at"]]
    found = changes([point_of(series[at]) for at in places])
    return tuple(
        replace(each, index=places[each.index], until=None if each.until is None else places[each.until])
        for each in found
    )


def point_of(row: Mapping[str, Any]) -> Point:
    """A row at today's nominal speed, as `farm.measure` has results."""
    from farm.measure.regression import Point

    value, low, high = reading_of(row)
    at_s = datetime.fromisoformat(row["at"]).timestamp()
    return Point(at_s, value, low or value, high or value, row["epoch"], row["verdict"] == "trusted")


def reading_of(row: Mapping[str, Any]) -> Reading:
    """The value of a row that has one; a latency at today's nominal speed.

    Raises:
        ValueError: it has none.
    """
    found = reported(row)
    if found is None:
        raise ValueError(f"the result of {row.get('job')} has no finite {metric_of(row).name}")
    if metric_of(row) is not LATENCY:
        return found
    today = common_estimate(row)
    return Reading(today["median_s"], *((None, None) if found.low is None else (today["low_s"], today["high_s"])))


def traits_of(row: Mapping[str, Any]) -> list[str]:
    """In words, what sets its build apart from others for the same target in the same precision."""
    metric = metric_of(row)
    words = (row.get("inputs"), row.get("placement"), accelerated(row), row.get("method"))
    return [
        *([] if metric is LATENCY else [metric.name]),
        *(name for name in TRAITS if row.get(name)),
        *(str(each) for each in words if each),
    ]


def runtime_words(row: Mapping[str, Any]) -> str:
    """Under what it ran, with its version where that is known: TVM 0.27, or a program's `ort 1.31.1`."""
    named = row.get("runtime") or {"name": row.get("tvm") and "TVM", "version": row.get("tvm")}
    return " ".join(filter(None, (named["name"], named["version"])))


# What a list shows of a job's result: the first of these figures that it has, by its part ("": the result) and field.
_LISTED: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("estimate", "median_ms", with_unit),
    ("speedup", "times", "{:.2f} times as fast".format),
    ("comparison", "ratio", lambda ratio: f"B / A {ratio_words(ratio)}"),
    ("energy", "net_j", lambda joules: f"{digits(joules * 1e3)} mJ"),
    ("plateau", "median_ms", lambda median_ms: f"{with_unit(median_ms)} sustained"),
    ("", "peak_bytes", size_words),
    ("", "exit_code", "exit code {}".format),
)


def list_words(result: Mapping[str, Any]) -> tuple[str, str]:
    """A job's result in a list: its figure, and its verdict or answer; "" for what there is none of."""
    for name, field, words in _LISTED:
        part = result.get(name) if name else result
        value = part.get(field) if isinstance(part, Mapping) else None
        if isinstance(part, Mapping) and isinstance(value, int | float) and (value or field == "exit_code"):
            verdict = result.get("verdict") if name == "estimate" else part.get("answer")
            return words(value), verdict if isinstance(verdict, str) else ""
    return "", ""


def list_why(row: Mapping[str, Any]) -> str:
    """Why a job of a list waits, failed, or has a result that is not trusted; "": nothing of these."""
    return str(row["waits"] or (row["error"] or {}).get("message") or (row.get("result") or {}).get("why") or "")


OWN_REFERENCE = "tvm on this host"  # a result's numerics.reference where TVM's numbers were compared with TVM's own


def checked_against(result: Mapping[str, Any]) -> str:
    """What a result's numbers were compared with."""
    numerics = result.get("numerics")
    own = isinstance(numerics, Mapping) and numerics.get("reference") == OWN_REFERENCE
    return "TVM itself on the host, nothing else" if own else "the reference"


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `by_metric` by `COLUMNS`; None where the result does not have it.

    `reasons` are the codes of its verdict with a space between; `today_median_s` is the median at the phone's
    agreed nominal speed, by which results of different days compare.
    """
    metric, value = metric_of(row), reported(row)
    of_latency = row if metric is LATENCY else {}
    estimate, reference, quality = (of_latency.get(name) or {} for name in ("estimate", "reference", "quality"))
    found = {
        **{name: row.get(name) for name in COLUMNS},
        **({"metric": metric.name, "unit": metric.unit, **value._asdict()} if value else {}),
        "model": row.get("name"),
        "model_sha256": row.get("model"),
        "runtime": runtime_words(row),
        "reasons": " ".join(str(each.get("code", "")) for each in row.get("reasons") or ()),
        "median_s": estimate.get("median_s"),
        **{name: estimate[name] if estimate and has_interval(row) else None for name in ("low_s", "high_s")},
        "today_median_s": common_estimate(of_latency).get("median_s"),
        "reference_kernel": reference.get("kernel") or None,
        "reference_s": reference.get("median_s"),
        "nominal_s": reference.get("nominal_s"),
        "quality_metric": quality.get("metric"),
        "quality": quality.get("value"),
        **{f"quality_{name}": quality.get(name) for name in ("low", "high")},
        "quality_inputs": quality.get("count"),
    }
    return {name: _as(kind, found[name]) for name, kind in COLUMNS.items()}


def _as(kind: type, value: Any) -> Any:
    if value is None or value == "":
        return None
    if kind is float:
        return float(value) if isinstance(value, int | float) else None
    return value if isinstance(value, kind) else str(value) if kind is str else None
