"""Actions that were taken and phones in quarantine, as the store keeps them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from farm.common.errors import Code
from farm.model.health import BatteryDay, DeviceFault, Quarantine, ReleaseRule
from farm.store.devices import (
    BatteryTable,
    DeviceRecord,
    DeviceTable,
    RecoveryRecord,
    RecoveryTable,
    RolloutTable,
)
from farm.store.store import Store
from tests.support.errors import raises_code

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def action_of(number: int, serial: str = "S1", action: str = "reboot") -> RecoveryRecord:
    at = NOW + timedelta(hours=number)
    return RecoveryRecord(f"r{number}", serial, "pixel", action, "stuck", "pid 7 survives SIGKILL", at)


KEPT = Quarantine(
    "screen cracked", "farm device release NAME", DeviceFault.ORDER, ReleaseRule.PERSON, "1.0 Listed", NOW
)
ROLLOUT = {"current": "b1", "previous": "", "candidate": "", "wanted": "", "refused": {}, "trials": {}}


async def test_what_was_taken_is_told_by_phone_and_time(store: Store) -> None:
    for record in (action_of(0), action_of(1), action_of(2, "S2")):
        await store.recoveries.begin(record)
    await store.recoveries.end("r1", 41.5, "repaired", "")
    assert [each.id for each in store.recoveries.since(NOW, "S1")] == ["r1"]
    assert [each.id for each in store.recoveries.since(NOW - timedelta(hours=1))] == ["r0", "r1", "r2"]
    (ended,) = store.recoveries.since(NOW, "S1")
    assert (ended.outcome, ended.took_s) == ("repaired", 41.5)


async def test_what_was_under_way_when_the_daemon_ended_is_over_but_a_quarantine_is_not(store: Store) -> None:
    await store.recoveries.begin(action_of(1))
    await store.recoveries.begin(action_of(2, action="quarantine"))
    await store.recoveries.end_interrupted("cut", "the daemon ended")
    assert [each.outcome for each in store.recoveries.since(NOW)] == ["cut", None]


async def test_a_quarantine_is_kept_once_moves_with_the_phone_and_goes(store: Store) -> None:
    await store.recoveries.add_quarantine("S1", KEPT)
    await store.recoveries.add_quarantine("S1", KEPT)
    await store.recoveries.set_proven("S1", "b1")
    await store.recoveries.set_proven("S1", "b2")
    await store.recoveries.begin(action_of(1))
    assert store.recoveries.quarantined() == {"S1": KEPT}
    await store.recoveries.change_serial("S1", "10.0.0.7:5555")
    assert store.recoveries.quarantined() == {"10.0.0.7:5555": KEPT}
    assert store.recoveries.since(NOW, "S1") == ()
    assert store.recoveries.proven() == {"10.0.0.7:5555": "b2"}
    await store.recoveries.remove_quarantine("10.0.0.7:5555")
    assert store.recoveries.quarantined() == {}


async def test_where_a_rollout_stands_survives(store: Store) -> None:
    trials = {"S1": {"bundle": "b2", "state": "failed", "reason": "it exits with 3", "put_off": 0, "until_s": 0.0}}
    group, begun = ("arm64-v8a", "android"), {**ROLLOUT, "candidate": "b2", "wanted": "b2", "trials": trials}
    await store.rollouts.save(*group, begun)
    assert store.rollouts.all() == {group: begun}
    refused = {**begun, "candidate": "", "refused": {"b2": "on a: it exits with 3"}, "trials": {}}
    await store.rollouts.save(*group, refused)
    assert store.rollouts.all() == {group: refused}


async def test_hosts_may_have_phones_of_one_serial(store: Store) -> None:
    serial, day = "emulator-5554", BatteryDay("2026-11-20")
    for host in ("h1", "h2"):
        phone = DeviceRecord(serial, f"phone of {host}")
        recoveries = RecoveryTable(store.database, host)
        await DeviceTable(store.database, host).save(phone)
        await recoveries.begin(action_of(1, serial))
        await recoveries.add_quarantine(serial, replace(KEPT, cause=host))
        await recoveries.set_proven(serial, host)
        await RolloutTable(store.database, host).save("x86_64", "android", {**ROLLOUT, "current": host})
        await BatteryTable(store.database, host).save(serial, day)
    assert (store.devices.all(), store.recoveries.quarantined(), store.rollouts.all()) == ((), {}, {})
    devices, recoveries, batteries = (
        table(store.database, "h1") for table in (DeviceTable, RecoveryTable, BatteryTable)
    )
    await recoveries.end("r1", 2.0, "repaired", "")
    await recoveries.remove_quarantine(serial)
    await recoveries.change_serial(serial, "S1")
    await batteries.change_serial(serial, "S1")
    await devices.replace((serial, "S2"), [DeviceRecord(serial, "one"), DeviceRecord("S2", "two")])
    await devices.forget(serial)
    assert [each.name for each in devices.all()] == ["two"]
    assert (recoveries.quarantined(), recoveries.proven()) == ({}, {"S1": "h1"})
    assert (batteries.days(serial), batteries.days("S1")) == ((), (day,))
    assert [each["current"] for each in RolloutTable(store.database, "h1").all().values()] == ["h1"]
    other = RecoveryTable(store.database, "h2")
    assert [each.cause for each in other.quarantined().values()] == ["h2"]
    assert (other.since(NOW), other.proven()) == ((action_of(1, serial),), {serial: "h2"})
    assert BatteryTable(store.database, "h2").days(serial) == (day,)
    assert [each.name for each in DeviceTable(store.database, "h2").all()] == ["phone of h2"]
    with raises_code(Code.STORE_CONFLICT):  # a name means one phone, whichever host has it
        await devices.save(DeviceRecord("S3", "phone of h2"))


async def test_a_fault_that_farm_does_not_know_is_named_with_its_row(store: Store) -> None:
    await store.recoveries.add_quarantine("S1", KEPT)
    await store.database.execute(text("update quarantine set fault = 'gremlins'"))
    with raises_code(Code.STORE_READ_FAILED, match="quarantine.fault: 'gremlins' is no fault"):
        store.recoveries.quarantined()
