"""A result as flat columns: the same names and units in every format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.measure.conditions import common_estimate
from farm.results.series import BUILD, has_interval

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
