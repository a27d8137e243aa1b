"""Rungs that were taken and phones in quarantine, as the store keeps them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from farm.store.records import QuarantineRecord, RecoveryRecord
from farm.store.store import Store

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def rung(number: int, serial: str = "S1", rung: str = "reboot") -> RecoveryRecord:
    at = NOW + timedelta(hours=number)
    return RecoveryRecord(f"r{number}", serial, "pixel", rung, "stuck", "pid 7 survives SIGKILL", at)


KEPT = QuarantineRecord("S1", "screen cracked", "farm device release NAME", "order", "person", "1.0 Listed", NOW)


async def test_what_was_taken_is_told_by_phone_and_time(store: Store) -> None:
    for record in (rung(0), rung(1), rung(2, "S2")):
        await store.recoveries.begin(record)
    await store.recoveries.end("r1", 41.5, "mended", "")
    assert [each.id for each in store.recoveries.since(NOW, "S1")] == ["r1"]
    assert [each.id for each in store.recoveries.since(NOW - timedelta(hours=1))] == ["r0", "r1", "r2"]
    (ended,) = store.recoveries.since(NOW, "S1")
    assert (ended.outcome, ended.took_s) == ("mended", 41.5)


async def test_what_was_under_way_when_the_daemon_ended_is_over_but_a_quarantine_is_not(store: Store) -> None:
    await store.recoveries.begin(rung(1))
    await store.recoveries.begin(rung(2, rung="quarantine"))
    await store.recoveries.interrupted("cut", "the daemon ended")
    assert [each.outcome for each in store.recoveries.since(NOW)] == ["cut", None]


async def test_a_quarantine_is_kept_once_moves_with_the_phone_and_goes(store: Store) -> None:
    await store.recoveries.keep_away(KEPT)
    await store.recoveries.keep_away(KEPT)
    await store.recoveries.prove("S1", "b1")
    await store.recoveries.prove("S1", "b2")
    await store.recoveries.begin(rung(1))
    assert store.recoveries.quarantined() == (KEPT,)
    await store.recoveries.moved("S1", "10.0.0.7:5555")
    assert [each.serial for each in store.recoveries.quarantined()] == ["10.0.0.7:5555"]
    assert store.recoveries.since(NOW, "S1") == ()
    assert store.recoveries.proven() == {"10.0.0.7:5555": "b2"}
    await store.recoveries.let_go("10.0.0.7:5555")
    assert store.recoveries.quarantined() == ()
