"""`farm sweep MODEL --threads 1,2,4 --cores big,little --on SELECTOR`: which threads and cores are the fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.cli.model_command import model_command
from farm.cli.output import print_remarks, print_table
from farm.common.durations import in_one_unit, range_words
from farm.kinds.sweep import SweepSpec
from farm.measure.conditions import versus_fastest


def print_results(results: Sequence[Mapping[str, Any]]) -> None:
    """A line per phone and setting; below, the recommended one of each phone."""
    rows = [(result["device"], row) for result in results for row in result["settings"]]
    print_table(
        ("PHONE", "SETTING", "MEDIAN", "95 % RANGE", "VERDICT", "ROUNDS"),
        [
            (device, row["setting"], median, range_words(row), versus_fastest(row), row["rounds"])
            for (device, row), median in zip(rows, in_one_unit([row["median_ms"] for _, row in rows]), strict=True)
        ],
    )
    print_remarks((result["device"], line) for result in results for line in remarks(result))


sweep = model_command(
    SweepSpec, "Time a model under each number of threads on each choice of cores, in turns, on every matching phone."
)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Sentences about one result."""
    rows = result["settings"]
    best = rows[result["recommended"]]
    alike = [row["setting"] for row in rows if not row["slower"] and row is not best]
    same = f" (not distinguishable: {'; '.join(alike)})" if alike else ""
    return [f"recommended: {best['setting']}{same}", *result["certificate"]["notes"]]
