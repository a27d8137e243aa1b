"""A PostgreSQL server that farm cannot use, or should not: one clear line each, and never the password."""

import asyncio
import logging

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import ArgumentError

from farm.common.doctor_findings import FAIL, OK, WARN
from farm.common.errors import Code, ExitCode
from farm.simulation.postgres import new_server
from farm.store import server_facts
from farm.store.engine import server_engine, server_url, shown_url
from farm.store.server_opening import StoreRole, look_at_server, named_engine
from farm.store.store import Store
from farm.store.term import TERM_S
from farm.store.writer import DatabaseLostError, StoreWriteError
from tests.support import postgres
from tests.support.errors import raises_code
from tests.support.needs import need
from tests.support.tvm import free_port
from tests.support.waiting import until
from tests.unit.store.values import job

SECRET = "hunter2"


@pytest.fixture
def new_database(server):
    """Databases of their own: these tests change their settings."""
    return lambda: postgres.new_database(server)


@pytest.fixture(autouse=True)
def slow_host(monkeypatch):
    """A round trip on a host with many tests is no fault."""
    monkeypatch.setattr("farm.store.server_rules.SLOW_S", 60.0)


@pytest.fixture(scope="module")
def guarded():
    """A server over TCP without TLS, where the role ann needs her password."""
    if why := postgres.missing():
        pytest.skip(why)
    with new_server(port=free_port(), hba="local all ann scram-sha-256\n") as guarded:
        run(guarded.url, f"CREATE ROLE ann LOGIN PASSWORD '{SECRET}'")
        yield guarded.url


def run(url, *statements):
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        return [connection.execute(each) for each in statements]


def as_ann(url, password=SECRET):
    return url.replace("farm@", f"ann:{password}@")


def refused(url, words, hint=""):
    with raises_code(Code.DATABASE_UNUSABLE, match=words) as caught:
        Store.open(url)
    said = caught.value
    for each in (said.message, said.hint, str(said.evidence)):
        assert SECRET not in each
        assert "wrong-one" not in each
    assert "\n" not in said.message
    assert hint in said.hint
    return said


def test_no_such_database(server):
    refused(server.replace("/postgres?", "/nope?"), "there is no such database", "createdb")


def test_a_wrong_password_is_never_printed(guarded):
    refused(as_ann(guarded, "wrong-one"), "the password is wrong", "pgpass")


def test_no_right_to_create_tables(guarded):
    url = postgres.new_database(guarded)
    refused(as_ann(url), "no right to create or change tables", "OWNER TO")


def test_tls_that_the_server_does_not_have(guarded):
    port = guarded.rpartition("port=")[2]
    refused(f"postgresql://farm@127.0.0.1:{port}/postgres?sslmode=require", "TLS is refused")


def test_a_server_that_is_away():
    refused("postgresql://farm@127.0.0.1:1/farm?connect_timeout=2", "cannot be reached", "pg_hba.conf")


@pytest.mark.parametrize(
    "url",
    [f"postgresql://farm:{SECRET}@h:{SECRET}/farm", "mysql://farm@h/farm", "what", f"postgresql://a:{SECRET}@@@:"],
)
def test_what_is_no_address(url):
    assert refused(url, r"\[store\] url").exit_code == ExitCode.USAGE


def test_another_encoding_is_refused(server):
    run(server, "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    refused(server.replace("/postgres?", "/latin?"), "encoding is LATIN1", "UTF8")


def test_a_read_only_database_is_refused(new_database):
    url = new_database()
    name = server_url(url).database
    run(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    refused(url, "the server is read-only", "default_transaction_read_only")


def test_an_older_server_is_refused(new_database, monkeypatch):
    monkeypatch.setattr("farm.store.server_rules.LEAST_VERSION", 990_000)
    refused(new_database(), "farm needs 99 or later", "pg_upgrade")


async def test_a_database_that_becomes_read_only_says_so_and_comes_back(server, new_database):
    url = new_database()
    name = server_url(url).database
    store = Store.open(url)
    before = backends(store)
    run(server, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StoreWriteError, match="read-only"):
        await store.database.write(_read_only)
    assert "read-only" in store.problem
    run(server, f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await until(lambda: not store.problem)
    assert await store.jobs.add((job(),)) == ("j1",)
    assert backends(store) == before  # of the readers: what the writer's connection met is its own
    store.close()


def backends(store):
    with store.database.engine.connect() as connection:
        return connection.execute(text("SELECT pg_backend_pid()")).scalar_one()


def _read_only(connection):
    connection.exec_driver_sql("SET LOCAL transaction_read_only = on")
    connection.exec_driver_sql("CREATE TABLE not_made ()")


def test_too_few_connections_are_said(new_database, caplog):
    url = new_database()
    run(url, f"ALTER DATABASE {server_url(url).database} CONNECTION LIMIT 4")
    run(url, "CREATE ROLE few LOGIN", f"ALTER DATABASE {server_url(url).database} OWNER TO few")
    with caplog.at_level(logging.WARNING):
        store = Store.open(url.replace("farm@", "few@"))
    assert "too few connections to the database: 4 free for farm" in caplog.text
    (problem,) = looked(store)
    assert "too few connections" in problem
    store.close()


def looked(store):
    """The problems of one look."""

    async def once():
        task = asyncio.create_task(store.server.run())
        await until(lambda: store.server.problems())
        task.cancel()
        return store.server.problems()

    return asyncio.run(once())


def test_no_connection_left(new_database):
    url = new_database()
    run(url, "CREATE ROLE none_left LOGIN CONNECTION LIMIT 0")
    refused(url.replace("farm@", "none_left@"), "no connection left", "max_connections")


def test_a_clock_an_hour_off_is_said(new_database, monkeypatch, caplog):
    real = server_facts.time.time
    monkeypatch.setattr(server_facts.time, "time", lambda: real() + 3600)
    with caplog.at_level(logging.WARNING):
        store = Store.open(new_database())
    assert "clock is 3600.0 s behind this host's" in caplog.text
    (problem,) = looked(store)
    assert "clock" in problem
    store.close()


def test_connections_of_a_daemon_are_not_counted_twice(new_database):
    url = new_database()
    run(url, f"ALTER DATABASE {server_url(url).database} CONNECTION LIMIT 20")
    run(url, "CREATE ROLE plain LOGIN", f"ALTER DATABASE {server_url(url).database} OWNER TO plain")
    store = Store.open(url.replace("farm@", "plain@"))
    with store.database.engine.connect(), store.database.engine.connect():
        (free,) = [each for each in store.server.findings() if each.check == "database connections"]
        assert (free.verdict, free.detail.split()[0]) == (OK, "20")
    with psycopg.connect(url.replace("+psycopg", "")):  # another client
        until_free(store, 19)
    store.close()


def until_free(store, count):
    """Return when so many connections are free: a client that leaves is counted for a moment more."""
    while not any(each.detail.startswith(f"{count} free") for each in store.server.findings()):
        pass


def test_a_database_restored_from_a_backup_gets_a_term_above_all_seen(new_database, tmp_path, caplog):
    url = new_database()
    for number in (1, 2, 3):
        store = Store.open(url, state_dir=tmp_path)
        assert store.epoch == number
        store.close()
    run(url, "UPDATE meta SET value = 1 WHERE name = 'epoch'")  # as yesterday's
    with caplog.at_level(logging.WARNING):
        store = Store.open(url, state_dir=tmp_path)
    assert store.epoch == 4
    assert "its latest start is number 1, this host has seen 3; farm goes on as number 4" in caplog.text
    assert any("gone back in time" in each for each in store.server.problems())
    assert any("gone back in time" in each.detail for each in store.server.findings())
    store.close()
    store = Store.open(url, state_dir=tmp_path)
    assert (store.epoch, store.server.problems()) == (5, [])
    store.close()


async def test_a_database_that_goes_back_under_its_daemon_is_said(new_database, monkeypatch):
    monkeypatch.setattr("farm.store.term.RENEWED_EVERY_S", 0.05)
    url = new_database()
    Store.open(url).close()
    store = Store.open(url)
    run(url, "UPDATE meta SET value = 1 WHERE name = 'epoch'")
    with raises_code(Code.DATABASE_UNUSABLE, match="gone back in time: its latest start is number 1, this one 2"):
        await store.term.lost()
    store.close()


@pytest.mark.parametrize("role", StoreRole)
async def test_a_database_that_lacks_confirmed_changes_is_written_no_more(new_database, role):
    url = new_database()
    store = Store.open(url, "one" * (role is StoreRole.HOST), role=role)
    await store.jobs.add((job(),))
    earlier = "UPDATE meta SET value = value - 1 WHERE name LIKE 'written%' OR name = 'epoch'"
    run(url, earlier, "DELETE FROM job")
    for writes in (1, 2):
        adding = [store.jobs.add((job(f"j{number}"),)) for number in range(writes)]
        errors = await asyncio.gather(*adding, return_exceptions=True)
        assert [type(each) for each in errors] == [DatabaseLostError] * writes
    with pytest.raises(DatabaseLostError, match="gone back in time"):
        await store.database.writer.lost()
    assert store.jobs.page() == ()
    store.close()


async def test_a_daemon_that_was_replaced_takes_nothing_from_the_next_one(new_database):
    url = new_database()
    first, second = (Store.open(url, "one", role=StoreRole.HOST) for _ in range(2))
    for number, store in enumerate((first, second, first, second)):
        adding = store.jobs.add((job(f"j{number}"),))
        if number == 2:
            with raises_code(Code.NAME_TAKEN):
                await adding
        else:
            await adding
    first.close()
    second.close()


def test_a_head_after_a_backup_takes_a_term_above_those_since(new_database):
    url = new_database()
    terms = []
    for _ in range(2):
        store = Store.open(url, role=StoreRole.HEAD)
        terms.append(store.epoch)
        store.close()
    run(url, f"UPDATE meta SET value = {terms[0]} WHERE name = 'epoch'")
    run(url, f"UPDATE meta SET value = value - {10_000 * TERM_S} WHERE name = 'until'")
    store = Store.open(url, role=StoreRole.HEAD)
    assert store.epoch > terms[1]
    store.close()


def test_hosts_with_commas_as_libpq_writes_them():
    url = server_url("postgresql://farm:a%2Cb@one:5433,two:5434/lab?sslmode=require")
    assert (url.drivername, url.database, url.password) == ("postgresql+psycopg", "lab", "a,b")
    assert url.query == {"sslmode": "require", "host": ("one:5433", "two:5434")}
    with pytest.raises(ArgumentError):
        server_url("postgresql://farm@one:x/lab")


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("postgresql://farm@lab1/farm", "postgresql://farm@lab1/farm"),
        ("postgresql+psycopg://farm:s3cret@lab1/farm", "postgresql+psycopg://farm:***@lab1/farm"),
        ("postgres://farm:s3:c@ret@one:1,two:2/farm?sslmode=allow", "postgres://farm:***@one:1,two:2/farm?sslmode=allow"),
        ("postgresql://farm:s3?c/r@et@lab1/farm", "postgresql://farm:***@lab1/farm"),
        ("postgresql://lab1/farm?password=s3c@ret", "postgresql://lab1/farm?password=***"),
        ("postgresql:///farm?host=/run&user=a&password=s3cret", "postgresql:///farm?host=/run&user=a&password=***"),
        ("postgresql://lab1/farm?%70assword=s3cret&sslpassword=x", "postgresql://lab1/farm?%70assword=***&sslpassword=***"),
    ],
)  # fmt: skip
def test_people_see_the_address_as_they_typed_it_without_passwords(typed, shown):
    name, engine = named_engine(typed)
    engine.dispose()
    assert name == shown == shown_url(typed)


def test_of_several_hosts_the_writable_one_is_taken(server):
    folder = server.partition("host=")[2]
    engine = server_engine(f"postgresql://farm@/postgres?host=/nowhere&host={folder}")
    with engine.connect() as connection:
        assert connection.connection.driver_connection.info.get_parameters()["target_session_attrs"] == "read-write"
    engine.dispose()


@pytest.mark.parametrize("ignoring", [False, True])
def test_pgbouncer_in_transaction_mode_is_refused(server, new_database, ignoring):
    need("pgbouncer")
    with postgres.pooler(server, ignores_options=ignoring) as folder:
        url = new_database()
        refused(f"{url.partition('?')[0]}?host={folder}", "connection pooler", "PostgreSQL's own host and port")


def test_doctor_without_a_daemon_looks_at_the_server(new_database):
    found = {each.check: each.verdict for each in look_at_server(new_database())}
    assert found.pop("database standby") is WARN
    assert set(found) == {"database", "database connections", "database round trip", "database clock"}
    (lost,) = look_at_server("postgresql://farm@127.0.0.1:1/farm?connect_timeout=2")
    assert (lost.verdict, lost.check) == (FAIL, "database")
    assert "cannot be reached" in lost.detail
