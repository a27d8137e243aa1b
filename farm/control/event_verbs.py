"""The verb `events`: what happened, from the store and then as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import Count, Verbs, form, verb
from farm.control.router import CallerGoneError
from farm.control.server import ControlCall
from farm.store.history import EventHistory


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


class EventVerbs(Verbs):
    """The verb over the farm's history."""

    def __init__(self, history: EventHistory) -> None:
        self._history = history

    @verb("events.newest", Role.VIEWER)
    async def newest(self, asked: Newest) -> Mapping[str, Any]:
        """The newest events about one thing, newest first; those of leases and sessions name their device."""
        events = await self._history.newest(asked.subject, asked.limit, asked.rooms)
        return {"events": [event.to_wire() for event in events]}

    @verb("events", Role.VIEWER)
    async def events(self, asked: Since, call: ControlCall) -> Mapping[str, Any]:
        """Stream events; answers with the number of the last one sent."""
        seq = asked.since
        try:
            async with aclosing(self._history.follow(seq, asked.subject, wait=asked.follow)) as events:
                async for event in events:
                    await call.progress(**event.to_wire())
                    seq = event.seq
        except CallerGoneError:
            return {}
        return {"seq": seq}
