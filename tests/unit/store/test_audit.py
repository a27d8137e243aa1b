"""The audit log's rows: paged, filtered, bounded."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from farm.store import accounts, retention
from farm.store.accounts import AuditRecord
from farm.store.retention import Retention
from tests.support.waiting import until
from tests.unit.store.values import NOW

ROW = AuditRecord(NOW, "ann", "user", "uid 1000 pid 42", "job.submit", "j1", "ok")


async def test_pages_come_latest_first_and_filtered(store):
    rows = [replace(ROW, at=NOW + timedelta(minutes=number), subject=f"j{number}") for number in range(5)]
    rows[3] = replace(rows[3], user="bob", kind="device.reboot", outcome="not_allowed")
    await store.audit.add(rows[:2])
    await store.audit.add(rows[2:])

    def subjects(**wanted):
        return [row.subject for row in store.audit.page(**wanted)]

    assert subjects() == ["j4", "j3", "j2", "j1", "j0"]
    assert subjects(user="bob") == subjects(kind="device.") == subjects(kind="device.reboot") == ["j3"]
    assert subjects(kind="device") == []
    assert subjects(since=NOW + timedelta(minutes=1), until=NOW + timedelta(minutes=3)) == ["j2", "j1"]
    first = store.audit.page(limit=2)
    assert subjects(limit=2, before=first[-1].seq) == ["j2", "j1"]
    assert replace(first[1], seq=0) == rows[3]


async def test_old_rows_go_daily_and_whoever_writes_much_pushes_the_oldest_out(store, numbers):
    numbers(accounts, MAX_ROWS=1, BATCH=7)
    numbers(retention, FIRST_AFTER_S=0.0, AUDIT_EVERY_S=0.001)
    old = replace(ROW, at=NOW - timedelta(days=6), subject="old")
    keeper = Retention(store.database, keep_days=1000, max_mb=1000, audit_days=5, clock=lambda: NOW)
    await store.audit.add([old, ROW])
    assert len(store.audit.page()) == 2  # a row that was kept waits for no pruning
    numbers(accounts, MAX_ROWS=30)
    keeping = asyncio.create_task(keeper.run())
    await until(lambda: [row.at for row in store.audit.page()] == [NOW])
    await store.audit.add([*(replace(ROW, subject=f"{number}") for number in range(100)), old])
    await until(lambda: len(store.audit.page(limit=1000)) == 30)
    assert [row.subject for row in store.audit.page()][::29] == ["old", "71"]  # the day's look has been
    keeping.cancel()
    await asyncio.wait((keeping,))


@pytest.mark.parametrize("subject", ["\0", "\ud800", "'; DROP TABLE audit; --", "x" * 10_000])
async def test_any_words_are_kept_and_none_is_a_statement(store, subject):
    await store.audit.add([replace(ROW, subject=subject)])
    (row,) = store.audit.page()
    assert row.subject == subject.replace("\0", "\\x00").replace("\ud800", "\\ud800")
