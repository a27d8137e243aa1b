"""A PostgreSQL server that is slow or gone holds nobody up for long, and that is said."""

import asyncio

import pytest
from sqlalchemy import text

from farm.common.errors import Code
from farm.store.engine import server_engine
from farm.store.store import Store
from farm.store.writer import StoreWriteError
from tests.support import postgres
from tests.support.errors import raises_code
from tests.support.waiting import until
from tests.unit.store.values import job, listened


@pytest.fixture
def store(server_store):
    return server_store


def limits(url):
    """What a connection goes by: the timeouts of a statement and of an idle transaction, and libpq's parameters."""
    engine = server_engine(url)
    with engine.connect() as connection:
        names = ("statement_timeout", "idle_in_transaction_session_timeout")
        said = tuple(connection.execute(text(f"SHOW {name}")).scalar_one() for name in names)
        parameters = connection.connection.driver_connection.info.get_parameters()
    engine.dispose()
    return said, parameters


def linger(connection):
    """One query: outside a transaction nothing that is set locally outlives it."""
    connection.exec_driver_sql("SET LOCAL statement_timeout = 10; SELECT pg_sleep(600)")


def test_every_connection_has_limits_and_what_the_url_says_goes_before(server):
    said, parameters = limits(server)
    assert said == ("30s", "10s")
    expected = {"tcp_user_timeout": "10000", "keepalives": "1", "keepalives_idle": "5", "keepalives_count": "3"}
    assert expected.items() <= parameters.items()
    said, parameters = limits(server + "&tcp_user_timeout=7000&options=-c%20statement_timeout%3D4s")
    assert said == ("4s", "10s")
    assert (parameters["tcp_user_timeout"], parameters["keepalives_idle"]) == ("7000", "5")


async def test_a_write_that_takes_too_long_is_given_up_and_told(store):
    heard = listened(store)
    with pytest.raises(StoreWriteError, match="took too long"):
        await store.database.write(linger)
    await until(lambda: heard == [True, False])
    assert await store.jobs.add((job(),)) == ("j1",)


def test_a_read_that_takes_too_long_says_why(store):
    with raises_code(Code.STORE_READ_FAILED, match="took too long"), store.database.reading() as connection:
        linger(connection)
    assert store.jobs.get("j1") is None


def test_reads_and_writes_of_a_server_that_is_gone_say_so():
    postgres.need()
    with postgres.running_server() as server:
        store = Store.open(postgres.new_database(server))
    with raises_code(Code.STORE_READ_FAILED, match="cannot be reached"):
        store.jobs.page()
    with pytest.raises(StoreWriteError, match="database server"):
        asyncio.run(store.jobs.add((job(),)))
    assert "database server" in store.problem
    store.close()
