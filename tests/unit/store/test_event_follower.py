"""Events on a server: several daemons write them at a time; whoever follows them sees all, once, in one order."""

import asyncio
import random
import threading
from contextlib import aclosing, closing

import pytest
from sqlalchemy import text

from farm.common.events import Event, EventLog
from farm.store.appended_rows import append_rows, event_rows
from farm.store.database import Database
from farm.store.engine import server_engine
from farm.store.event_follower import EventFollower
from farm.store.event_history import EventHistory, EventTable
from farm.store.event_numbers import MAX_OF_ONE_WRITE, SHIFT, begin_numbers
from farm.store.writer import Writer
from tests.support.waiting import until
from tests.unit.store.values import NOW, busy_writer, job

WRITERS, COMMITS, FOLLOWERS = 8, 60, 2


def event(subject):
    return Event(0, NOW, "device.ready", subject)


@pytest.fixture
def store(server_store):
    return server_store


def url_of(store):
    return store.database.engine.url.render_as_string(hide_password=False)


def another(url):
    """Another daemon's way to the database."""
    engine = server_engine(url)
    return closing(Database(engine, Writer(engine)))


@pytest.fixture
def other(store):
    with another(url_of(store)) as database:
        yield database


@pytest.fixture
def log(store):
    return EventLog(store.epoch)


def history_of(store, log):
    return EventHistory(log, store.events, EventFollower(log, store.events))


@pytest.fixture
def history(store, log):
    return history_of(store, log)


async def read(history, since=0, **options):
    async with aclosing(history.follow(since, wait=False, **options)) as found:
        return [event async for event in found]


def start_of(database):
    with database.reading() as connection:
        return connection.execute(text("SELECT value FROM meta WHERE name = 'events'")).scalar_one()


async def test_an_event_that_is_committed_after_a_later_one_is_not_lost(store, other, history):
    async def read_final(since=0):
        await history._follower.read()
        return history.shown.since(since)

    async with busy_writer(store.database, lambda connection: append_rows(connection, event_rows([event("late")]))):
        await EventTable(other).add([event("early")])
        assert [each.subject for each in store.events.since(0)] == ["early"]
        seen = await read_final()
    seen += await read_final(seen[-1].seq if seen else 0)
    assert [each.subject for each in seen] == ["late", "early"]
    assert [each.subject for each in await read(history)] == ["late", "early"]


async def test_readers_see_events_of_all_daemons_and_what_is_not_stored(store, other, log, history):
    seen = []

    async def follow():
        async with aclosing(history.follow(0)) as found:
            async for each in found:
                seen.append(each)

    tasks = [asyncio.create_task(each) for each in (history.run(), history._follower.run(), follow())]
    with log.drafted(("job.submitted", "j1", {"user": "ann"})) as drafts:
        await store.jobs.add((job(),), events=drafts)
    log.publish("job.progress", "j1", step="compile")
    await until(lambda: len(seen) == 2)
    await EventTable(other).add([event("theirs")])
    await until(lambda: len(seen) == 3)
    log.publish("device.gone", "ours")
    await until(lambda: len(seen) == 4)
    for task in tasks:
        task.cancel()
    assert [each.kind for each in seen] == ["job.submitted", "job.progress", "device.ready", "device.gone"]
    numbers = [each.seq for each in seen]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 1 << 53
    newer = history_of(store, EventLog(store.epoch))
    assert await read(newer) == [each for each in seen if each.kind != "job.progress"]
    assert await read(newer, numbers[1]) == seen[2:]
    assert await read(newer, numbers[0], subject="theirs") == [seen[2]]
    assert [each.kind for each in await newer.newest("ours", 5)] == ["device.gone"]


async def test_a_reader_that_does_not_wait_gets_what_has_happened_by_now(log, history):
    log.publish("device.identifying", "a")
    log.publish("device.pushing", "a")
    await history._follower.read()
    assert history.shown.since(0) == []  # progress waits for what is to be stored before it
    assert [each.kind for each in await read(history)] == ["device.identifying", "device.pushing"]
    log.publish("device.gone", "a")
    assert [each.kind for each in await history.newest("a", 1)] == ["device.gone"]


async def test_a_commit_has_numbers_for_all_its_events(store, history):
    """Nine submits of a thousand jobs may wait for one commit: its numbers must not run into another's."""
    writer = store.database.writer
    async with busy_writer(store.database):
        commits = sum(writer.commits.counts)
        adding = [asyncio.ensure_future(store.events.add([event("a")] * 1000)) for _ in range(12)]
        await until(lambda: writer._work.qsize() == len(adding))
    await asyncio.gather(*adding)
    commits = sum(writer.commits.counts) - commits - 1
    numbers = [each.seq for each in await read(history)]
    assert (len(numbers), len(set(numbers))) == (12_000, 12_000)
    start = start_of(store.database)
    assert len({number - start >> SHIFT for number in numbers}) == commits > 1
    with pytest.raises(ValueError, match="events of one write"):
        await store.events.add([event("a")] * (MAX_OF_ONE_WRITE + 1))


async def test_numbers_go_on_above_those_of_a_restored_database(opened, new_database):
    url = new_database()
    store = opened(url)
    await store.events.add([event("before")])
    with store.database.engine.begin() as connection:  # on the server that it comes from there were more transactions
        connection.execute(text("UPDATE event SET seq = seq + (1000000::bigint << 13)"))
    (before,) = store.events.since(0)
    store.close()
    store = opened(url)
    follower = EventFollower(EventLog(store.epoch), store.events)
    await store.events.add([event("after")])
    await follower.read()
    assert [each.subject for each in follower.log.since(before.seq)] == ["after"]


async def test_the_start_of_the_numbers_stays_while_others_write(store, other):
    before = start_of(other)
    has_begun = text("SELECT pg_current_xact_id()")
    async with busy_writer(store.database, lambda connection: connection.execute(has_begun), begin_numbers):
        await EventTable(other).add([event("a")] * 100)
    assert start_of(other) == before


def write_some(url, number):
    """One of the writers: commits of one to three events."""
    chance = random.Random(number)

    async def write(table):
        for commit in range(COMMITS):
            await table.add([event(f"{number} {commit} {n}") for n in range(chance.randint(1, 3))])

    with another(url) as database:
        asyncio.run(write(EventTable(database)))


def follow_some(url, number, over, seen):
    """One of the followers: now and then it loses its connections and continues after the last event that it has."""
    chance = random.Random(-number)
    since = 0
    while True:
        with another(url) as database:
            table = EventTable(database)
            for _ in range(chance.randint(1, 20)):
                written = over.is_set()
                events, horizon = table.final(since, chance.randint(1, 50))
                seen += events
                since = events[-1].seq if events else since
                if written and not events and horizon > max((each.seq for each in table.since(since)), default=0):
                    return


def test_eight_writers_and_followers_that_reconnect(store):
    url, over = url_of(store), threading.Event()
    seen = [[] for _ in range(FOLLOWERS)]
    writers = [threading.Thread(target=write_some, args=(url, number)) for number in range(WRITERS)]
    followers = [
        threading.Thread(target=follow_some, args=(url, number, over, mine)) for number, mine in enumerate(seen)
    ]
    for thread in (*writers, *followers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    for thread in followers:
        thread.join()
    stored = store.events.since(0, limit=100_000)
    assert len({each.subject.split()[0] for each in stored}) == WRITERS
    assert len({each.subject.rpartition(" ")[0] for each in stored}) == WRITERS * COMMITS
    for events in seen:
        assert events == list(stored)
