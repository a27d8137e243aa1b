"""The verb `events`: what happened, from the store and then as it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import Count, Verbs, form, verb
from farm.control.router import CallerGoneError
from farm.control.server import ControlCall
from farm.store.history import EventHistory

TOLD_AT_ONCE = 50  # events, some 4 ms of the daemon's loop; then others have their turn
TOLD_PER_S = 2_000  # to all streams of one user together: a sixth of the loop
AHEAD_S = 2.0  # so much is told without a pause: more than a day's work of most farms


@form
class Since:
    """`events`: those after `since`; then, if `follow`, each as it happens until the caller leaves."""

    since: Count = 0
    follow: bool = True
    subject: str = ""  # only about this device, job, lease ...


@form
class Newest:
    """`events.newest`: about a device, job, lease ...; `rooms` are first words of kinds, none: all."""

    subject: str
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    rooms: tuple[str, ...] = ()


class Pace:
    """How fast events are told, all streams of one user together: whoever asks for the past over and over waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_until_s: dict[int | str, float] = {}  # by user: when they would have been told this, at this pace

    def pause_s(self, user: int | str, events: int) -> float:
        """How long to wait now that so many more were told."""
        now = self._clock()
        self._told_until_s = {each: until for each, until in self._told_until_s.items() if until > now - AHEAD_S}
        until = max(self._told_until_s.get(user, 0.0), now - AHEAD_S) + events / TOLD_PER_S
        self._told_until_s[user] = until
        return max(0.0, until - now)


class EventVerbs(Verbs):
    """The verb over the farm's history."""

    def __init__(self, history: EventHistory) -> None:
        self._history = history
        self._pace = Pace()

    @verb("events.newest", Role.VIEWER)
    async def newest(self, asked: Newest) -> Mapping[str, Any]:
        """The newest events about one thing, newest first; those of leases and sessions name their device."""
        events = await self._history.newest(asked.subject, asked.limit, asked.rooms)
        return {"events": [event.to_wire() for event in events]}

    @verb("events", Role.VIEWER)
    async def events(self, asked: Since, call: ControlCall) -> Mapping[str, Any]:
        """Stream events; answers with the number of the last one sent."""
        seq, told = asked.since, 0
        peer = call.caller.peer
        user = call.caller.user if peer is None else peer.payer
        await asyncio.sleep(self._pace.pause_s(user, 0))
        try:
            async with aclosing(self._history.follow(seq, asked.subject, wait=asked.follow)) as events:
                async for event in events:
                    await call.progress(**event.to_wire())
                    seq, told = event.seq, told + 1
                    if told == TOLD_AT_ONCE:
                        told = 0
                        await asyncio.sleep(self._pace.pause_s(user, TOLD_AT_ONCE))
        except CallerGoneError:
            return {}
        finally:
            self._pace.pause_s(user, told)
        return {"seq": seq}
