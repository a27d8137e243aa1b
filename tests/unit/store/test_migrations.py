"""Databases of other releases: the next one can migrate this one's; unknown ones are refused with a way on."""

import asyncio
import logging
import shutil
import subprocess
import sys
from contextlib import closing, contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, inspect

from farm.common.errors import Code, HostError
from farm.store import migrations, opening
from farm.store.engine import server_engine, sqlite_engine
from farm.store.schema import FIRST_SCHEMA_VERSION, SCHEMA_VERSION, metadata
from farm.store.server_opening import StoreRole
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S
from tests.unit.store import next_release, values
from tests.unit.store.values import sql


def write_this_release(where):
    """A database of this release after one start, with a job that ran and one that runs."""

    async def write(store):
        for number in (1, 2):
            await store.jobs.add((values.job(f"j{number}", spec={"name": f"net{number}"}),))
            begun = values.attempt(number, of=f"j{number}")
            await values.begin(store, begun)
            if number == 1:
                ended = values.ended(store.jobs.get("j1"))
                await store.jobs.finish(values.over(begun), ended, result={"answer": 42})
                await store.leases.end("l1", ended_at=values.NOW, reason="done", held_s=1.0)

    with closing(Store.open(where)) as store:
        asyncio.run(write(store))


@contextmanager
def changing(where):
    """A connection to a database that no store has opened."""
    Store.open(where).close()
    server = isinstance(where, str)
    engine = server_engine(where) if server else sqlite_engine(where, begin="BEGIN IMMEDIATE", foreign_keys=False)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


@contextmanager
def closing_engine(url):
    engine = server_engine(url)
    yield engine
    engine.dispose()


def set_version(connection, version):
    connection.exec_driver_sql(f"UPDATE meta SET value = {version} WHERE name = 'schema_version'")


def version_in(path):
    return sql(path, "SELECT value FROM meta WHERE name = 'schema_version'")[0][0]


def check_shape(connection):
    """The tables are those of this release."""
    assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    for table in metadata.sorted_tables:  # keys are not compared by it
        key = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
        assert key == [column.name for column in table.primary_key], table.name
        checks = {each["name"] for each in inspect(connection).get_check_constraints(table.name)}
        assert checks == {each.name for each in table.constraints if isinstance(each, CheckConstraint)}


def test_a_new_database_has_the_shape_of_this_release(store):
    with store.database.reading() as connection:
        check_shape(connection)


def test_each_schema_version_after_the_first_has_its_revision_in_the_package():
    revisions = {each.name for each in files("farm.store.migrations").iterdir() if each.name.startswith("v")}
    assert len(revisions) == SCHEMA_VERSION - FIRST_SCHEMA_VERSION


async def test_the_next_release_keeps_the_data_and_the_guards_and_copies_it_aside(opened, where, monkeypatch, caplog):
    await asyncio.to_thread(write_this_release, where)
    next_release.install(monkeypatch.setattr)
    with caplog.at_level(logging.INFO):
        store = opened(where)
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
    await store.jobs.add((values.job("j3"),))
    await store.leases.grant(values.lease(3, "other", job="j3"))
    with raises_code(Code.STORE_CONFLICT):  # one running attempt of a device
        await store.jobs.start(values.attempt(3, of="j3"), attempts_before=0)
    if not isinstance(where, str):
        (backup,) = where.parent.glob(f"farm.db.backup-*-schema{SCHEMA_VERSION}")
        assert str(backup) in caplog.text
        assert version_in(backup) == SCHEMA_VERSION
        store.close()
        opened(where)
        assert len(list(where.parent.glob("farm.db.backup-*"))) == 1


def test_this_release_refuses_the_next_ones_database_and_opens_the_copy(tmp_path, opened):
    path = tmp_path / "farm.db"
    write_this_release(path)
    with pytest.MonkeyPatch.context() as patch:
        next_release.install(patch.setattr)
        Store.open(path).close()
    with raises_code(Code.DATABASE_UNUSABLE, match="schema version 17, of a newer farm") as caught:
        Store.open(path)
    (backup,) = tmp_path.glob("farm.db.backup-*")
    assert str(backup) in caught.value.hint
    opened(shutil.copy(backup, path))


def test_a_migration_that_fails_leaves_everything_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "farm.db"
    write_this_release(path)
    sql(path, "UPDATE job SET spec = 'no json' WHERE id = 'j1'")
    before = path.read_bytes()
    next_release.install(monkeypatch.setattr)
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


@pytest.mark.parametrize(
    ("version", "said", "hint"),
    [
        (1, "schema version 1, from before farm's first", "empty database|begin with a new database"),
        (FIRST_SCHEMA_VERSION - 1, "from before farm's first", "empty database|begin with a new database"),
        (99, "schema version 99, of a newer farm", "release"),
    ],
)
def test_a_database_of_an_unknown_version_is_refused_with_a_way_on(opened, where, version, said, hint):
    with changing(where) as connection:
        set_version(connection, version)
    with raises_code(Code.DATABASE_UNUSABLE, match=said) as caught:
        Store.open(where)
    assert any(each in caught.value.hint for each in hint.split("|"))
    if not isinstance(where, str) and version < FIRST_SCHEMA_VERSION:
        command = caught.value.hint.removeprefix("begin with a new database: ").partition(" (")[0]
        subprocess.run(["sh", "-ec", command], check=True, timeout=HANG_S)
        assert opened(where).epoch == 1
        assert version_in(where.with_name("farm.db.old")) == version


def test_a_start_with_the_current_schema_does_not_load_alembic(tmp_path):
    Store.open(tmp_path / "farm.db").close()
    code = (
        "import sys; from pathlib import Path; from farm.store.store import Store; "
        "Store.open(Path(sys.argv[1])).close(); assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "farm.db"], check=True, timeout=60)


def test_files_that_another_farm_left_between_the_revisions(numbers, tmp_path):
    (tmp_path / "stray.py").write_text("raise AssertionError('imported')")
    numbers(migrations, VERSION_LOCATIONS=[Path(next_release.__file__).parent, tmp_path])
    assert migrations._revision(next_release.VERSION).revision == str(next_release.VERSION)
    stray = tmp_path / f"v{next_release.VERSION}_old.py"
    stray.touch()
    with pytest.raises(HostError, match=f"2 revisions of schema version {next_release.VERSION}") as error:
        migrations._revision(next_release.VERSION)
    assert str(stray) in error.value.evidence


HOST_ROW = (
    "INSERT INTO host (name, beat_at, protocol, version) "
    "VALUES ('{}', extract(epoch FROM clock_timestamp()) - {}, {}, '0.1.0')"
)


@pytest.mark.parametrize(
    ("keeps", "silent_s", "protocol", "refused"),
    [
        (False, 1, 5, True),
        (False, 60, 5, False),  # it was stopped, or is lost
        (True, 1, 5, False),
        (True, 1, 3, True),  # which the next release does not understand
    ],
)
async def test_a_labs_database_is_not_migrated_beside_a_daemon_that_could_not_go_on(
    opened, tables, numbers, tmp_path, keeps, silent_s, protocol, refused
):
    url = tables.as_new()
    await asyncio.to_thread(write_this_release, url)
    with closing_engine(url) as engine, engine.begin() as connection:
        for name, age_s in (("lab1", 0), ("lab2", silent_s)):
            connection.exec_driver_sql(HOST_ROW.format(name, age_s, protocol))
    next_release.install(lambda module, name, value: numbers(module, **{name: value}))
    revision = (Path(next_release.__file__).parent / "v17_names.py").read_text()
    (tmp_path / "v17_names.py").write_text(f"{revision}\nkeeps_daemons = {keeps}\n")
    numbers(migrations, VERSION_LOCATIONS=[tmp_path])
    begin = partial(opened, url, "lab1", role=StoreRole.HOST, protocols=range(4, 6))
    if not refused:
        assert begin().jobs.get("j1").id == "j1"
        return
    with raises_code(Code.BAD_HOST_VERSION, match=rf"lab2 \(farm 0.1.0, protocol {protocol}\); nothing") as caught:
        begin()
    assert "lab1" not in str(caught.value)
    with closing_engine(url) as engine, engine.connect() as connection:
        assert opening.version_of(connection, url) == next_release.VERSION - 1


async def test_a_labs_database_is_not_migrated_beside_a_head(opened, tables, monkeypatch):
    url = tables.as_new()
    opened(url, role=StoreRole.HEAD)
    next_release.install(monkeypatch.setattr)
    with raises_code(Code.BAD_HOST_VERSION, match="still run: its head; nothing was changed"):
        opened(url, "lab1", role=StoreRole.HOST)
