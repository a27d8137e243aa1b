"""A database that cannot be written: what is said, what still gets through, and that farm goes on by itself."""

import asyncio
import logging
import math
import sqlite3
import threading
from dataclasses import replace

import pytest
from sqlalchemy.exc import InterfaceError
from sqlalchemy.exc import TimeoutError as SQLTimeoutError

from farm.common.errors import Code
from farm.model.job import JobState
from farm.store import writer as writer_module
from farm.store.store import Store
from farm.store.writer import StoreWriteError
from tests.support.errors import raises_code
from tests.support.leasing_lab import settle
from tests.support.small_disk import on_small_disk
from tests.support.waiting import HANG_S, until
from tests.unit.store.values import NOW, attempt, begin, ended, job, lease, over


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(writer_module, "PROBE_S", 0.02)
    monkeypatch.setattr(writer_module.ReserveFile, "whole", property(lambda self: self._path.exists()))
    monkeypatch.setattr("os.posix_fallocate", lambda *_: None)


@pytest.fixture
def here(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    yield store
    store.close()


async def limit_pages(store, more):
    """As a full disk looks to SQLite: no page beyond these."""

    def limit(connection):
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + more}").fetchall()

    await store.database.writer.write(limit)


async def test_a_full_database_says_so_once_and_comes_back(here, caplog):
    heard = []
    here.on_problem(heard.append)
    await here.jobs.add((job(),))
    begun = attempt()
    await begin(here, begun)
    await limit_pages(here, 0)
    large = job("large", spec={"text": "x" * 100_000})
    with caplog.at_level(logging.INFO), pytest.raises(StoreWriteError, match="the disk is full") as caught:
        await here.jobs.add((large,))
    assert "free disk space" in caught.value.hint
    # The probe's own write needs no page, so it may have called it well again by now: what was heard is what counts.
    await until(lambda: heard == [True, False])
    assert here.problem == ""
    assert "the disk is full" in caplog.text
    await limit_pages(here, 1000)
    assert await here.jobs.add((large,)) == ("large",)


async def test_a_disk_that_is_still_full_is_not_told_to_be_well(here, monkeypatch):
    """The probe's own page fits into old blocks: the news alternated each second."""
    monkeypatch.setattr(writer_module, "PROBE_S", 0.01)
    monkeypatch.setattr(writer_module, "ROOM_BYTES", 1 << 60)
    heard = []
    here.on_problem(heard.append)
    looked = []
    statvfs = writer_module.os.statvfs
    monkeypatch.setattr(writer_module.os, "statvfs", lambda path: looked.append(path) or statvfs(path))
    await limit_pages(here, 0)
    with pytest.raises(StoreWriteError):
        await here.jobs.add((job("large", spec={"text": "x" * 100_000}),))
    await until(lambda: heard == [True])
    await until(lambda: len(looked) >= 10)
    assert (heard, "the disk is full" in here.problem) == ([True], True)
    monkeypatch.setattr(writer_module, "ROOM_BYTES", 0)
    await until(lambda: heard == [True, False])


async def test_ends_go_through_while_nothing_else_does(here, monkeypatch, tmp_path):
    monkeypatch.setattr(writer_module, "PROBE_S", 1000)
    await here.jobs.add((job(), job("j2")))
    begun = attempt()
    await begin(here, begun)
    writer = here.database.writer
    writes = []

    def broken_once(_connection):
        writes.append(1)
        raise sqlite_error(sqlite3.SQLITE_FULL)

    assert (tmp_path / "farm.db.reserve").exists()
    begins, goes_on = threading.Event(), threading.Event()
    before = asyncio.create_task(writer.write(lambda _: begins.set() or goes_on.wait(HANG_S)))
    assert await asyncio.to_thread(begins.wait, HANG_S)
    full = writer.write(broken_once)
    end = here.jobs.finish(over(begun), ended(here.jobs.get("j1")), result={"ok": True})
    both = asyncio.gather(full, end, return_exceptions=True)
    await settle()  # one commit has both
    goes_on.set()
    outcomes = await both
    assert await before
    assert isinstance(outcomes[0], StoreWriteError)
    assert outcomes[1] is True
    assert not (tmp_path / "farm.db.reserve").exists()
    assert "the disk is full" in here.problem
    for refused in (here.jobs.add((job("new"),)), here.leases.grant(lease(9, "other"))):
        with pytest.raises(StoreWriteError, match="the disk is full"):
            await refused
    assert await here.leases.end("l1", ended_at=NOW, reason="over", held_s=7.0) is True
    cancelled = replace(job("j2"), state=JobState.CANCELLED, ended_at=NOW)
    assert await here.jobs.save(cancelled, expected={JobState.QUEUED}) is True
    assert here.jobs.result("j1") == {"ok": True}
    assert here.leases.open() == ()
    assert writes == [1]


def sqlite_error(code):
    """What SQLAlchemy raises for a result code of SQLite."""
    from sqlalchemy.exc import OperationalError

    said = sqlite3.OperationalError("as SQLite says it")
    said.sqlite_errorcode = code
    return OperationalError("statement", {}, said)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_FULL, "the disk is full"),
        (sqlite3.SQLITE_IOERR_WRITE, "the disk under it failed"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "it is read-only"),
        (sqlite3.SQLITE_CANTOPEN, "its file cannot be opened"),
        (sqlite3.SQLITE_CORRUPT, "it is damaged"),
        (sqlite3.SQLITE_BUSY, "another program keeps it locked"),
    ],
)
async def test_each_outage_has_its_words(here, code, words):
    heard = []
    here.on_problem(heard.append)

    def fail(_connection):
        raise sqlite_error(code)

    with pytest.raises(StoreWriteError, match=words) as caught:
        await here.database.writer.write(fail)
    assert caught.value.hint
    assert caught.value.evidence == "as SQLite says it"
    await until(lambda: heard == [True, False])
    await here.jobs.add((job(),))


async def test_a_mistake_in_one_statement_is_no_outage(here):
    heard = []
    here.on_problem(heard.append)

    def mistake(connection):
        connection.exec_driver_sql("SELECT no_such_column FROM job")

    outcomes = await asyncio.gather(
        here.database.writer.write(mistake), here.jobs.add((job(),)), return_exceptions=True
    )
    assert isinstance(outcomes[0], StoreWriteError)
    assert "no_such_column" in outcomes[0].evidence
    assert outcomes[1] == ("j1",)
    assert (heard, here.problem) == ([], "")


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_taken_away_is_noticed_and_may_come_back(here, tmp_path, how):
    heard = []
    here.on_problem(heard.append)
    await here.jobs.add((job(),))
    path, aside = tmp_path / "farm.db", tmp_path / "aside"
    path.rename(aside)
    if how == "replaced":
        path.write_bytes(b"something else")
    with pytest.raises(StoreWriteError, match="removed or replaced") as caught:
        await here.jobs.add((job("lost"),))
    assert "put it back" in caught.value.hint
    aside.rename(path)
    await until(lambda: heard == [True, False])
    await here.jobs.add((job("kept"),))
    assert [each.id for each in here.jobs.live()] == ["j1", "kept"]


@pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
async def test_a_write_ahead_log_taken_away_is_noticed_and_costs_nothing_written_before(here, tmp_path, how):
    heard = []
    here.on_problem(heard.append)
    await here.jobs.add((job(),))
    path, aside = tmp_path / "farm.db-wal", tmp_path / "aside"
    path.rename(aside)
    if how == "removed":
        aside.unlink()
    elif how == "replaced":
        path.write_bytes(b"")
    with pytest.raises(StoreWriteError, match="removed or replaced") as caught:
        await here.jobs.add((job("lost"),))
    assert str(path) in caught.value.evidence
    if how == "moved":
        aside.rename(path)
        await until(lambda: heard == [True, False])
        await here.jobs.add((job("kept"),))
    here.close()
    again = Store.open(tmp_path / "farm.db")
    assert [each.id for each in again.jobs.live()] == (["j1", "kept"] if how == "moved" else ["j1"])
    again.close()


async def test_a_lock_held_by_another_program(here, tmp_path, monkeypatch):
    heard = []
    here.on_problem(heard.append)
    await here.database.writer.write(
        lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 10").fetchall()
    )
    other = sqlite3.connect(tmp_path / "farm.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreWriteError, match="another program keeps it locked"):
        await here.jobs.add((job(),))
    other.execute("ROLLBACK")
    other.close()
    await until(lambda: heard == [True, False])
    await here.jobs.add((job(),))


async def test_who_listens_late_hears_of_a_outage_that_is_there(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module, "PROBE_S", 1000)
    monkeypatch.setattr("os.posix_fallocate", full)
    store = Store.open(tmp_path / "farm.db")
    heard = []
    store.on_problem(heard.append)
    assert heard == [True]
    assert "the disk is full" in store.problem
    assert not (tmp_path / "farm.db.reserve").exists()
    store.close()


@pytest.mark.parametrize(
    "error", [InterfaceError("x", None, Exception("lost")), SQLTimeoutError(), RuntimeError("a bug")]
)
async def test_no_error_of_a_probe_ends_the_thread(here, monkeypatch, error):
    """What a driver raises is not always a DatabaseError: every write waited for ever, and the daemon looked alive."""
    writer = here.database.writer
    probed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def gone():
        if writer._outage:
            loop.call_soon_threadsafe(probed.set)
            raise error
        raise InterfaceError("x", None, Exception("connection is closed"))

    with monkeypatch.context() as patched:
        patched.setattr(writer._engine, "connect", gone)
        with pytest.raises(StoreWriteError, match="cannot be reached"):
            await here.jobs.add((job(),))
        await probed.wait()
        assert writer.silent_s() == 0.0
    await until(lambda: here.problem == "")
    assert await asyncio.wait_for(here.jobs.add((job(),)), HANG_S) == ("j1",)


async def test_a_commit_that_does_not_end_is_silence(here):
    writer = here.database.writer
    begun, go_on = threading.Event(), threading.Event()

    def hangs(_connection):
        begun.set()
        go_on.wait()

    writing = asyncio.create_task(writer.write(hangs))
    await until(begun.is_set)
    try:
        first_s = writer.silent_s()
        await until(lambda: writer.silent_s() > first_s)
    finally:
        go_on.set()
        await writing
    await until(lambda: writer.silent_s() == 0.0)


def test_a_writer_that_has_ended_is_silent_for_ever(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    store.close()
    assert store.database.writer.silent_s() == math.inf


CHILD = """
import asyncio, contextlib, json, subprocess, sys
from pathlib import Path
from farm.common.errors import FarmError
from farm.store.store import Store
from tests.unit.store.values import *

disk = Path(sys.argv[1])

async def work():
    told = {}
    store = Store.open(disk / "farm.db")
    heard = []
    store.on_problem(heard.append)
    await store.jobs.add([job(f"j{n}") for n in range(8)])
    running = [attempt(n + 1, f"j{n}", device=f"d{n}") for n in range(8)]
    for each in running:
        assert await begin(store, each)
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    added = 0
    try:
        while True:
            await store.jobs.add([job(f"new{added}", spec={"text": "x" * 20_000})])
            added += 1
    except FarmError as error:
        told["refused"] = error.message
    told["problem"] = store.problem
    ends = [
        store.jobs.finish(over(each), ended(store.jobs.get(each.job)), result={"text": "y" * 500_000})
        for each in running
    ]
    told["ends"] = await asyncio.gather(*ends, return_exceptions=True)
    told["leases"] = [await store.leases.end(each.lease, ended_at=NOW, reason="over", held_s=1.0) for each in running]
    try:
        await store.jobs.add([job("still")])
    except FarmError as error:
        told["still"] = error.message
    (disk / "ballast").unlink()
    async with asyncio.timeout(60):
        while heard != [True, False]:
            await asyncio.sleep(0.05)
    await store.jobs.add([job("after")])
    told["reserve"] = (disk / "farm.db.reserve").stat().st_blocks * 512
    store.close()
    again = Store.open(disk / "farm.db")
    told["live"] = [each.id for each in again.jobs.live() if not each.id.startswith("new")]
    told["running"] = len(again.jobs.running())
    told["kept"] = sum(again.jobs.result(each.job) is not None for each in running)
    again.close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        Store.open(disk / "farm.db")
    except FarmError as error:
        told["read-only"] = error.message
    return told

print(json.dumps(asyncio.run(work()), default=str))
"""


def test_on_a_disk_that_is_really_full(tmp_path):
    told = on_small_disk("48m", tmp_path / "disk", CHILD)
    for said in (told["refused"], told["problem"], told["still"]):
        assert "the disk is full" in said
    assert told["ends"] == [True] * 8
    assert told["leases"] == [True] * 8
    assert told["reserve"] >= 16 << 20
    assert told["live"] == ["after"]
    assert (told["running"], told["kept"]) == (0, 8)
    assert "it or its folder is read-only" in told["read-only"]


def test_a_full_disk_at_the_start(tmp_path, monkeypatch):
    path = tmp_path / "farm.db"
    Store.open(path).close()
    monkeypatch.setattr("farm.store.opening.next_epoch", lambda _: (_ for _ in ()).throw(sqlite_error(13)))
    with raises_code(Code.DATABASE_UNUSABLE, match=r"cannot use the database .*: the disk is full") as caught:
        Store.open(path)
    assert "free disk space" in caught.value.hint
    assert not (tmp_path / "farm.db.reserve").exists()  # it was tried
