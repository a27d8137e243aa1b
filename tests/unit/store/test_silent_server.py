"""A PostgreSQL server whose answers do not come, while TCP acknowledges everything, holds up no loop."""

import asyncio

import pytest
from sqlalchemy import text
from zmq.utils import z85

from farm.common.errors import Code
from farm.common.events import EventLog
from farm.control.callers import Accounts, Role
from farm.jobs.poison import PoisonLedger
from farm.store import bounded_connection, database
from farm.store.writer import StoreWriteError
from tests.support.errors import raises_code
from tests.support.postgres import run
from tests.support.waiting import until
from tests.unit.store.values import job


@pytest.fixture
def store(opened, proxy):
    yield opened(f"{proxy.url}&connect_timeout=2")
    proxy.passing.set()


async def loop_goes_on(proxy, reading):
    """The read is on its way to a server that has answered, and other coroutines have their turns meanwhile."""
    task = asyncio.ensure_future(reading)
    await until(proxy.held.is_set)
    turns = [await asyncio.sleep(0, turn) for turn in range(100)]
    assert len(turns) == 100
    assert not task.done()
    proxy.passing.set()
    return await task


@pytest.mark.parametrize("what", ["jobs", "key", "token", "account", "poison", "thread"])
async def test_the_loop_goes_on_while_a_read_waits(proxy, store, what):
    accounts = Accounts(store.accounts)
    key = (await accounts.new("ann", Role.USER, web=False, by="root")).public_key
    token = (await accounts.new("bob", Role.USER, web=True, by="root")).token
    await store.jobs.add((job(),))
    ledger = PoisonLedger(store.poison, EventLog())
    proxy.passing.clear()
    match what:
        case "jobs":
            assert (await loop_goes_on(proxy, store.read(store.jobs.get, "j1"))).id == "j1"
        case "key":
            assert (await loop_goes_on(proxy, accounts.by_curve_key(z85.decode(key)))).user == "ann"
        case "token":
            assert (await loop_goes_on(proxy, accounts.by_token(token))).user == "bob"
        case "account":
            assert (await loop_goes_on(proxy, accounts.named("ann"))).role is Role.USER
        case "poison":
            assert await loop_goes_on(proxy, ledger.read(ledger.refused, ["a" * 64])) == frozenset()
        case "thread":
            assert len(await loop_goes_on(proxy, store.in_thread(store.jobs.page))) == 1


async def test_an_answer_that_does_not_come_is_given_up_with_one_clear_line(numbers, proxy, opened):
    numbers(bounded_connection, ANSWER_LIMIT_S=1.0)
    store = opened(f"{proxy.url}&connect_timeout=2")
    await store.jobs.add((job(),))
    assert await store.read(store.jobs.get, "j1") is not None
    proxy.passing.clear()
    writing = asyncio.ensure_future(store.jobs.add((job("j2"),)))
    said = "^the database cannot be read: the database server cannot be reached[^\n]*$"
    with raises_code(Code.STORE_READ_FAILED, match=said) as at:
        await store.read(store.jobs.get, "j1")
    assert at.value.evidence
    with pytest.raises(StoreWriteError, match="cannot be reached"):
        await writing
    proxy.passing.set()
    await until(lambda: store.problem == "")
    assert await store.jobs.add((job("j3"),)) == ("j3",)
    assert (await store.read(store.jobs.get, "j3")).id == "j3"


async def test_reads_without_an_answer_take_no_thread_of_others(proxy, store):
    proxy.passing.clear()
    waiting = [asyncio.ensure_future(store.in_thread(store.jobs.page)) for _ in range(100)]
    await until(proxy.held.is_set)
    assert await asyncio.to_thread(lambda: "a thread") == "a thread"
    assert not any(each.done() for each in waiting)
    proxy.passing.set()
    assert await asyncio.gather(*waiting) == [()] * 100


async def test_a_transaction_that_the_server_ended_is_refused_and_leaves_no_trace(opened, new_database, caplog):
    url = new_database()
    store = opened(url)

    def stand_still(connection):
        mine = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '20ms'"))
        while run(url, f"SELECT 1 FROM pg_stat_activity WHERE pid = {mine}"):
            pass

    with pytest.raises(StoreWriteError, match="stood still"):
        await store.database.write(stand_still)
    await until(lambda: not store.problem)
    await store.jobs.add((job(),))
    store.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_people_do_not_wait_for_a_server_that_answers_nothing(numbers, proxy, store):
    await store.jobs.add((job(),))
    numbers(database, ANSWER_LIMIT_S=0.05)
    proxy.passing.clear()
    writing = asyncio.ensure_future(store.jobs.add((job("j2"),)))
    with raises_code(Code.STORE_READ_FAILED, match="the database cannot be read: it has not answered for 0.05 s"):
        await store.read(store.jobs.get, "j1")
    proxy.passing.set()
    assert await writing == ("j2",)
    assert (await store.read(store.jobs.get, "j2")).id == "j2"


async def test_a_long_read_of_a_server_that_answers_others_is_not_given_up(numbers, store):
    numbers(database, ANSWER_LIMIT_S=0.01)

    def read():
        with store.database.reading() as connection:
            return connection.execute(text("SELECT pg_sleep(0.2), 7")).one()[1]

    assert await store.in_thread(read) == 7
