"""Databases of other releases: the next one can migrate this one's; unknown ones are refused with a way on."""

import asyncio
import logging
import shutil
import sqlite3
import subprocess
import sys
from datetime import timedelta
from importlib.resources import files

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import CheckConstraint, inspect

from farm.common.errors import Code, HostError
from farm.model.health import BatteryDay, Quarantine
from farm.store import migrations
from farm.store.devices import DeviceRecord, RecoveryRecord
from farm.store.engine import server_engine, sqlite_engine
from farm.store.migrations import v9_tables, v10_hosts
from farm.store.schema import FIRST_SCHEMA_VERSION, SCHEMA_VERSION, metadata
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S
from tests.unit.store import next_release, values


def engine_of(where):
    if isinstance(where, str):
        return server_engine(where)
    return sqlite_engine(where, begin="BEGIN IMMEDIATE", foreign_keys=False)


def write_this_release(where):
    """A database of this release after one start, with a job that ran and one that runs."""

    async def write():
        store = Store.open(where)
        try:
            for number in (1, 2):
                await store.jobs.add((values.job(f"j{number}", spec={"name": f"net{number}"}),))
                begun = values.attempt(number, of=f"j{number}")
                await values.begin(store, begun)
                if number == 1:
                    ended = values.ended(store.jobs.get("j1"))
                    await store.jobs.finish(values.over(begun), ended, result={"answer": 42})
                    await store.leases.end("l1", ended_at=values.NOW, reason="done", held_s=1.0)
        finally:
            store.close()

    asyncio.run(write())


@pytest.fixture
def older(where):
    write_this_release(where)
    return where


@pytest.fixture
def as_next_release(monkeypatch):
    next_release.install(monkeypatch.setattr)


def make_version_9(where):
    """Take the hosts and the head out of a database: its tables are as they were in version 9."""
    set_version(where, 9)
    engine = engine_of(where)
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        for table in (
            "artifact_copy",
            "shared_bundle",
            "device_state",
            "host",
            "host_readings",
            "host_token",
            "request",
            "to_head",
            "to_host",
        ):
            operations.drop_table(table)
        operations.drop_index("lease_slot_kept", "lease")
        with operations.batch_alter_table("lease") as batch:
            batch.drop_constraint("lease_slot", type_="check")
            for column in ("host", "armed_at", "slot", "holder_host", "match_sha256"):
                batch.drop_column(column)
        operations.drop_index("recovery_of_serial", "recovery")
        for table, key in v10_hosts.KEYS.items():
            with operations.batch_alter_table(table) as batch:
                batch.drop_column("host")  # PostgreSQL drops the key with it
                batch.create_primary_key(f"{table}_pkey", key)
        operations.create_index("recovery_of_serial", "recovery", ["serial", "began_at"])
    engine.dispose()


def version_in(path):
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()[0]


def set_version(where, version):
    Store.open(where).close()
    engine = engine_of(where)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE meta SET value = {version} WHERE name = 'schema_version'")
    engine.dispose()


def test_the_schema_is_what_is_created(where):
    Store.open(where).close()
    engine = engine_of(where)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


async def test_rows_about_phones_get_their_host(where):
    """What version 9 has of a phone stays the phone's, and a second host may have one of the same serial."""
    store = await asyncio.to_thread(Store.open, where)
    phone = DeviceRecord("emulator-5554", "one", adopted=True, service="draining", ordered_at=values.NOW)
    action = RecoveryRecord("r1", "emulator-5554", "one", "reboot", "stuck", "", values.NOW)
    kept = Quarantine("cracked", at=values.NOW)
    rollout = {"current": "b1", "previous": "", "candidate": "", "wanted": "", "refused": {}, "trials": {}}
    await store.devices.save(phone)
    await store.recoveries.begin(action)
    await store.recoveries.add_quarantine("emulator-5554", kept)
    await store.recoveries.set_proven("emulator-5554", "b1")
    await store.rollouts.save("arm64-v8a", "android", rollout)
    await store.batteries.save("emulator-5554", BatteryDay("2026-11-20"))
    await store.leases.grant(values.lease())
    store.close()
    await asyncio.to_thread(make_version_9, where)
    store = await asyncio.to_thread(Store.open, where)
    try:
        assert store.devices.all() == (phone,)
        assert store.recoveries.since(values.NOW - timedelta(hours=1)) == (action,)
        assert (store.recoveries.quarantined(), store.recoveries.proven()) == (
            {"emulator-5554": kept},
            {"emulator-5554": "b1"},
        )
        assert store.rollouts.all() == {("arm64-v8a", "android"): rollout}
        assert store.batteries.days("emulator-5554") == (BatteryDay("2026-11-20"),)
        (lease,) = store.leases.open()
        assert (lease.host, lease.armed_at, lease.slot) == ("", lease.granted_at, False)
        with store.database.reading() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
            for table in metadata.sorted_tables:  # keys are not compared by it
                key = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
                assert key == [column.name for column in table.primary_key], table.name
                checks = {each["name"] for each in inspect(connection).get_check_constraints(table.name)}
                assert checks == {each.name for each in table.constraints if isinstance(each, CheckConstraint)}
    finally:
        store.close()


def test_each_schema_version_has_its_revision_in_the_package():
    revisions = {each.name for each in files("farm.store.migrations").iterdir() if each.name.startswith("v")}
    assert len(revisions) == SCHEMA_VERSION - FIRST_SCHEMA_VERSION + 1
    assert v9_tables.revision == str(FIRST_SCHEMA_VERSION)


def test_the_next_release_keeps_the_data_and_copies_it_aside(older, as_next_release, caplog):
    with caplog.at_level(logging.INFO):
        store = Store.open(older)
    try:
        assert store.epoch == 2
        assert store.jobs.result("j1") == {"answer": 42}
        (attempt,) = store.jobs.running()
        assert (attempt.job, store.leases.get(attempt.lease).fence) == ("j2", attempt.fence)
        with store.database.reading() as connection:
            names = connection.exec_driver_sql("SELECT id, name FROM job ORDER BY id").all()
            assert [tuple(row) for row in names] == [("j1", "net1"), ("j2", "net2")]
            checks = {each["name"] for each in inspect(connection).get_check_constraints("attempt")}
            assert {"attempt_has_device", "attempt_state", "attempt_ended_when_over"} <= checks
            if connection.dialect.name == "sqlite":
                assert connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() == 2  # incremental
                assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
    finally:
        store.close()
    if not isinstance(older, str):
        (backup,) = older.parent.glob(f"farm.db.backup-*-schema{SCHEMA_VERSION}")
        assert str(backup) in caplog.text
        assert version_in(backup) == SCHEMA_VERSION
        Store.open(older).close()
        assert len(list(older.parent.glob("farm.db.backup-*"))) == 1


async def test_a_table_that_was_made_anew_has_its_guards(where, monkeypatch):
    await asyncio.to_thread(write_this_release, where)
    next_release.install(monkeypatch.setattr)
    store = Store.open(where)
    try:
        await store.jobs.add((values.job("j3"),))
        await store.leases.grant(values.lease(3, "other", job="j3"))
        with raises_code(Code.STORE_CONFLICT):  # one running attempt of a device
            await store.jobs.start(values.attempt(3, of="j3"), attempts_before=0)
    finally:
        store.close()


def test_this_release_refuses_the_next_ones_database_and_opens_the_copy(tmp_path):
    path = tmp_path / "farm.db"
    write_this_release(path)
    with pytest.MonkeyPatch.context() as patch:
        next_release.install(patch.setattr)
        Store.open(path).close()
    with raises_code(Code.DATABASE_UNUSABLE, match="schema version 14, of a newer farm") as caught:
        Store.open(path)
    (backup,) = tmp_path.glob("farm.db.backup-*")
    assert str(backup) in caught.value.hint
    shutil.copy(backup, path)
    Store.open(path).close()


def test_a_migration_that_fails_leaves_everything_as_it_was(tmp_path, as_next_release):
    path = tmp_path / "farm.db"
    with pytest.MonkeyPatch.context() as patch:
        for module in ("schema", "opening", "server_opening", "migrations"):
            patch.setattr(f"farm.store.{module}.SCHEMA_VERSION", SCHEMA_VERSION)
        write_this_release(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE job SET spec = 'no json' WHERE id = 'j1'")
    connection.close()
    before = path.read_bytes()
    for _ in range(2):
        with raises_code(Code.DATABASE_UNUSABLE, match="cannot be brought up to date"):
            Store.open(path)
    assert path.read_bytes() == before


def test_without_space_for_the_copy_there_is_no_migration(tmp_path, monkeypatch):
    path = tmp_path / "farm.db"
    write_this_release(path)
    next_release.install(monkeypatch.setattr)

    def full(*_):
        raise HostError("cannot copy: no room")

    monkeypatch.setattr("farm.store.files.copy_database", full)
    with pytest.raises(HostError, match="no room"):
        Store.open(path)
    assert version_in(path) == SCHEMA_VERSION


@pytest.mark.parametrize("version", [1, FIRST_SCHEMA_VERSION - 1])
def test_a_database_from_before_the_first_release_is_refused_with_a_way_on(where, version):
    set_version(where, version)
    with raises_code(Code.DATABASE_UNUSABLE, match=f"schema version {version}, from before farm's first") as caught:
        Store.open(where)
    if isinstance(where, str):
        assert "give [store] url another, empty database" in caught.value.hint
        return
    command = caught.value.hint.removeprefix("begin with a new database: ").partition(" (")[0]
    subprocess.run(["sh", "-ec", command], check=True, timeout=HANG_S)
    store = Store.open(where)
    assert store.epoch == 1
    store.close()
    assert version_in(where.with_name("farm.db.old")) == version


def test_a_newer_farms_database_is_refused(where):
    set_version(where, 99)
    with raises_code(Code.DATABASE_UNUSABLE, match="schema version 99, of a newer farm") as caught:
        Store.open(where)
    assert "release" in caught.value.hint


def test_a_start_with_the_current_schema_does_not_load_alembic(tmp_path):
    Store.open(tmp_path / "farm.db").close()
    code = (
        "import sys; from pathlib import Path; from farm.store.store import Store; "
        "Store.open(Path(sys.argv[1])).close(); assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "farm.db"], check=True, timeout=60)


def test_files_that_another_farm_left_between_the_revisions(monkeypatch, tmp_path):
    (tmp_path / "stray.py").write_text("raise AssertionError('imported')")
    monkeypatch.setattr(migrations, "VERSION_LOCATIONS", [*migrations.VERSION_LOCATIONS, tmp_path])
    assert migrations._revision(10).revision == "10"
    (tmp_path / "v10_old.py").touch()
    with pytest.raises(HostError, match="2 revisions of schema version 10") as error:
        migrations._revision(10)
    assert str(tmp_path / "v10_old.py") in error.value.evidence
