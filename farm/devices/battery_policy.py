"""Batteries: the charge window, ageing, and signs of swelling. Pure.

Batteries swell in phones that hang on a cable for years at 100 % and 40 °C. What farm knows of a battery is what its
gauge and charger say, so a suspicion is a request to look, never a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from farm.model.health import Battery, BatteryDay, Finding, FindingKind

TREND_DAYS = 30
COLLAPSE = 0.15  # of the design capacity, lost within TREND_DAYS: wear takes a year for that
# An idle cell below 60 % rests at 3.85 V or less; only one with a high resistance, or a gauge that lies, says more.
HIGH_AT_REST_MV, LOW_LEVEL_PERCENT = 4200, 60
WARM_FOR_DAYS, WARM_C = 3, 45.0  # in a row: a phone on a shelf has 25 to 35 °C, one at work 40 °C


class Window(StrEnum):
    """How charging is held within the window."""

    OFF = "off"  # not at all
    PHONE = "phone"  # by the phone's own switch, where root may write it


@dataclass(frozen=True, slots=True)
class BatteryConfig:
    """`[battery]`: opt-in, for it writes to the phone's charger driver."""

    window: Window = Window.OFF  # "phone": charging is held back by the charger's switch, which only root may write
    low_percent: Annotated[int, Field(ge=0, le=100)] = 40  # charging continues below: cells age least half full
    high_percent: Annotated[int, Field(ge=0, le=100)] = 80  # and stops above: above 4.1 V they age twice as fast


def with_reading(day: BatteryDay, now: Battery) -> BatteryDay:
    """The day with one more reading."""

    def lowest(kept: int | None, new: int | None) -> int | None:
        return min((each for each in (kept, new) if each is not None), default=None)

    return replace(
        day,
        percent_min=lowest(day.percent_min, now.percent),
        percent_max=max((each for each in (day.percent_max, now.percent) if each is not None), default=None),
        celsius_max=max((each for each in (day.celsius_max, now.celsius) if each is not None), default=None),
        cycles=day.cycles if now.cycles is None else now.cycles,
        full_uah=day.full_uah if now.full_uah is None else now.full_uah,
        design_uah=day.design_uah if now.design_uah is None else now.design_uah,
        health=now.health if now.health and day.health in ("", "good") else day.health,
    )


def joined(kept: Sequence[BatteryDay], since: Sequence[BatteryDay]) -> list[BatteryDay]:
    """Days that were kept and days since, each oldest first; a day that is in both has the figures of both."""
    days = {day.day: day for day in kept}
    for day in since:
        rest = Battery(
            percent=day.percent_max,
            celsius=day.celsius_max,
            health=day.health,
            cycles=day.cycles,
            full_uah=day.full_uah,
            design_uah=day.design_uah,
        )
        both = with_reading(days.get(day.day, BatteryDay(day.day)), Battery(percent=day.percent_min))
        days[day.day] = with_reading(both, rest)
    return [days[name] for name in sorted(days)]


def charges(now: Battery, config: BatteryConfig, held_back: bool) -> bool | None:
    """Whether it should be charged now; None: as it is.

    Args:
        now: the latest reading.
        config: the window.
        held_back: whether farm has stopped its charging.
    """
    if now.percent is None:
        return True if held_back else None  # a gauge that says nothing protects nothing
    if not held_back and now.percent >= config.high_percent and now.powered_by:
        return False
    if held_back and now.percent <= config.low_percent:
        return True
    return None


def swelling(now: Battery, days: Sequence[BatteryDay]) -> tuple[str, ...]:
    """Signs of a cell that gases, each as a clause with its figure. `days`: oldest first, today last."""
    signs = []
    if now.health == "over-voltage":
        signs.append("the phone reports over-voltage")
    resting = now.status in ("discharging", "not-charging")
    percent, voltage_mv = 100 if now.percent is None else now.percent, now.voltage_mv or 0
    if resting and percent <= LOW_LEVEL_PERCENT and voltage_mv >= HIGH_AT_REST_MV:
        signs.append(f"{voltage_mv} mV at {percent} % without charging")
    recent = [each for each in days[-TREND_DAYS:] if each.capacity is not None]
    if len(recent) > 1:
        best, last = max(each.capacity or 0.0 for each in recent), recent[-1].capacity or 0.0
        if best - last >= COLLAPSE:
            signs.append(
                f"its capacity fell from {best:.0%} to {last:.0%} of new within {len(days[-TREND_DAYS:])} days"
            )
    last_days = days[-WARM_FOR_DAYS:]
    if len(last_days) == WARM_FOR_DAYS and all((each.celsius_max or 0.0) >= WARM_C for each in last_days):
        hottest = max(each.celsius_max or 0.0 for each in last_days)
        signs.append(f"up to {hottest:.0f} °C on each of the last {WARM_FOR_DAYS} days")
    return tuple(signs)


def battery_findings(
    now: Battery, days: Sequence[BatteryDay], worn_percent: int, worn_cycles: int
) -> Iterable[Finding]:
    """Findings from a battery's days, beyond its latest reading. One sign alone has many harmless causes."""
    if len(signs := swelling(now, days)) > 1:
        yield Finding(
            FindingKind.BATTERY_SWOLLEN,
            "the battery may be swelling",
            "look at it, and unplug it if its back bulges or its screen is lifted",
            evidence="\n".join(signs),
        )
    today = with_reading(BatteryDay(""), now)
    worn = []
    if today.capacity is not None and today.capacity * 100 < worn_percent:
        worn.append(f"it holds {today.capacity:.0%} of what it held when new, less than {worn_percent} %")
    if now.cycles is not None and now.cycles > worn_cycles:
        worn.append(f"{now.cycles} charge cycles, more than {worn_cycles}")
    if worn:
        yield Finding(
            FindingKind.BATTERY_WORN,
            "the battery is worn out",
            "replace the battery or retire the phone",
            evidence="\n".join((*worn, "Worn cells swell, and their phones slow down under load.")),
        )
