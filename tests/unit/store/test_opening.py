"""Starts that fail or are killed on the way leave the database as it was, and no pile of copies."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from sqlalchemy import event

from farm.common.errors import Code, HostError
from farm.store.engine import INCREMENTAL, sqlite_engine
from farm.store.schema import SCHEMA_VERSION
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.small_disk import on_small_disk
from tests.support.tvm import ROOT
from tests.unit.store import next_release
from tests.unit.store.test_migrations import version_in, write_this_release
from tests.unit.store.test_outage import sqlite_error
from tests.unit.store.values import job, sql

KILLED = """
import os, sys
from pathlib import Path
import farm.store.migrations
from farm.store.store import Store
from tests.unit.store import next_release
next_release.install()
farm.store.migrations.migrate = lambda *_: os._exit(9)
Store.open(Path(sys.argv[1]))
"""
# Opens copies of a database of this release as the next one, with less and less room left.
FULL = """
import json, os, shutil, sys
from pathlib import Path
from farm.common.errors import HostError
from farm.store.store import Store
from tests.unit.store import next_release

next_release.install()
disk, source = Path(sys.argv[1]), Path(sys.argv[2])
size, told = source.stat().st_size, []
for tenths in (0, 5, 12, 18, 40, 60):
    path = disk / "farm.db"
    shutil.copy(source, path)
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - tenths * size // 10)))
    before = []
    for _ in range(3):
        try:
            Store.open(path).close()
            said = ""
        except HostError as error:
            said = error.message
        before.append((said, sum(each.name.count("backup") for each in disk.iterdir())))
    told.append(before)
    for each in disk.iterdir():
        each.unlink()
print(json.dumps(told))
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A database of this release, in a farm of the next one."""
    path = tmp_path / "farm.db"
    write_this_release(path)
    next_release.install(monkeypatch.setattr)
    return path


def copies(path):
    return sorted(each.name for each in path.parent.glob("*.backup-*"))


@pytest.mark.parametrize("error", [sqlite_error(sqlite3.SQLITE_FULL), KeyboardInterrupt(), ValueError("no number")])
def test_a_migration_that_changed_nothing_leaves_no_copy(path, monkeypatch, error):
    def fails(connection, _):
        connection.exec_driver_sql("DELETE FROM lease")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("farm.store.migrations.migrate", fails)
        with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else HostError) as told:
            Store.open(path)
    if "full" in str(error):
        assert "the disk is full" in told.value.message
    assert copies(path) == []
    assert version_in(path) == SCHEMA_VERSION
    Store.open(path).close()
    assert version_in(path) == next_release.VERSION
    assert len(copies(path)) == 1


def killed(path):
    done = subprocess.run([sys.executable, "-c", KILLED, path], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == 9, done.stderr


def test_killed_starts_leave_one_copy(path):
    killed(path)
    (copy,) = copies(path)
    (path.parent / f"{copy}.part").write_bytes(b"half a copy")
    killed(path)
    assert copies(path) == [copy]
    Store.open(path).close()
    assert copies(path) == [copy]
    assert version_in(path.parent / copy) == SCHEMA_VERSION


def test_a_database_that_changed_since_is_copied_anew(path):
    killed(path)
    (copy,) = copies(path)
    (path.parent / copy).rename(path.parent / "farm.db.backup-20250101T000000Z-schema10")
    sql(path, "UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    Store.open(path).close()
    assert len(copies(path)) == 2


class FullCursor(sqlite3.Cursor):
    """Of a disk on which there is room for changes, but not for tidying."""

    code = sqlite3.SQLITE_FULL

    def execute(self, sql, *parameters):
        if sql.startswith(("VACUUM", "PRAGMA wal_checkpoint")):
            raise sqlite_error(self.code).orig
        return super().execute(sql, *parameters)


class FullConnection(sqlite3.Connection):
    def cursor(self, *_):
        return FullCursor(self)


@pytest.fixture
def no_room_to_tidy(monkeypatch):
    def engine_of(path, **options):
        engine = sqlite_engine(path, **options)
        event.listen(engine, "do_connect", lambda *given: given[-1].update(factory=FullConnection))
        return engine

    monkeypatch.setattr("farm.store.opening.sqlite_engine", engine_of)


def test_a_start_goes_on_without_space_to_tidy(path, no_room_to_tidy, caplog):
    with caplog.at_level(logging.WARNING), closing(Store.open(path)) as store:
        assert store.epoch == 2
    assert version_in(path) == next_release.VERSION
    said = [each.message for each in caplog.records if "was left out" in each.message]
    assert ["VACUUM" in said[0], "wal_checkpoint" in said[1]] == [True, True]
    assert all("the disk is full" in each for each in said)


def test_damage_found_while_tidying_is_refused(path, no_room_to_tidy, numbers):
    numbers(FullCursor, code=sqlite3.SQLITE_CORRUPT)
    with raises_code(Code.DATABASE_UNUSABLE, match="is damaged"):
        Store.open(path)


def test_with_less_and_less_space(path, tmp_path):
    attempts = [(f"a{number}", number, number, json.dumps({"x": "y" * 600})) for number in range(10, 1000)]
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(
            "INSERT INTO attempt (id, job, number, device, lease, fence, state, started_at, ended_at, facts, pooled)"
            " VALUES (?, 'j1', ?, 'pixel', 'l1', ?, 'done', 1.0, 2.0, ?, 0)", attempts,
        )  # fmt: skip
        connection.commit()
        connection.execute("PRAGMA journal_mode = DELETE")
    told = on_small_disk("24m", tmp_path / "disk", FULL, path)
    assert all("the disk is full" in said for starts in told for said, _ in starts if said), told
    # None is left of a start that changed nothing, one of those that went through.
    assert all(left == (not starts[0][0]) for starts in told for _, left in starts), told
    assert ["cannot be copied" in starts[0][0] for starts in told[:4]] == [False, True, False, False]
    assert [said for starts in told[-2:] for said, _ in starts] == [""] * 6


@pytest.mark.parametrize("leads", ["unmounted/farm.db", "farm.db"])
def test_a_link_that_leads_nowhere_is_not_replaced_by_a_new_database(tmp_path, leads):
    path = tmp_path / "farm.db"
    path.symlink_to(leads)
    with raises_code(Code.DATABASE_UNUSABLE, match=r"is a link to .*, which is not there") as told:
        Store.open(path)
    assert "mounted" in told.value.hint
    assert path.is_symlink()
    assert [each.name for each in tmp_path.iterdir()] == ["farm.db"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("schema_version", 0), ("schema_version", -1), ("schema_version", "abc"), ("schema_version", 1.5),
     ("epoch", "x"), ("epoch", -5), ("epoch", 2**63 - 1), ("epoch", 2**21 - 1)],
)  # fmt: skip
def test_what_something_else_wrote_over_farms_own_numbers_is_told(tmp_path, name, value):
    """Fences are made of the number of starts: they must never repeat."""
    path = tmp_path / "farm.db"
    Store.open(path).close()
    sql(path, "UPDATE meta SET value = ? WHERE name = ?", value, name)
    with raises_code(Code.DATABASE_UNUSABLE, match="was changed by something else") as told:
        Store.open(path)
    assert repr(value) in told.value.message
    assert sql(path, "SELECT value FROM meta WHERE name = ?", name) == [(value,)]


def test_a_fifo_in_the_reserves_place_does_not_hold_the_start(tmp_path, opened):
    place = tmp_path / "farm.db.reserve"
    os.mkfifo(place)
    reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # or this test would wait itself
    assert opened(tmp_path / "farm.db").problem == ""
    os.close(reader)
    assert place.is_file()


def test_whoever_comes_to_read_waits_for_no_commit(tmp_path):
    """On a slow disk one may take longer than the patience with a lock, and reads happen on the event loop."""
    path = tmp_path / "farm.db"
    Store.open(path).close()
    reading = sqlite_engine(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as commits:
        commits.execute("BEGIN IMMEDIATE")
        with reading.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() == INCREMENTAL
            assert connection.exec_driver_sql("SELECT count(*) FROM job").scalar() == 0
    reading.dispose()


async def test_what_stands_in_the_reserves_place_is_said_and_no_full_disk(tmp_path, opened, caplog):
    place = tmp_path / "farm.db.reserve"
    place.mkdir()
    store = opened(tmp_path / "farm.db")
    assert store.problem == ""
    assert f"farm has no reserve for a full disk: {place}: Is a directory" in caplog.text
    await store.jobs.add((job("written"),))
