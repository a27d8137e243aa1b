"""A database that cannot be written: what is said, what still gets through, and that farm continues by itself."""

import asyncio
import logging
import math
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as SQLTimeoutError

from farm.common.errors import Code
from farm.model.job import JobState
from farm.store import writer as writer_module
from farm.store.devices import DeviceRecord
from farm.store.opening import next_epoch
from farm.store.store import Store
from farm.store.writer import StoreWriteError
from tests.support.errors import raises_code
from tests.support.leasing_lab import settle
from tests.support.small_disk import on_small_disk
from tests.support.waiting import HANG_S, until
from tests.unit.store.values import NOW, attempt, begin, busy_writer, ended, job, lease, listened, over


@pytest.fixture(autouse=True)
def quick(monkeypatch, numbers):
    numbers(writer_module, PROBE_S=0.02)
    numbers(writer_module.ReserveFile, whole=property(lambda self: self._path.exists()))
    monkeypatch.setattr("os.posix_fallocate", lambda *_: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "farm.db"


@pytest.fixture
def here(opened, path):
    return opened(path)


@pytest.fixture
async def heard(here):
    return listened(here)


LARGE = job("large", spec={"text": "x" * 100_000})


async def limit_pages(store, more):
    """As a full disk looks to SQLite: no page beyond these."""

    def limit(connection):
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + more}").fetchall()

    await store.database.writer.write(limit)


async def test_a_full_database_says_so_once_and_comes_back(here, heard, caplog):
    await limit_pages(here, 0)
    with caplog.at_level(logging.INFO), pytest.raises(StoreWriteError, match="the disk is full") as caught:
        await here.jobs.add((LARGE,))
    assert "free disk space" in caught.value.hint
    # The probe's own write needs no page, so it may have called it well again by now: what was heard is what counts.
    await until(lambda: heard == [True, False])
    assert here.problem == ""
    assert "the disk is full" in caplog.text
    await limit_pages(here, 1000)
    assert await here.jobs.add((LARGE,)) == ("large",)


async def test_a_disk_that_is_still_full_is_not_told_to_be_well(here, heard, numbers, monkeypatch):
    """The probe's own page fits into old blocks: the news alternated each second."""
    numbers(writer_module, PROBE_S=0.01, ROOM_BYTES=1 << 60)
    looked, statvfs = [], writer_module.os.statvfs
    monkeypatch.setattr(writer_module.os, "statvfs", lambda path: looked.append(path) or statvfs(path))
    await limit_pages(here, 0)
    with pytest.raises(StoreWriteError):
        await here.jobs.add((LARGE,))
    await until(lambda: heard == [True] and len(looked) >= 10)
    assert (heard, "the disk is full" in here.problem) == ([True], True)
    numbers(writer_module, ROOM_BYTES=0)
    await until(lambda: heard == [True, False])


async def test_ends_go_through_while_nothing_else_does(here, numbers, tmp_path):
    numbers(writer_module, PROBE_S=1000)
    await here.jobs.add((job(), job("j2")))
    begun = attempt()
    await begin(here, begun)
    writes = []

    def broken_once(_connection):
        writes.append(1)
        raise sqlite_error(sqlite3.SQLITE_FULL)

    assert (tmp_path / "farm.db.reserve").exists()
    async with busy_writer(here.database):
        full = here.database.writer.write(broken_once)
        end = here.jobs.finish(over(begun), ended(here.jobs.get("j1")), result={"ok": True})
        both = asyncio.gather(full, end, return_exceptions=True)
        await settle()  # one commit has both
    first, second = await both
    assert (type(first), second) == (StoreWriteError, True)
    assert not (tmp_path / "farm.db.reserve").exists()
    assert "the disk is full" in here.problem
    for refused in (here.jobs.add((job("new"),)), here.leases.grant(lease(9, "other"))):
        with pytest.raises(StoreWriteError, match="the disk is full"):
            await refused
    assert await here.leases.end("l1", ended_at=NOW, reason="over", held_s=7.0) is True
    assert await here.jobs.save(ended(job("j2"), JobState.CANCELLED), expected={JobState.QUEUED}) is True
    assert (here.jobs.result("j1"), here.leases.open(), writes) == ({"ok": True}, (), [1])


def sqlite_error(code):
    """What SQLAlchemy raises for a result code of SQLite."""
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
async def test_each_outage_has_its_words(here, heard, code, words):

    def fail(_connection):
        raise sqlite_error(code)

    with pytest.raises(StoreWriteError, match=words) as caught:
        await here.database.writer.write(fail)
    assert caught.value.hint
    assert caught.value.evidence == "as SQLite says it"
    await until(lambda: heard == [True, False])
    await here.jobs.add((job(),))


async def test_a_mistake_in_one_statement_is_no_outage(here, heard):

    def mistake(connection):
        connection.exec_driver_sql("SELECT no_such_column FROM job")

    outcomes = await asyncio.gather(
        here.database.writer.write(mistake), here.jobs.add((job(),)), return_exceptions=True
    )
    assert isinstance(outcomes[0], StoreWriteError)
    assert "no_such_column" in outcomes[0].evidence
    assert outcomes[1] == ("j1",)
    assert (heard, here.problem) == ([], "")


@pytest.mark.parametrize("of", ["farm.db", "farm.db-wal"])
@pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
async def test_a_file_taken_away_is_noticed_and_may_come_back(here, heard, tmp_path, opened, of, how):
    """What was written before is there in any case."""
    await here.jobs.add((job(),))
    path, aside, comes_back = tmp_path / of, tmp_path / "aside", of == "farm.db" or how == "moved"
    path.rename(aside)
    if how == "replaced":
        path.write_bytes(b"something else" if of == "farm.db" else b"")
    with pytest.raises(StoreWriteError, match="removed or replaced") as caught:
        await here.jobs.add((job("lost"),))
    assert str(path) in caught.value.evidence
    assert "put it back" in caught.value.hint
    if comes_back:
        aside.rename(path)
        await until(lambda: heard == [True, False])
        await here.jobs.add((job("kept"),))
    here.close()
    assert [each.id for each in opened(tmp_path / "farm.db").jobs.live()] == ["j1", *["kept"] * comes_back]


async def test_a_lock_held_by_another_program(here, heard, path):
    await here.database.writer.write(
        lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 10").fetchall()
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreWriteError, match="another program keeps it locked"):
            await here.jobs.add((job(),))
    await until(lambda: heard == [True, False])
    await here.jobs.add((job(),))


async def test_who_listens_late_hears_of_an_outage_that_is_there(path, opened, numbers, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    numbers(writer_module, PROBE_S=1000)
    monkeypatch.setattr("os.posix_fallocate", full)
    store = opened(path)
    assert listened(store) == [True]
    assert "the disk is full" in store.problem
    assert not path.with_name("farm.db.reserve").exists()


@pytest.mark.parametrize(
    "error", [InterfaceError("x", None, Exception("lost")), SQLTimeoutError(), RuntimeError("a bug")]
)
async def test_no_error_of_a_probe_ends_the_thread(here, monkeypatch, error):
    """What a driver raises is not always a DatabaseError: every write waited forever, and the daemon looked alive."""
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


async def test_a_commit_that_does_not_end_is_silence_and_a_writer_that_has_ended_is_silent_for_ever(here):
    writer = here.database.writer
    async with busy_writer(here.database):
        first_s = writer.silent_s()
        await until(lambda: writer.silent_s() > first_s)
    await until(lambda: writer.silent_s() == 0.0)
    here.close()
    assert writer.silent_s() == math.inf


CHILD = """
import asyncio, contextlib, json, subprocess, sys
from pathlib import Path
from farm.common.errors import FarmError
from farm.store.store import Store
from tests.unit.store.values import *

disk = Path(sys.argv[1])

async def refused(add):
    try:
        while True:
            await add()
    except FarmError as error:
        return error.message

async def work():
    told = {}
    store = Store.open(disk / "farm.db")
    heard = listened(store)
    await store.jobs.add([job(f"j{n}") for n in range(8)])
    running = [attempt(n + 1, f"j{n}", device=f"d{n}") for n in range(8)]
    for each in running:
        assert await begin(store, each)
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    names = iter(range(10_000))
    told["refused"] = await refused(lambda: store.jobs.add([job(f"new{next(names)}", spec={"text": "x" * 20_000})]))
    told["problem"] = store.problem
    ends = [
        store.jobs.finish(over(each), ended(store.jobs.get(each.job)), result={"text": "y" * 500_000})
        for each in running
    ]
    told["ends"] = await asyncio.gather(*ends, return_exceptions=True)
    told["leases"] = [await store.leases.end(each.lease, ended_at=NOW, reason="over", held_s=1.0) for each in running]
    told["still"] = await refused(lambda: store.jobs.add([job("still")]))
    (disk / "ballast").unlink()
    await until(lambda: heard == [True, False])
    await store.jobs.add([job("after")])
    told["reserve"] = (disk / "farm.db.reserve").stat().st_blocks * 512
    store.close()
    again = Store.open(disk / "farm.db")
    told["live"] = [each.id for each in again.jobs.live() if not each.id.startswith("new")]
    told["running"] = len(again.jobs.running())
    told["kept"] = sum(again.jobs.result(each.job) is not None for each in running)
    again.close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    told["read-only"] = await refused(lambda: Store.open(disk / "farm.db"))
    return told

print(json.dumps(asyncio.run(work()), default=str))
"""


def test_on_a_disk_that_is_really_full(tmp_path):
    told = on_small_disk("48m", tmp_path / "disk", CHILD)
    for said in (told["refused"], told["problem"], told["still"]):
        assert "the disk is full" in said
    assert (told["ends"], told["leases"], told["live"]) == ([True] * 8, [True] * 8, ["after"])
    assert told["reserve"] >= 16 << 20
    assert (told["running"], told["kept"]) == (0, 8)
    assert "it or its folder is read-only" in told["read-only"]


def test_a_start_that_needs_the_reserve_gives_rows_their_host_all_the_same(path, monkeypatch):
    store = Store.open(path)
    asyncio.run(store.devices.save(DeviceRecord("S1", "pixel")))
    store.close()
    counts = iter([sqlite_error(13)])

    def full_once(connection):
        for error in counts:
            raise error
        return next_epoch(connection)

    monkeypatch.setattr("farm.store.opening.next_epoch", full_once)
    store = Store.open(path, "lab1")
    assert [record.name for record in store.devices.all()] == ["pixel"]
    store.close()


def test_a_full_disk_at_the_start(path, monkeypatch):
    Store.open(path).close()
    monkeypatch.setattr("farm.store.opening.next_epoch", lambda _: (_ for _ in ()).throw(sqlite_error(13)))
    with raises_code(Code.DATABASE_UNUSABLE, match=r"cannot use the database .*: the disk is full") as caught:
        Store.open(path)
    assert "free disk space" in caught.value.hint
    assert not path.with_name("farm.db.reserve").exists()  # it was tried
