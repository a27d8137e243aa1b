import json
import logging
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import delete, insert, inspect

from farm.core.errors import HostError
from farm.core.job import AttemptState, JobState
from farm.jobs.specs import spec_from_wire
from farm.store.engine import server_engine, sqlite_engine
from farm.store.migrate import migrate
from farm.store.migrations.versions import v2_shared_farm as v2
from farm.store.migrations.versions import v3_tuning as v3
from farm.store.opening import DatabaseUnusableError, create_tables
from farm.store.records import DeviceRecord
from farm.store.schema import SCHEMA_VERSION, metadata
from farm.store.store import Store
from farm.store.writer import StoreConflictError
from tests.unit.store import values

# As the first release made it (git show bdb84de:farm/store/schema.py).
FIRST_RELEASE = """
CREATE TABLE meta (name VARCHAR NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (name));
CREATE TABLE device (serial VARCHAR NOT NULL, name VARCHAR NOT NULL, hardware_serial VARCHAR DEFAULT '' NOT NULL,
  pool VARCHAR DEFAULT '' NOT NULL, adopted INTEGER NOT NULL CHECK (adopted IN (0, 1)),
  service VARCHAR DEFAULT 'in' NOT NULL CHECK (service IN ('in', 'draining', 'maintenance')),
  address VARCHAR DEFAULT '' NOT NULL, labels TEXT DEFAULT '{}' NOT NULL, PRIMARY KEY (serial), UNIQUE (name));
CREATE TABLE alias (alias VARCHAR NOT NULL, selector VARCHAR NOT NULL, PRIMARY KEY (alias));
CREATE TABLE job (id VARCHAR NOT NULL, kind VARCHAR NOT NULL, "user" VARCHAR NOT NULL, spec TEXT NOT NULL,
  state VARCHAR NOT NULL CHECK (state IN ('running', 'done', 'failed', 'lost')), submitted_at VARCHAR NOT NULL,
  ended_at VARCHAR, result TEXT, CONSTRAINT ended_when_over CHECK ((state = 'running') = (ended_at IS NULL)),
  PRIMARY KEY (id));
"""
SPEC = {
    "model": "a" * 64, "name": "m.onnx", "selector": "soc=sm8550", "repeat": 20, "number": 5, "min_repeat_ms": 0,
    "target": "cpu", "inputs": None, "devices": None, "timeout_s": 60.0,
}  # fmt: skip
ERROR = {"code": "no_phone", "fault": "user", "exit": 3, "message": "no phone", "hint": "", "evidence": ""}
JOBS = [  # state, result, error after the migration
    ("done", {"ok": True, "results": []}, None),
    ("failed", {"ok": False, "results": []}, None),
    ("failed", {"error": ERROR}, ERROR),
    ("lost", None, "the daemon died while it ran"),
    ("running", None, "the daemon died while it ran"),
]


def first_release(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(FIRST_RELEASE)
    connection.execute("INSERT INTO meta VALUES ('schema_version', 1), ('epoch', 41)")
    connection.execute(
        "INSERT INTO device (serial, name, adopted, labels) VALUES ('X1', 'pixel', 1, '{\"rack\": \"3\"}')"
    )
    connection.execute("INSERT INTO alias VALUES ('board', 'soc=sm8550')")
    for number, (state, result, _) in enumerate(JOBS):
        spec = SPEC if number else {**SPEC, "selector": "pool=lab", "devices": 2}
        ended_at = None if state == "running" else f"2026-11-0{number + 1}T12:00:01.5+00:00"
        connection.execute(
            "INSERT INTO job VALUES (?, 'bench', 'ann', ?, ?, ?, ?, ?)",
            (f"j{number}", json.dumps(spec), state, f"2026-11-0{number + 1}T12:00:00+00:00", ended_at,
             result and json.dumps(result)),
        )  # fmt: skip
    connection.commit()
    connection.close()


def engine_of(where):
    if isinstance(where, str):
        return server_engine(where)
    return sqlite_engine(where, begin="BEGIN IMMEDIATE", foreign_keys=False)


def shape(engine):
    """Everything that defines the tables."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            return connection.exec_driver_sql("SELECT name, tbl_name, sql FROM sqlite_master ORDER BY name").all()
        inspector = inspect(connection)
        checks = {name: inspector.get_check_constraints(name) for name in inspector.get_table_names()}
        columns = {
            name: [(each["name"], str(each["type"]), each["nullable"], each["default"]) for each in found]
            for name, found in ((name, inspector.get_columns(name)) for name in checks)
        }
        indexes = connection.exec_driver_sql(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
        ).all()
        return sorted(checks.items()), sorted(columns.items()), [tuple(each) for each in indexes]


def test_migrating_from_nothing_gives_the_schema(where, tmp_path, request):
    migrated = engine_of(where)
    with migrated.begin() as connection:
        migrate(connection, None)
    with migrated.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    other = request.getfixturevalue("new_database")() if isinstance(where, str) else tmp_path / "other.db"
    created = engine_of(other)
    with created.begin() as connection:
        create_tables(connection)
    assert shape(migrated) == shape(created)
    migrated.dispose()
    created.dispose()


def test_the_first_releases_data_is_kept_and_copied_aside(tmp_path, caplog):
    path = tmp_path / "farm.db"
    first_release(path)
    with caplog.at_level(logging.INFO):
        store = Store.open(path)
    assert store.epoch == 42
    assert store.devices.all() == (DeviceRecord("X1", "pixel", adopted=True, labels={"rack": "3"}),)
    assert store.aliases.all() == {"board": "soc=sm8550"}
    jobs = [store.jobs.get(f"j{number}") for number in range(len(JOBS))]
    assert store.jobs.live() == ()
    for job, (state, result, error) in zip(jobs, JOBS, strict=True):
        assert job.state is (JobState.DONE if state == "done" else JobState.FAILED)
        assert store.jobs.result(job.id) == result
        assert (job.error and job.error["message"] if isinstance(error, str) else job.error) == error
        spec = spec_from_wire(job.spec)
        assert spec.on == job.selector
    assert [each.id for each in store.jobs.page()] == ["j4", "j3", "j2", "j1", "j0"]
    assert jobs[0].spec["devices"] == 2
    assert jobs[1].spec["devices"] == "all"
    assert jobs[1].ended_at.isoformat() == "2026-11-02T12:00:01.500000+00:00"
    with store.database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() == 2  # incremental
        assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
    store.close()

    (backup,) = tmp_path.glob("farm.db.backup-*-schema1")
    assert str(backup) in caplog.text
    with sqlite3.connect(backup) as copy:
        assert copy.execute("SELECT count(*) FROM job").fetchone() == (5,)
        assert copy.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone() == (1,)
    copy.close()
    Store.open(path).close()
    assert len(list(tmp_path.glob("farm.db.backup-*"))) == 1


def test_a_migration_that_fails_leaves_everything_as_it_was(tmp_path):
    path = tmp_path / "farm.db"
    first_release(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE job SET spec = 'no json' WHERE id = 'j3'")
    connection.close()
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(DatabaseUnusableError, match="cannot be brought up to date"):
            Store.open(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM job").fetchone() == (5,)
    connection.close()
    assert path.read_bytes() == before


def test_no_room_for_the_copy_no_migration(tmp_path, monkeypatch):
    path = tmp_path / "farm.db"
    first_release(path)

    def full(*_):
        raise HostError("cannot copy: no room")

    monkeypatch.setattr("farm.store.backup.copy_database", full)
    with pytest.raises(HostError, match="no room"):
        Store.open(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone() == (1,)
    connection.close()


def test_a_newer_farms_database_is_refused(where):
    Store.open(where).close()
    engine = engine_of(where)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE meta SET value = 99 WHERE name = 'schema_version'")
    engine.dispose()
    with pytest.raises(DatabaseUnusableError, match="schema version 99, of a newer farm") as caught:
        Store.open(where)
    assert "release" in caught.value.hint


def test_a_start_with_the_current_schema_does_not_load_alembic(tmp_path):
    Store.open(tmp_path / "farm.db").close()
    code = (
        "import sys; from pathlib import Path; from farm.store.store import Store; "
        "Store.open(Path(sys.argv[1])).close(); assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "farm.db"], check=True, timeout=60)


def test_every_step_is_in_the_package():
    from importlib.resources import files

    steps = {each.name for each in files("farm.store.migrations.versions").iterdir() if each.name.startswith("v")}
    assert len(steps) == SCHEMA_VERSION


def second_release(where):
    """A database of schema 2 with a job that ran and one that runs."""
    engine = engine_of(where)
    with engine.begin() as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr("farm.store.migrate.SCHEMA_VERSION", 2)
        migrate(connection, None)
        connection.execute(delete(v2.meta))
        for name, value in (("schema_version", 2), ("epoch", 7), ("serving", 0)):
            connection.execute(insert(v2.meta).values(name=name, value=value))
        connection.execute(insert(v2.selector).values(text="android"))
        for number, state in enumerate(("done", "running"), 1):
            over = 1e9 if state == "done" else None
            connection.execute(
                insert(v2.job).values(
                    id=f"j{number}", kind="shell", user="ann", spec="{}", selector=1, submitted_at=1.0, state=state,
                    device="", avoid="[]", array="", priority=1, lease_class="interactive", timeout_s=60.0,
                    max_attempts=1, after="[]", attempts=1, uncounted=0, ended_at=over,
                )
            )  # fmt: skip
            connection.execute(
                insert(v2.lease).values(
                    id=f"l{number}", device="pixel", user="ann", door="job", job=f"j{number}",
                    lease_class="interactive", selector=1, key="", fence=number, granted_at=1.0, ended_at=over,
                    reason="", held_s=0.0,
                )
            )  # fmt: skip
            connection.execute(
                insert(v2.attempt).values(
                    id=f"j{number}.1", job=f"j{number}", number=1, device="pixel", lease=f"l{number}", fence=number,
                    state=state, started_at=1.0, ended_at=over, facts='{"a": 1}',
                )
            )  # fmt: skip
    engine.dispose()


async def test_the_second_releases_attempts_are_kept(where, caplog):
    second_release(where)
    with caplog.at_level(logging.INFO):
        store = Store.open(where)
    try:
        assert store.epoch == 8
        (ran,), (runs,) = store.jobs.attempts("j1"), store.jobs.attempts("j2")
        assert (ran.state, ran.ended_at.timestamp(), ran.facts, ran.pooled) == (AttemptState.DONE, 1e9, {"a": 1}, False)
        assert store.jobs.running() == (runs,)
        assert store.leases.get(runs.lease).fence == runs.fence
        with store.database.reading() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
            assert set(inspect(connection).get_table_names()) == set(metadata.tables)
        # Every guard of the table is as new: one running attempt of a device, unless it is pooled.
        await store.jobs.add([values.job("j3")])
        await store.leases.grant(values.lease(9, "other", job="j3"))
        again = replace(values.attempt(9, of="j3"), device="pixel")
        with pytest.raises(StoreConflictError):
            await store.jobs.start(again, attempts_before=0)
        assert await store.jobs.start(replace(again, pooled=True), attempts_before=0)
        assert store.jobs.attempts("j3")[0].pooled
    finally:
        store.close()
    if not isinstance(where, str):
        (backup,) = where.parent.glob("farm.db.backup-*-schema2")
        assert str(backup) in caplog.text


async def test_sets_of_records_are_of_who_ran_their_job_and_what_killed_stays_refused_to_all(where):
    second_release(where)
    engine = engine_of(where)
    with engine.begin() as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr("farm.store.migrate.SCHEMA_VERSION", 6)
        migrate(connection, 2)
        connection.execute(v2.meta.update().where(v2.meta.c.name == "schema_version").values(value=6))
        for version, of in enumerate(("j1", "forgotten", ""), start=1):
            row = {"model": "m", "name": "net", "target_key": "k", "target": '"llvm"', "version": version}
            row |= {"artifact": "a", "records": 1, "best": "{}", "job": of, "at": 1e9}
            connection.execute(insert(v3.record_set).values(row))
        row = {"artifact": "a", "what": "SIGSEGV", "device": "pixel", "kills": 2, "first_at": 1e9, "last_at": 1e9}
        connection.execute(insert(v3.poison).values(row | {"user": "ann", "job": "j1"}))
    engine.dispose()
    store = Store.open(where)
    try:
        assert [(each.id, each.user, each.job) for each in store.record_sets.page(limit=9)] == [
            (3, "", ""), (2, "", "forgotten"), (1, values.job().user, "j1"),
        ]  # fmt: skip
        fields = {"model": "m", "name": "net", "target": "llvm", "artifact": "b", "records": 1, "best": {}}
        await store.record_sets.keep(**fields, user="ann", job="")
        assert store.record_sets.page(limit=1)[0].id == 4
        assert store.poison.kills(["a"], "bob") == {"a": 2}
    finally:
        store.close()
