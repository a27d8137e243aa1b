"""What results measure: metrics with their units, and in which direction each is better. Pure; no numpy is imported.

A bench's estimate is the metric `latency`. The certificate of each other kind has `values`, by names of METRICS. Lines
of history, cells of the board, exports and answers for CI are made of a metric's values alone, whatever the kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from farm.common.durations import digits, in_one_unit, is_number

MIN_VALUE, MAX_VALUE = 1e-15, 1e15  # of a report: no factor between two leaves the range of numbers
MAX_VALUES = 32


@dataclass(frozen=True, slots=True)
class ResultMetric:
    """What a stored value is of, and how it is written."""

    name: str
    unit: str  # of stored values: s, J, B; "": a ratio
    shown: str  # the unit in tables that have one for all values
    factor: float  # from `unit` to `shown`
    higher: bool = False  # whether higher is better
    single: bool = False  # a job reads it once: how far results of several jobs scatter is all that is known

    def is_worse(self, ratio: float) -> bool:
        """Whether a value is worse than the value that it is so many times of."""
        return ratio < 1 if self.higher else ratio > 1

    def words(self, values: Sequence[float | None], *, aligned: bool = True) -> list[str]:
        """Values with their unit, in one unit: `10.02 mJ`; `-` for None. `aligned`: they stand in a column."""
        if self.unit == "s":
            return in_one_unit([value and value * 1e3 for value in values], aligned=aligned)
        words = ["-" if value is None else f"{digits(value * self.factor)} {self.shown}".rstrip() for value in values]
        return [each.rjust(max(map(len, words))) if aligned and each != "-" else each for each in words]


LATENCY = ResultMetric("latency", "s", "ms", 1e3)
ENERGY = ResultMetric("energy", "J", "mJ", 1e3)
PEAK_MEMORY = ResultMetric("peak memory", "B", "MB", 1e-6, single=True)
FIRST_LOAD_TIME = ResultMetric("first load", "s", "ms", 1e3, single=True)
FIRST_RUN_TIME = ResultMetric("first run", "s", "ms", 1e3, single=True)
END_LATENCY = ResultMetric("latency at the end", "s", "ms", 1e3)
SLOWDOWN = ResultMetric("slowdown", "", "", 1.0, single=True)
METRICS: Mapping[str, ResultMetric] = {
    each.name: each for each in (LATENCY, ENERGY, PEAK_MEMORY, FIRST_LOAD_TIME, FIRST_RUN_TIME, END_LATENCY, SLOWDOWN)
}


def values_of(*found: tuple[ResultMetric, float, float | None, float | None]) -> dict[str, Any]:
    """The `values` of a certificate: (metric, value, the ends of its 95 % interval or None) each."""
    return {metric.name: {"value": value, "low": low, "high": high} for metric, value, low, high in found}


def are_values(found: object) -> bool:
    """Whether these are the `values` of a certificate; a name that METRICS has not is another release's."""
    return (
        isinstance(found, Mapping)
        and len(found) <= MAX_VALUES
        and all(isinstance(each, Mapping) and _is_value(each.get("value")) for each in found.values())
        and all(each.get(end) is None or _is_value(each[end]) for each in found.values() for end in ("low", "high"))
    )


def _is_value(found: object) -> bool:
    return is_number(found) and MIN_VALUE <= cast("float", found) <= MAX_VALUE
