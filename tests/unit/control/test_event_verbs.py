"""Whoever asks for the past of the farm over and over leaves the others their turns."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from farm.common.events import EventLog
from farm.common.verbs import Verb
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Caller, LocalPeer, Role
from farm.control.server import ControlServer
from farm.control.verbs.store import AHEAD_S, EVENTS_AT_ONCE, EVENTS_PER_S, EventPace, EventVerbs
from farm.store.event_history import EventHistory

EVENTS = 20 * EVENTS_AT_ONCE


@pytest.fixture
def verbs(store):
    log = EventLog(store.epoch)
    for number in range(EVENTS):
        log.publish("device.ready", f"d{number}")
    return EventVerbs(EventHistory(log, store.events))


def call(told):
    async def progress(**fields):  # as one whose reader keeps up: it waits for nothing
        told.append(fields["seq"])

    peer = LocalPeer(1000, 1000, 1)
    return SimpleNamespace(caller=Caller("vic", Role.VIEWER, peer.origin, peer), progress=progress)


async def test_other_callers_have_their_turn_while_past_events_are_sent(verbs):
    told, seen = [], [0]
    asked = asyncio.create_task(verbs.events(call(told), follow=False))
    while not asked.done():
        await asyncio.sleep(0)
        seen.append(len(told))
    assert (len(told), (await asked)["seq"]) == (EVENTS, told[-1])
    assert max(after - before for before, after in itertools.pairwise(seen)) <= EVENTS_AT_ONCE


def test_one_users_streams_share_a_pace_and_nobody_elses_waits():
    now = 1000.0
    pace = EventPace(lambda: now)
    assert pace.pause_s("vic", int(AHEAD_S * EVENTS_PER_S)) == 0
    assert pace.pause_s("vic", EVENTS_PER_S) == pytest.approx(1)
    assert pace.pause_s("vic", EVENTS_PER_S) == pytest.approx(2)
    assert pace.pause_s("ann", EVENTS_PER_S) == 0
    now += 1.5
    assert pace.pause_s("vic", 0) == pytest.approx(0.5)
    now += 10
    assert pace.pause_s("vic", int(AHEAD_S * EVENTS_PER_S)) == 0


async def test_what_an_ended_stream_was_told_counts_for_the_next(verbs):
    verbs._pace = pace = EventPace(lambda: 1000.0)
    told = []
    first = await verbs.events(call(told), follow=False)
    before = pace._sent_until_s[1000]
    some = EVENTS_AT_ONCE - 1
    await verbs.events(call(told), since=first["seq"] - some, follow=False)
    assert len(told) == EVENTS + some
    assert pace._sent_until_s[1000] - before == pytest.approx(some / EVENTS_PER_S)


async def test_many_streams_of_one_user_leave_another_users_its_turns(tmp_path):
    server, order, messages = ControlServer(tmp_path / "c.sock", artifacts=ArtifactFolder(tmp_path)), [], 50

    async def stream(call):
        for number in range(messages):
            await call.progress(number=number)
        return {}

    server.register(Verb("events", Role.VIEWER, stream=True), stream)

    async def read(user):
        async def progress(**_):
            order.append(user)

        await server.ask(Caller(user, Role.VIEWER, ""), "events", {}, progress=progress)

    await asyncio.gather(*(read("greedy") for _ in range(20)), read("ann"))
    assert order.count("greedy") == 20 * messages
    assert len(order) - order[::-1].index("ann") <= 2 * messages + 20
