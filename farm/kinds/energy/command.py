"""`farm energy MODEL --on SELECTOR`: joules of one inference on phones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.cli.model_command import model_command
from farm.cli.output import print_remarks, print_table
from farm.common.durations import digits, in_one_unit, range_words
from farm.kinds.energy import EnergySpec

MJ = 1e3


def print_results(results: Sequence[Mapping[str, Any]]) -> None:
    """A line per phone; below, why a meter or gauge gives no number."""
    print_table(
        ("PHONE", "ENERGY", "95 % RANGE", "WITH IDLE", "IDLE", "BUSY", "TIME"), [_row(each) for each in results]
    )
    print_remarks((result["device"], line) for result in results for line in remarks(result))


energy = model_command(
    EnergySpec, "Measure the joules of one inference on every matching phone, by its meter, rails or fuel gauge."
)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Sentences about one result."""
    certificate = result["certificate"]
    doubts = [each["cause"] for each in certificate.get("reasons", ()) if each["code"] != "unresolved"]
    notes: list[str] = [*doubts, *certificate["notes"]]
    unresolved = result["unresolved"]
    if unresolved is None:
        return notes
    needed_s = unresolved["needed_s"]
    longer = "a longer run does not help" if needed_s is None else f"--measure {needed_s:.0f} is expected to tell"
    return [f"the meter does not resolve it: {unresolved['sentence']}; {longer}", *notes]


def _row(result: Mapping[str, Any]) -> tuple[object, ...]:
    found = result["energy"]
    if found is None:
        return (result["device"], *"------")
    return (
        result["device"],
        f"{digits(found['net_j'] * MJ)} mJ",
        range_words(found, "j", "net_j"),
        f"{digits(found['gross_j'] * MJ)} mJ",
        f"{digits(found['idle_w'])} W",
        f"{digits(found['busy_w'])} W",
        *in_one_unit([found["inference_s"] * 1e3]),
    )
