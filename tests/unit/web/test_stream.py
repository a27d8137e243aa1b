"""Hints: resumed by their number, told once each, bounded for those who do not read."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from farm.common.events import EventLog
from farm.web import stream
from farm.web.stream import HintReaders, number_of


async def heard(reader: AsyncIterator[bytes], count: int) -> list[dict[str, Any]]:
    """The next hints, as (event, data) of each."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        text = (await anext(reader)).decode()
        lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in lines:
            found.append({"event": lines["event"], "id": int(lines["id"]), **json.loads(lines["data"])})
    return found


async def test_a_reader_hears_what_it_missed_and_then_what_happens() -> None:
    log = EventLog(1)
    first = log.publish("device.new", "pixel")
    second = log.publish("device.ready", "pixel", serial="s")
    reader = HintReaders(log).read(first.seq)
    (missed,) = await heard(reader, 1)
    assert (missed["id"], missed["kind"], missed["subject"]) == (second.seq, "device.ready", "pixel")
    assert "serial" not in missed  # pages ask verbs for facts
    third = log.publish("lease.granted", "lease-1", device="pixel", key="secret")
    (now,) = await heard(reader, 1)
    assert now == {
        "event": "hint", "id": third.seq, "seq": third.seq, "at": third.at.isoformat(), "kind": "lease.granted",
        "subject": "lease-1", "device": "pixel",
    }  # fmt: skip


async def test_nothing_is_lost_or_told_twice_between_the_missed_and_the_new() -> None:
    log = EventLog(1)
    first = log.publish("device.new", "a")
    log.publish("device.new", "b")
    reader = HintReaders(log).read(first.seq)
    assert (await anext(reader)).startswith(b"retry:")
    log.publish("device.new", "c")
    assert [hint["subject"] for hint in await heard(reader, 2)] == ["b", "c"]


async def test_a_number_of_another_life_reloads_the_page() -> None:
    log = EventLog(2)
    newest = log.publish("device.new", "pixel").seq
    for since in (5, newest + 7):
        (hint,) = await heard(HintReaders(log).read(since), 1)
        assert (hint["event"], hint["id"]) == ("reset", newest)


async def test_whoever_missed_too_much_reloads_the_page() -> None:
    log = EventLog(1)
    first = log.publish("device.new", "pixel")
    for _ in range(stream.MOST_RESUMED + 1):
        log.publish("device.new", "pixel")
    (hint,) = await heard(HintReaders(log).read(first.seq), 1)
    assert hint["event"] == "reset"


async def test_a_reader_that_does_not_keep_up_is_cut_and_keeps_no_memory() -> None:
    log = EventLog(1)
    hints = HintReaders(log)
    reader = hints.read(None)
    await anext(reader)
    for _ in range(stream.MOST_BEHIND + 20):
        log.publish("device.new", "pixel")
    (kept,) = hints._readers
    assert not kept.waiting
    assert [chunk async for chunk in reader] == []
    assert not hints._readers
    assert not log._listeners


async def test_a_reader_that_is_cut_hears_nothing_behind_the_gap() -> None:
    log = EventLog(1)
    reader = HintReaders(log).read(None)
    await anext(reader)
    told = asyncio.ensure_future(heard(reader, 1))
    await asyncio.sleep(0)
    first = log.publish("device.new", "pixel")
    assert [hint["id"] for hint in await told] == [first.seq]
    for _ in range(stream.MOST_BEHIND + 20):
        log.publish("device.new", "pixel")
    assert [chunk async for chunk in reader] == []  # it resumes after `first`


async def test_silence_is_filled_with_heartbeats() -> None:
    reader = HintReaders(EventLog(1)).read(None, heartbeat_s=0.001)
    await anext(reader)
    assert await anext(reader) == b": still here\n\n"


async def opened(hints: HintReaders, account: str) -> list[AsyncIterator[bytes]]:
    """As many readers as there is room for."""
    readers: list[AsyncIterator[bytes]] = []
    while hints.has_room(account):
        assert len(readers) <= stream.MOST_READERS
        readers.append(hints.read(None, account))
        await anext(readers[-1])
    return readers


async def test_readers_without_a_name_leave_streams_for_signed_in_users() -> None:
    hints = HintReaders(EventLog(1))
    nameless = await opened(hints, "")
    assert len(nameless) == stream.MOST_NAMELESS
    assert not hints.has_room("")
    signed_in = await opened(hints, "ann")
    assert len(signed_in) == stream.MOST_READERS - stream.MOST_NAMELESS
    assert not hints.has_room("bob")
    await nameless[0].aclose()  # type: ignore[attr-defined]
    assert hints.has_room("bob")


async def test_one_account_has_its_share() -> None:
    hints = HintReaders(EventLog(1))
    assert len(await opened(hints, "ann")) == stream.MOST_OF_ONE
    assert hints.has_room("")
    assert hints.has_room("bob")


async def test_streams_end_with_the_daemon() -> None:
    hints = HintReaders(EventLog(1))
    reader = hints.read(None)
    await anext(reader)
    waiting = asyncio.ensure_future(anext(reader, b"over"))
    await asyncio.sleep(0)
    hints.close()
    assert await waiting == b"over"
    assert [chunk async for chunk in hints.read(None)][1:] == []


def test_numbers_as_clients_give_them() -> None:
    assert number_of("42") == 42
    assert [number_of(text) for text in (None, "", "-1", "4.2", "x", "9" * 30, "٤")] == [None] * 7
