"""Events are told at once and kept soon: who reads them sees all, once, in order, over restarts and full disks."""

import asyncio
from contextlib import aclosing

import pytest

from farm.common import events as core_events
from farm.common.errors import Code, FarmError
from farm.common.events import EventLog
from farm.store import database, event_history
from farm.store.event_follower import EventFollower
from farm.store.event_history import EventHistory
from farm.store.writer import StoreWriteError
from tests.support.reads import ReadsHere
from tests.support.waiting import HANG_S, until
from tests.unit.store.values import job


@pytest.fixture
def log(store):
    return EventLog(store.epoch)


def history_of(store, log):
    return EventHistory(log, store.events, EventFollower(log, store.events) if store.term else None)


def told(*events):
    """All but their numbers: on a server those in the store are others than the log's."""
    return [(event.at, event.kind, event.subject, dict(event.data)) for event in events]


async def read(history, since=0, **options):
    async with aclosing(history.follow(since, wait=False, **options)) as found:
        return [event async for event in found]


async def test_since_survives_a_restart(opened, store, where, log):
    history = history_of(store, log)
    log.publish("device.ready", "a", temperature_c=31.5)
    await history._store_waiting()
    with log.drafted(("job.submitted", "j1", {"user": "ann"})) as drafts:
        await store.jobs.add((job(),), events=drafts)
    log.publish("job.progress", "j1", step="compile")
    log.publish("device.gone", "a", why=object)
    happened = log.since()
    await history.close()
    store.close()

    again = opened(where)
    later = EventLog(again.epoch)
    newer = history_of(again, later)
    later.publish("daemon.started", "")
    found = await read(newer)
    assert [event.kind for event in found] == ["device.ready", "job.submitted", "device.gone", "daemon.started"]
    assert told(*found[:2]) == told(*happened[:2])
    assert found[2].data == {"why": "<class 'object'>"}
    assert await read(newer, found[0].seq) == found[1:]
    assert await read(newer, subject="a") == [found[0], found[2]]
    assert await read(newer, found[-1].seq) == []


class Table(ReadsHere):
    """A store in memory that may be full or slow."""

    def __init__(self):
        self.kept, self.full, self.tried = [], False, asyncio.Event()
        self.may_return = asyncio.Event()
        self.may_return.set()

    def since(self, seq, limit=1000, subject=""):
        return [event for event in self.kept if event.seq > seq and subject in ("", event.subject)][:limit]

    async def add(self, events):
        self.tried.set()
        if self.full:
            raise StoreWriteError("disk full")
        if any(event.kind == "bad" for event in events):
            raise FarmError("two of a number", Code.STORE_CONFLICT)
        self.put(events)
        await self.may_return.wait()

    def put(self, events):
        assert not {event.seq for event in events} & {event.seq for event in self.kept}
        self.kept = sorted([*self.kept, *events], key=lambda event: event.seq)


async def test_plain_events_are_kept_soon_and_once_when_the_daemon_stops_meanwhile(numbers, caplog):
    numbers(event_history, BATCH_DELAY_S=0.0)
    table, log = Table(), EventLog(1)
    table.may_return.clear()
    history = EventHistory(log, table)
    running = asyncio.create_task(history.run())
    event = log.publish("device.ready", "a")
    await until(lambda: table.kept)
    running.cancel()
    closing = asyncio.create_task(history.close())
    table.may_return.set()
    await asyncio.wait((running, closing))
    assert table.kept == [event]
    assert "cannot be kept" not in caplog.text


async def test_events_wait_for_a_full_disk(numbers):
    numbers(event_history, BATCH_DELAY_S=0, MAX_WAITING=3)
    numbers(database, RETRY_S=0.001)
    table, log = Table(), EventLog(1)
    table.full = True
    running = asyncio.create_task(EventHistory(log, table).run())
    for name in "abcde":
        log.publish("device.ready", name)
    await table.tried.wait()
    table.full = False
    await until(lambda: len(table.kept) >= 3)
    assert [event.subject for event in table.kept] == ["c", "d", "e"]
    running.cancel()


async def test_events_that_the_store_refuses_keep_no_others_back(numbers):
    numbers(event_history, MAX_AT_ONCE=1)
    table, log = Table(), EventLog(1)
    history = EventHistory(log, table)
    for kind in ("good", "bad", "better"):
        log.publish(kind, "a")
    await history.close()
    assert [event.kind for event in table.kept] == ["good", "better"]


@pytest.mark.parametrize("memory", [3, 10, 20_000])
async def test_a_reader_of_any_pace_sees_all_once_and_in_order(numbers, memory):
    numbers(core_events, KEPT_EVENTS=memory)
    numbers(event_history, READ_AT_ONCE=4)
    table, old, log = Table(), EventLog(1), EventLog(2)
    table.kept += [old.publish("a", str(number)) for number in range(30)]
    history = EventHistory(log, table)

    async def reader(pace):
        seen = []
        async with aclosing(history.follow(0)) as found:
            while len(seen) < 130:
                seen.append(await anext(found))
                for _ in range(pace):
                    await asyncio.sleep(0)
        return seen

    readers = [asyncio.create_task(reader(pace)) for pace in (40, 0)]
    held = log.drafted(("d", "late", {}))
    for number in range(99):
        if number == 50:
            table.put(held.__enter__())
        if number == 60:
            held.__exit__(None, None, None)
        log.publish("b", str(number))
        await history._store_waiting()
        await asyncio.sleep(0)
    with log.drafted(("gap", "x", {})) as drafts:
        drafts.drop()
    async with asyncio.timeout(HANG_S):
        both = await asyncio.gather(*readers)
    for events in both:
        seqs = [event.seq for event in events]
        assert seqs == sorted(set(seqs))
        assert [event.subject for event in events if event.kind == "b"] == [str(number) for number in range(99)]
        assert [event.kind for event in events].count("d") == 1


async def test_readers_of_the_past_read_the_table_one_after_the_other(store, log, monkeypatch):
    history = history_of(store, log)
    for number in range(20):
        log.publish("device.ready", f"d{number}")
    await history.close()
    newer = history_of(store, EventLog(store.epoch + 1))
    under_way, most, since = [], [], store.events.since

    def slow(*arguments):
        under_way.append(arguments)
        most.append(len(under_way))
        try:
            return since(*arguments)
        finally:
            under_way.remove(arguments)

    monkeypatch.setattr(store.events, "since", slow)
    found = await asyncio.gather(*(read(newer) for _ in range(10)))
    assert [len(events) for events in found] == [20] * 10
    assert max(most) == 1


async def test_a_reader_waits_for_what_is_not_told_yet():
    log = EventLog(1)
    history = EventHistory(log, Table())
    async with aclosing(history.follow(0, subject="a")) as found, asyncio.timeout(HANG_S):
        log.publish("device.ready", "b")
        following = asyncio.create_task(anext(found))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not following.done()
        event = log.publish("device.ready", "a")
        assert await following == event
