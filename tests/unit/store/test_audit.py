"""The audit log's rows: paged, filtered, bounded."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from farm.store import accounts, retention
from farm.store.accounts import AuditRecord, AuditTable
from farm.store.retention import Retention
from farm.store.writer import StoreWriteError
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
    assert [row.subject for row in store.audit.page(limit=2, before=first[-1].seq)] == ["j2", "j1"]
    assert replace(first[1], seq=0) == rows[3]


async def test_it_is_kept_as_long_as_it_is_told(store):
    await store.audit.add([replace(ROW, at=NOW - timedelta(days=10)), ROW])
    keeper = Retention(store.database, keep_days=1000, max_mb=1000, audit_days=5, clock=lambda: NOW)
    await keeper.prune()
    assert [row.at for row in store.audit.page()] == [NOW]


async def test_whoever_writes_much_pushes_the_oldest_out(store, monkeypatch):
    monkeypatch.setattr(accounts, "MOST_ROWS", 30)
    monkeypatch.setattr(accounts, "BATCH", 7)
    monkeypatch.setattr(retention, "FIRST_AFTER_S", 0.0)
    looks, looking = [], asyncio.Event()
    prune = AuditTable.prune

    async def pruned(self, *before):
        await prune(self, *before)
        looks.append((before, len(self.page(limit=1000))))
        if len(looks) < 3:
            await fill()
        else:
            looking.set()

    async def fill():
        await store.audit.add([replace(ROW, subject=f"{len(looks)}.{each}") for each in range(100)])

    monkeypatch.setattr(retention, "AUDIT_EVERY_S", 0.001)
    monkeypatch.setattr(AuditTable, "prune", pruned)
    await fill()
    keeping = asyncio.create_task(Retention(store.database, keep_days=1000, max_mb=1000, clock=lambda: NOW).run())
    await looking.wait()
    keeping.cancel()
    assert [left for _, left in looks] == [30, 30, 30]
    assert [bool(before) for before, _ in looks] == [True, False, False]  # daily all that is old, else the excess
    assert [row.subject for row in store.audit.page()][::29] == ["2.99", "2.70"]


async def test_a_row_that_was_kept_waits_for_no_pruning(store, monkeypatch):
    async def broken(self, before=None):
        raise StoreWriteError("the disk is full")

    monkeypatch.setattr(AuditTable, "prune", broken)
    await store.audit.add([ROW] * 10_001)
    assert len(store.audit.page(limit=1000)) == 1000


@pytest.mark.parametrize("subject", ["\0", "\ud800", "'; DROP TABLE audit; --", "x" * 10_000])
async def test_any_words_are_kept_and_none_is_a_statement(store, subject):
    await store.audit.add([replace(ROW, subject=subject)])
    (row,) = store.audit.page()
    assert row.subject == subject.replace("\0", "\\x00").replace("\ud800", "\\ud800")
