"""Actions that were taken, phones in quarantine, and batteries day by day, as the store keeps them."""

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import text

from farm.common.errors import Code
from farm.model.health import BatteryDay, DeviceFault, Quarantine, ReleaseRule
from farm.store import devices as device_tables
from farm.store.devices import (
    BatteryTable,
    DeviceRecord,
    DeviceTable,
    RecoveryRecord,
    RecoveryTable,
    RolloutTable,
)
from tests.support.errors import raises_code
from tests.unit.store.values import NOW

KEPT = Quarantine(
    "screen cracked", "farm device release NAME", DeviceFault.ORDER, ReleaseRule.PERSON, "1.0 Listed", NOW
)
ROLLOUT = {"current": "b1", "previous": "", "candidate": "", "wanted": "", "refused": {}, "trials": {}}
DAY = BatteryDay("2026-11-20", 40, 80, 31.5, 120, 4_400_000, 4_500_000, "good")
MOVED = "10.0.0.7:5555"


def action_of(number, serial="S1", action="reboot"):
    at = NOW + timedelta(hours=number)
    return RecoveryRecord(f"r{number}", serial, "pixel", action, "stuck", "pid 7 survives SIGKILL", at)


def on(day):
    return BatteryDay(f"2026-11-{day}", percent_max=70)


async def test_days_come_in_order_once_and_old_ones_go(store, numbers):
    for day in (on(21), DAY, on(22), on(21)):
        await store.batteries.save("S1", day)
    await store.batteries.save("S2", on(22))
    assert store.batteries.days("S1") == (DAY, on(21), on(22))
    numbers(device_tables, KEPT_DAYS=2)
    await store.batteries.save("S1", on(23))
    assert store.batteries.days("S1") == (on(22), on(23))


async def test_days_move_with_their_phone(store):
    await store.batteries.save("S1", DAY)
    await store.batteries.save(MOVED, on(20))
    for _ in range(2):
        await store.batteries.change_serial("S1", MOVED)
    assert (store.batteries.days("S1"), store.batteries.days(MOVED)) == ((), (DAY,))


async def test_what_was_taken_is_told_by_phone_and_time(store):
    for record in (action_of(0), action_of(1), action_of(2, "S2")):
        await store.recoveries.begin(record)
    await store.recoveries.end("r1", 41.5, "repaired", "")
    assert [each.id for each in store.recoveries.since(NOW - timedelta(hours=1))] == ["r0", "r1", "r2"]
    (ended,) = store.recoveries.since(NOW, "S1")
    assert (ended.id, ended.outcome, ended.took_s) == ("r1", "repaired", 41.5)


async def test_what_was_under_way_when_the_daemon_ended_is_over_but_a_quarantine_is_not(store):
    await store.recoveries.begin(action_of(1))
    await store.recoveries.begin(action_of(2, action="quarantine"))
    await store.recoveries.end_interrupted("cut", "the daemon ended")
    assert [each.outcome for each in store.recoveries.since(NOW)] == ["cut", None]


async def test_a_quarantine_is_kept_once_moves_with_the_phone_and_goes(store):
    for bundle in ("b1", "b2"):
        await store.recoveries.add_quarantine("S1", KEPT)
        await store.recoveries.set_proven("S1", bundle)
    await store.recoveries.begin(action_of(1))
    assert store.recoveries.quarantined() == {"S1": KEPT}
    await store.recoveries.change_serial("S1", MOVED)
    assert (store.recoveries.quarantined(), store.recoveries.proven()) == ({MOVED: KEPT}, {MOVED: "b2"})
    assert store.recoveries.since(NOW, "S1") == ()
    await store.recoveries.remove_quarantine(MOVED)
    assert store.recoveries.quarantined() == {}


async def test_where_a_rollout_stands_survives(store):
    trials = {"S1": {"bundle": "b2", "state": "failed", "reason": "it exits with 3", "put_off": 0, "until_s": 0.0}}
    begun = {**ROLLOUT, "candidate": "b2", "wanted": "b2", "trials": trials}
    refused = {**begun, "candidate": "", "refused": {"b2": "on a: it exits with 3"}, "trials": {}}
    for stands in (begun, refused):
        await store.rollouts.save("arm64-v8a", "android", stands)
        assert store.rollouts.all() == {("arm64-v8a", "android"): stands}


async def test_hosts_may_have_phones_of_one_serial(store):
    serial = "emulator-5554"

    def tables(host):
        return [each(store.database, host) for each in (DeviceTable, RecoveryTable, BatteryTable, RolloutTable)]

    for host in ("h1", "h2"):
        devices, recoveries, batteries, rollouts = tables(host)
        await devices.save(DeviceRecord(serial, f"phone of {host}"))
        await recoveries.begin(action_of(1, serial))
        await recoveries.add_quarantine(serial, replace(KEPT, cause=host))
        await recoveries.set_proven(serial, host)
        await rollouts.save("x86_64", "android", {**ROLLOUT, "current": host})
        await batteries.save(serial, DAY)
    assert (store.devices.all(), store.recoveries.quarantined(), store.rollouts.all()) == ((), {}, {})
    devices, recoveries, batteries, rollouts = tables("h1")
    await recoveries.end("r1", 2.0, "repaired", "")
    await recoveries.remove_quarantine(serial)
    await recoveries.change_serial(serial, "S1")
    await batteries.change_serial(serial, "S1")
    await devices.replace((serial, "S2"), [DeviceRecord(serial, "one"), DeviceRecord("S2", "two")])
    await devices.forget(serial)
    assert [each.name for each in devices.all()] == ["two"]
    assert (recoveries.quarantined(), recoveries.proven()) == ({}, {"S1": "h1"})
    assert (batteries.days(serial), batteries.days("S1")) == ((), (DAY,))
    assert [each["current"] for each in rollouts.all().values()] == ["h1"]
    other_devices, other, other_batteries, _ = tables("h2")
    assert [each.cause for each in other.quarantined().values()] == ["h2"]
    assert (other.since(NOW), other.proven()) == ((action_of(1, serial),), {serial: "h2"})
    assert other_batteries.days(serial) == (DAY,)
    assert [each.name for each in other_devices.all()] == ["phone of h2"]
    with raises_code(Code.STORE_CONFLICT):  # a name means one phone, whichever host has it
        await devices.save(DeviceRecord("S3", "phone of h2"))


async def test_a_fault_that_farm_does_not_know_is_named_with_its_row(store):
    await store.recoveries.add_quarantine("S1", KEPT)
    await store.database.execute(text("update quarantine set fault = 'gremlins'"))
    with raises_code(Code.STORE_READ_FAILED, match="quarantine.fault: 'gremlins' is no fault"):
        store.recoveries.quarantined()
