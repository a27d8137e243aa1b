"""Hints: resumed by their number, told once each, bounded for those who do not read."""

import asyncio
import json

import pytest

from farm.common.events import EventLog
from farm.web import stream
from farm.web.stream import HintReaders, number_of


@pytest.fixture
def log():
    return EventLog(2)


@pytest.fixture
def hints(log):
    return HintReaders(log)


async def heard(reader, count):
    """The next hints, as (event, data) of each."""
    found = []
    while len(found) < count:
        text = (await anext(reader)).decode()
        lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in lines:
            found.append({"event": lines["event"], "id": int(lines["id"]), **json.loads(lines["data"])})
    return found


async def test_a_reader_hears_what_it_missed_and_then_what_happens(log, hints):
    first = log.publish("device.new", "a")
    second = log.publish("device.ready", "b", serial="s")
    reader = hints.read(first.seq)
    assert (await anext(reader)).startswith(b"retry:")
    third = log.publish("lease.granted", "lease-1", device="pixel", key="secret")  # before the missed one is read
    missed, now = await heard(reader, 2)
    assert (missed["id"], missed["kind"], missed["subject"]) == (second.seq, "device.ready", "b")
    assert "serial" not in missed  # pages ask verbs for facts
    assert now == {
        "event": "hint", "id": third.seq, "seq": third.seq, "at": third.at.isoformat(), "kind": "lease.granted",
        "subject": "lease-1", "device": "pixel",
    }  # fmt: skip


@pytest.mark.parametrize("since", ["another life", "the future", "too long ago"])
async def test_whoever_cannot_resume_reloads_the_page(log, hints, since):
    first = log.publish("device.new", "pixel").seq
    for _ in range(stream.MAX_RESUMED + 1 if since == "too long ago" else 0):
        log.publish("device.new", "pixel")
    newest = log.publish("device.new", "pixel").seq
    numbers = {"another life": 5, "the future": newest + 7, "too long ago": first}
    (hint,) = await heard(hints.read(numbers[since]), 1)
    assert (hint["event"], hint["id"]) == ("reset", newest)


@pytest.mark.parametrize("before", [0, 1])
async def test_a_reader_that_does_not_keep_up_is_cut_and_hears_nothing_behind_the_gap(log, hints, before):
    reader = hints.read(None)
    await anext(reader)
    for _ in range(before):
        told = asyncio.ensure_future(heard(reader, 1))
        await asyncio.sleep(0)
        first = log.publish("device.new", "pixel")
        assert [hint["id"] for hint in await told] == [first.seq]
    for _ in range(stream.MAX_BEHIND + 20):
        log.publish("device.new", "pixel")
    assert not next(iter(hints._readers)).waiting  # it keeps no memory
    assert [chunk async for chunk in reader] == []
    assert (hints._readers, log._listeners) == (set(), [])


async def test_silence_is_filled_with_heartbeats(hints):
    reader = hints.read(None, heartbeat_s=0.001)
    await anext(reader)
    assert await anext(reader) == b": still here\n\n"


def opened(hints, account):
    """As many readers as there is room for."""
    readers = []
    while leave := hints.enter(account):
        readers.append(leave)
    return readers


def test_readers_without_a_name_leave_streams_for_signed_in_users(hints):
    nameless = opened(hints, "")
    assert len(nameless) == stream.MAX_NAMELESS
    assert len(opened(hints, "ann")) == stream.MAX_READERS - stream.MAX_NAMELESS
    assert not hints.enter("bob")
    nameless[0]()
    assert hints.enter("bob")


def test_one_account_has_its_share(hints):
    assert len(opened(hints, "ann")) == stream.MAX_OF_ONE
    assert hints.enter("")
    assert hints.enter("bob")


async def test_streams_end_with_the_daemon(hints):
    reader = hints.read(None)
    await anext(reader)
    waiting = asyncio.ensure_future(anext(reader, b"over"))
    await asyncio.sleep(0)
    hints.close()
    assert await waiting == b"over"
    assert [chunk async for chunk in hints.read(None)][1:] == []


def test_numbers_as_clients_give_them():
    assert [number_of(text) for text in ("42", None, "", "-1", "4.2", "x", "9" * 30, "٤")] == [42] + [None] * 7
