"""`farm lab init`: the SQLite store of a stopped daemon moves to PostgreSQL, all of it or nothing."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from farm.common.errors import Code
from farm.common.events import Event
from farm.control.callers import Accounts, Role
from farm.model.job import JobState
from farm.store import files, moving, opening
from farm.store.accounts import AuditRecord
from farm.store.engine import server_engine
from farm.store.moving import move_to_server
from farm.store.schema import SCHEMA_VERSION, metadata
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.postgres import END_OTHERS, run
from tests.unit.store.values import NOW, attempt, begin, ended, job, lease, over

ODD = "half a pair \udcff, a NUL \0, tab\t, \\N, newline\n, é"
TABLES = len(metadata.sorted_tables)
KILLED = """
import os, signal, sys
from pathlib import Path
from farm.store import files, moving, opening
copy, steps = moving._copy, iter(range(int(sys.argv[3])))
def dies(*arguments):
    if next(steps, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    copy(*arguments)
moving._copy = dies
moving.move_to_server(Path(sys.argv[1]), sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def url(new_database):
    return new_database()


@pytest.fixture
async def file(tmp_path):
    """A store with something in it."""
    path = tmp_path / "farm.db"
    store = Store.open(path)
    await store.jobs.add([job(f"j{number}", spec={"command": ODD}) for number in range(3)])
    begun = attempt(of="j0")
    await begin(store, begun)
    await store.jobs.finish(over(begun), ended(store.jobs.get("j0")), result={"text": ODD})
    await store.leases.end("l1", ended_at=NOW, reason=ODD, held_s=1 / 3)
    await store.leases.grant(lease(7, "p7"))
    await Accounts(store.accounts).new("ann", Role.USER, web=True, by="root")
    await store.audit.add([AuditRecord(NOW, "ann", "user", "uid 1", "job.cancel", ODD, "ok")] * 5)
    await store.events.add([Event(number, NOW, "job.queued", ODD, {"n": number}) for number in range(1, 3000)])
    store.close()
    return path


def content(engine):
    """Every row as it is stored; of meta only what a farm wrote."""
    found = {}
    with engine.connect() as connection:
        for table in metadata.sorted_tables:
            columns = ", ".join(f'"{column.name}"' for column in table.columns)
            rows = connection.exec_driver_sql(f'SELECT {columns} FROM "{table.name}"')
            found[table.name] = sorted(map(tuple, rows), key=repr)
    engine.dispose()
    del found["meta"]
    return found


def is_empty(url):
    return not run(url, "SELECT 1 FROM pg_tables WHERE schemaname = 'public'")


async def test_everything_arrives_and_the_server_goes_on_from_there(file, url, opened):
    before, said = file.read_bytes(), []
    moved = move_to_server(file, url, lambda table, rows: said.append((table, rows)))
    assert content(server_engine(url)) == content(moving.sqlite_engine(file))
    assert dict(said) == dict(moved.rows)
    assert (moved.rows["event"], moved.before, moved.backup.exists()) == (2999, False, True)
    assert file.read_bytes() == before
    again = move_to_server(file, url)
    assert (again.before, again.rows, again.backup) == (True, moved.rows, moved.backup)
    store = opened(url)
    assert store.epoch == opened(file).epoch
    assert store.jobs.get("j0").state is JobState.DONE
    assert await store.jobs.add((job("new"),)) == ("new",)
    assert [each.id for each in store.leases.open()] == ["l7"]
    await store.audit.add([AuditRecord(NOW, "ann", "user", "", "x", "", "ok")])
    assert store.audit.page()[0].seq == 6


@pytest.mark.parametrize("step", [0, 1, TABLES // 2, TABLES - 1, TABLES])
def test_a_kill_leaves_all_or_nothing_and_the_next_try_completes(file, url, step):
    done = subprocess.run([sys.executable, "-c", KILLED, file, url, str(step)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert is_empty(url) is (step < TABLES)
    assert move_to_server(file, url).before is (step == TABLES)
    assert content(server_engine(url)) == content(moving.sqlite_engine(file))
    assert len(list(file.parent.glob("farm.db.backup-*"))) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("another", "the content of another farm"),
        ("later", "the content of another farm"),  # the daemon has served since
        ("older", "of an earlier farm"),
        ("newer", "of a newer farm"),
        ("foreign", "not farm's"),
    ],
)
def test_a_database_that_is_in_use_is_refused(file, url, wrong, said):
    if wrong == "another":
        Store.open(url).close()
    elif wrong == "foreign":
        run(url, "CREATE TABLE theirs (x int)")
    else:
        move_to_server(file, url)
    if wrong == "later":
        Store.open(file).close()
    elif wrong in ("older", "newer"):
        version = SCHEMA_VERSION + (1 if wrong == "newer" else -1)
        run(url, f"UPDATE meta SET value = {version} WHERE name = 'schema_version'")
    with raises_code(Code.DATABASE_UNUSABLE, match=said) as caught:
        move_to_server(file, url)
    assert caught.value.hint


def test_a_lost_row_is_noticed_and_nothing_is_kept(file, url, monkeypatch):
    copy = moving._copy

    def loses(source, target, table, report):
        copy(source, target, table, report)
        if table.name == "event":
            target.execute(text("DELETE FROM event WHERE seq = 5"))

    monkeypatch.setattr(moving, "_copy", loses)
    with raises_code(Code.DATABASE_UNUSABLE, match="other numbers of rows") as caught:
        move_to_server(file, url)
    assert caught.value.evidence == "event: 2999 became 2998"
    assert is_empty(url)


FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
CREATE FUNCTION fill() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
IF EXISTS (SELECT 1 FROM pg_event_trigger_ddl_commands() WHERE object_identity = 'public.event') THEN
EXECUTE 'CREATE TRIGGER full_disk BEFORE INSERT ON event FOR EACH ROW EXECUTE FUNCTION full_disk()';
END IF; END $$;
CREATE EVENT TRIGGER fill ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION fill()
"""


def test_a_full_disk_at_the_server_leaves_nothing(file, url):
    run(url, FULL)
    with raises_code(Code.DATABASE_UNUSABLE, match="the database server's disk is full") as caught:
        move_to_server(file, url)
    assert "free space there" in caught.value.hint
    assert is_empty(url)


def test_a_server_that_stops_meanwhile_leaves_nothing(file, url):
    with raises_code(Code.DATABASE_UNUSABLE, match="the database server"):
        move_to_server(file, url, lambda table, _rows: table == "event" and run(url, END_OTHERS))
    assert is_empty(url)
    assert move_to_server(file, url).rows["event"] == 2999


def test_a_server_that_is_away_is_said_before_anything_happens(file):
    with raises_code(Code.DATABASE_UNUSABLE, match="cannot be reached") as caught:
        move_to_server(file, "postgresql://farm:hunter2@127.0.0.1:1/farm?connect_timeout=2")
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint} {caught.value.evidence}"


def test_what_cannot_be_moved(tmp_path, url):
    with raises_code(Code.NO_DATABASE, match="there is no"):
        move_to_server(tmp_path / "farm.db", url)
    (tmp_path / "farm.db").write_bytes(b"SQLite format 3\0 and then nothing")
    with raises_code(Code.DATABASE_UNUSABLE):
        move_to_server(tmp_path / "farm.db", url)


def test_a_store_of_an_earlier_release_is_brought_up_to_date_first(file, url, numbers):
    for module in (moving, opening):
        numbers(module, SCHEMA_VERSION=SCHEMA_VERSION + 1)
    with raises_code("bad_request", match="of an earlier farm release") as caught:
        move_to_server(file, url)
    assert "farm serve" in caught.value.hint


def test_a_copy_of_the_same_second_has_a_name_of_its_own(file, monkeypatch):
    monkeypatch.setattr(files, "datetime", SimpleNamespace(now=lambda _: NOW))
    first, _ = files.copy_before(file, "test")
    Store.open(file).close()
    second, made = files.copy_before(file, "test")
    assert (made, second != first, files.copy_before(file, "test")) == (True, True, (second, False))
