"""Whoever asks for the past of the farm over and over leaves the others their turns."""

import asyncio
from types import SimpleNamespace

import pytest

from farm.control.callers import Caller, Peer, Role
from farm.control.verbs.event import AHEAD_S, TOLD_AT_ONCE, TOLD_PER_S, EventVerbs, Pace, Since
from farm.core.events import EventLog
from farm.store.history import EventHistory
from farm.store.store import Store

EVENTS = 20 * TOLD_AT_ONCE


@pytest.fixture
def verbs(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    log = EventLog(store.epoch)
    for number in range(EVENTS):
        log.publish("device.ready", f"d{number}")
    yield EventVerbs(EventHistory(log, store.events))
    store.close()


def call(told):
    async def progress(**fields):  # as one whose reader keeps up: it waits for nothing
        told.append(fields["seq"])

    peer = Peer(1000, 1000, 1)
    return SimpleNamespace(caller=Caller("vic", Role.VIEWER, peer.origin, peer), progress=progress)


async def test_others_have_their_turn_while_the_past_is_told(verbs):
    told, most = [], 0

    async def look():
        nonlocal most
        seen = 0
        while len(told) < EVENTS:
            await asyncio.sleep(0)
            most, seen = max(most, len(told) - seen), len(told)

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    answer = await verbs.events(Since(follow=False), call(told))
    await looking
    assert (len(told), answer["seq"]) == (EVENTS, told[-1])
    assert most <= TOLD_AT_ONCE


def test_one_users_streams_share_a_pace_and_nobody_elses_waits():
    now = 1000.0
    pace = Pace(lambda: now)
    assert pace.pause_s("vic", int(AHEAD_S * TOLD_PER_S)) == 0
    assert pace.pause_s("vic", TOLD_PER_S) == pytest.approx(1)
    assert pace.pause_s("vic", TOLD_PER_S) == pytest.approx(2)
    assert pace.pause_s("ann", TOLD_PER_S) == 0
    now += 1.5
    assert pace.pause_s("vic", 0) == pytest.approx(0.5)
    now += 10
    assert pace.pause_s("vic", int(AHEAD_S * TOLD_PER_S)) == 0


async def test_what_an_ended_stream_was_told_counts_for_the_next(verbs):
    verbs._pace = pace = Pace(lambda: 1000.0)
    told = []
    first = await verbs.events(Since(follow=False), call(told))
    before = pace._told_until_s[1000]
    some = TOLD_AT_ONCE - 1
    await verbs.events(Since(since=first["seq"] - some, follow=False), call(told))
    assert len(told) == EVENTS + some
    assert pace._told_until_s[1000] - before == pytest.approx(some / TOLD_PER_S)
