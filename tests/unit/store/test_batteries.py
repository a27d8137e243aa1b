"""Batteries day by day, as the store keeps them."""

from __future__ import annotations

import pytest

from farm.model.health import BatteryDay
from farm.store import devices
from farm.store.store import Store

DAY = BatteryDay("2026-11-20", 40, 80, 31.5, 120, 4_400_000, 4_500_000, "good")


def on(day: str) -> BatteryDay:
    return BatteryDay(day, percent_max=70)


async def test_days_come_in_order_and_a_day_is_kept_once(store: Store) -> None:
    for day in (on("2026-11-21"), DAY, on("2026-11-22"), on("2026-11-21")):
        await store.batteries.save("S1", day)
    await store.batteries.save("S2", on("2026-11-22"))
    assert store.batteries.days("S1") == (DAY, on("2026-11-21"), on("2026-11-22"))


async def test_old_days_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "KEPT_DAYS", 2)
    for number in range(10, 15):
        await store.batteries.save("S1", on(f"2026-11-{number}"))
    assert [each.day for each in store.batteries.days("S1")] == ["2026-11-13", "2026-11-14"]


async def test_days_move_with_their_phone(store: Store) -> None:
    await store.batteries.save("S1", DAY)
    await store.batteries.save("10.0.0.7:5555", on(DAY.day))
    await store.batteries.change_serial("S1", "10.0.0.7:5555")
    await store.batteries.change_serial("S1", "10.0.0.7:5555")
    assert store.batteries.days("S1") == ()
    assert store.batteries.days("10.0.0.7:5555") == (DAY,)
