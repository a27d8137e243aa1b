"""A PostgreSQL server that farm cannot use, or should not: one clear line each, and never the password."""

import asyncio
import logging
from functools import partial

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import ArgumentError

from farm.common.doctor_findings import FAIL, OK, WARN
from farm.common.errors import Code, ExitCode
from farm.simulation.postgres import new_server
from farm.store import server_facts, server_rules, term
from farm.store.engine import server_engine, server_url, shown_url
from farm.store.server_opening import StoreRole, look_at_server, named_engine
from farm.store.store import Store
from farm.store.term import TERM_S
from farm.store.writer import DatabaseLostError, StoreWriteError
from tests.support import postgres
from tests.support.errors import raises_code
from tests.support.needs import need
from tests.support.postgres import run
from tests.support.tvm import free_port
from tests.support.waiting import until
from tests.unit.store.values import job

SECRET = "hunter2"
EARLIER = "UPDATE meta SET value = 1 WHERE name IN ('epoch', 'starts')"  # as yesterday's


@pytest.fixture
def url(server):
    """A database of its own: these tests change its settings."""
    return postgres.new_database(server)


@pytest.fixture
def database(url):
    """How statements call that database."""
    return f"DATABASE {server_url(url).database}"


@pytest.fixture(autouse=True)
def slow_host(numbers):
    """A round trip on a host with many tests is no fault."""
    numbers(server_rules, SLOW_S=60.0)


@pytest.fixture(scope="module")
def guarded():
    """A server over TCP without TLS, where the role ann needs her password."""
    postgres.need()
    with new_server(port=free_port(), hba="local all ann scram-sha-256\n") as guarded:
        run(guarded.url, f"CREATE ROLE ann LOGIN PASSWORD '{SECRET}'")
        yield guarded.url


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


def test_what_the_server_refuses_is_told_without_the_password(server, guarded):
    refused(server.replace("/postgres?", "/nope?"), "there is no such database", "createdb")
    refused(as_ann(guarded, "wrong-one"), "the password is wrong", "pgpass")
    refused(as_ann(postgres.new_database(guarded)), "no right to do that", "OWNER TO")
    port = guarded.rpartition("port=")[2]
    refused(f"postgresql://farm@127.0.0.1:{port}/postgres?sslmode=require", "TLS is refused")
    refused("postgresql://farm@127.0.0.1:1/farm?connect_timeout=2", "cannot be reached", "pg_hba.conf")


@pytest.mark.parametrize(
    "url",
    [f"postgresql://farm:{SECRET}@h:{SECRET}/farm", "mysql://farm@h/farm", "what", f"postgresql://a:{SECRET}@@@:"],
)
def test_what_is_no_address(url):
    assert refused(url, r"\[store\] url").exit_code == ExitCode.USAGE


def test_what_the_server_is_that_farm_cannot_use(server, url, database, numbers):
    run(server, "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    refused(server.replace("/postgres?", "/latin?"), "encoding is LATIN1", "UTF8")
    run(url, f"ALTER {database} SET default_transaction_read_only = on")
    refused(url, "the server is read-only", "default_transaction_read_only")
    run(
        server,
        f"ALTER {database} RESET default_transaction_read_only",
        "CREATE ROLE none_left LOGIN CONNECTION LIMIT 0",
    )
    refused(url.replace("farm@", "none_left@"), "no connection left", "max_connections")
    numbers(server_rules, MIN_VERSION=990_000)
    refused(url, "farm needs 99 or later", "pg_upgrade")


def backends(store):
    with store.database.engine.connect() as connection:
        return connection.execute(text("SELECT pg_backend_pid()")).scalar_one()


def _read_only(connection):
    connection.exec_driver_sql("SET LOCAL transaction_read_only = on")
    connection.exec_driver_sql("CREATE TABLE not_made ()")


async def test_a_database_that_becomes_read_only_says_so_and_comes_back(server, opened, url, database):
    store = opened(url)
    before = backends(store)
    run(server, f"ALTER {database} SET default_transaction_read_only = on")
    with pytest.raises(StoreWriteError, match="read-only"):
        await store.database.write(_read_only)
    assert "read-only" in store.problem
    run(server, f"ALTER {database} RESET default_transaction_read_only")
    await until(lambda: not store.problem)
    assert await store.jobs.add((job(),)) == ("j1",)
    assert backends(store) == before  # of the readers: what the writer's connection met is its own


@pytest.fixture
def limited(opened, url, database):
    """Opens a store whose role has so many connections."""

    def limited(connections):
        name = f"limited_{server_url(url).database}"
        run(url, f"ALTER {database} CONNECTION LIMIT {connections}", f"CREATE ROLE {name} LOGIN")
        run(url, f"ALTER {database} OWNER TO {name}")
        return opened(url.replace("farm@", f"{name}@"))

    return limited


def problem_of(store):
    """The one problem of a look."""

    async def once():
        task = asyncio.create_task(store.server.run())
        await until(store.server.problems)
        task.cancel()

    asyncio.run(once())
    (problem,) = store.server.problems()
    return problem


def test_too_few_connections_are_said(limited, caplog):
    with caplog.at_level(logging.WARNING):
        store = limited(4)
    assert "too few connections to the database: 4 free for farm" in caplog.text
    assert "too few connections" in problem_of(store)


def test_a_clock_an_hour_off_is_said(opened, url, monkeypatch, caplog):
    real = server_facts.time.time
    monkeypatch.setattr(server_facts.time, "time", lambda: real() + 3600)
    with caplog.at_level(logging.WARNING):
        store = opened(url)
    assert "clock is 3600.0 s behind this host's" in caplog.text
    assert "clock" in problem_of(store)


async def test_connections_of_a_daemon_are_not_counted_twice(limited, url):
    store = limited(20)

    def free():
        (found,) = [each for each in store.server.findings() if each.check == "database connections"]
        assert found.verdict is OK
        return found.detail.split()[0]

    with store.database.engine.connect(), store.database.engine.connect():
        assert free() == "20"
    with psycopg.connect(url.replace("+psycopg", "")):  # another client
        await until(lambda: free() == "19")  # a client that leaves is counted for a moment more


def test_a_hosts_start_after_a_backup_has_a_number_above_all_seen(opened, url, tmp_path, caplog):
    begin = partial(opened, url, "one", state_dir=tmp_path, role=StoreRole.HOST)
    for number in (1, 2, 3):
        store = begin()
        assert store.epoch == number
        store.close()
    run(url, EARLIER)
    with caplog.at_level(logging.WARNING):
        store = begin()
    assert store.epoch == 4
    assert "its latest start is number 1, this host has seen 3; farm continues as number 4" in caplog.text
    for said in (store.server.problems(), [each.detail for each in store.server.findings()]):
        assert any("gone back in time" in each for each in said)
    store.close()
    store = begin()
    assert (store.epoch, store.server.problems()) == (5, [])


async def test_a_database_that_goes_back_under_its_daemon_is_said(opened, url, numbers):
    numbers(term, RENEWED_EVERY_S=0.05)
    Store.open(url).close()
    store = opened(url)
    run(url, EARLIER)
    with raises_code(Code.DATABASE_UNUSABLE, match="gone back in time: its latest start is number 1, this one 2"):
        await store.term.lost()


@pytest.mark.parametrize("role", StoreRole)
async def test_a_database_that_lacks_confirmed_changes_is_written_no_more(opened, url, role):
    store = opened(url, "one" * (role is StoreRole.HOST), role=role)
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


async def test_a_daemon_that_was_replaced_takes_nothing_from_the_next_one(opened, url):
    first, second = (opened(url, "one", role=StoreRole.HOST) for _ in range(2))
    await first.jobs.add((job("j0"),))
    await second.jobs.add((job("j1"),))
    with raises_code(Code.NAME_TAKEN):
        await first.jobs.add((job("j2"),))
    await second.jobs.add((job("j3"),))


def test_a_head_after_a_backup_takes_a_term_above_those_since(opened, url):
    terms = []
    for _ in range(2):
        store = opened(url, role=StoreRole.HEAD)
        terms.append(store.epoch)
        store.close()
    run(url, f"UPDATE meta SET value = {terms[0]} WHERE name = 'epoch'")
    run(url, f"UPDATE meta SET value = value - {10_000 * TERM_S} WHERE name = 'until'")
    assert opened(url, role=StoreRole.HEAD).epoch > terms[1]


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
def test_pgbouncer_in_transaction_mode_is_refused(server, url, ignoring):
    need("pgbouncer")
    with postgres.pooler(server, ignores_options=ignoring) as folder:
        refused(f"{url.partition('?')[0]}?host={folder}", "connection pooler", "PostgreSQL's own host and port")


def test_doctor_without_a_daemon_looks_at_the_server(url):
    found = {each.check: each.verdict for each in look_at_server(url)}
    assert {found.pop("database standby"), found.pop("database role")} == {WARN}
    assert set(found) == {"database", "database connections", "database round trip", "database clock"}
    (lost,) = look_at_server("postgresql://farm@127.0.0.1:1/farm?connect_timeout=2")
    assert (lost.verdict, lost.check) == (FAIL, "database")
    assert "cannot be reached" in lost.detail
