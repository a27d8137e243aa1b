"""`farm device battery`: a phone's battery now and day by day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farm.cli.context import print_table, tell


def print_battery(answer: dict[str, Any]) -> None:
    """The answer of `device.battery` as two tables."""
    print_table(("FACT", "VALUE"), _facts(answer))
    if answer["days"]:
        tell()
        print_table(
            ("DAY", "CHARGE", "HOTTEST", "CYCLES", "CAPACITY", "HEALTH"),
            (
                (
                    day["day"],
                    _or_dash(day["percent_min"], f"{day['percent_min']}-{day['percent_max']}%"),
                    _or_dash(day["celsius_max"], f"{day['celsius_max'] or 0:.1f}C"),
                    _or_dash(day["cycles"], str(day["cycles"])),
                    _or_dash(day["capacity"], f"{day['capacity'] or 0:.0%} of new"),
                    day["health"] or "-",
                )
                for day in answer["days"]
            ),
        )


def _facts(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    battery = answer["battery"] or {}
    units = {"percent": "%", "celsius": " °C", "voltage_mv": " mV", "current_ma": " mA into it", "cycles": ""}
    for name, unit in units.items():
        if battery.get(name) is not None:
            yield name.partition("_")[0], f"{battery[name]}{unit}"
    for name in ("health", "status"):
        if battery.get(name):
            yield name, battery[name]
    if battery.get("powered_by"):
        yield "powered by", ", ".join(battery["powered_by"])
    if answer["held"]:
        yield "charging", f"held back by {answer['held']}"
    elif answer["refused"]:
        yield "charging", f"cannot be held back: {answer['refused']}"
    else:
        yield "charging", "as the phone likes" + ("" if answer["window"] == "off" else "; farm keeps its window")
    for sign in answer["signs"]:
        yield "sign of swelling", sign


def _or_dash(value: object, text: str) -> str:
    return "-" if value is None else text
