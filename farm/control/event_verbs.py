"""The verb `events`: what happened, from the store and then as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from pydantic.dataclasses import dataclass as checked

from farm.control.callers import Role
from farm.control.forms import Count
from farm.control.router import CallerGoneError
from farm.control.server import ControlCall, ControlServer
from farm.control.verbs import STRICT, read_fields
from farm.store.history import EventHistory


@checked(frozen=True, slots=True, config=STRICT)
class Since:
    """`events`: those after `since`; then, if `follow`, each as it happens until the caller leaves."""

    since: Count = 0
    follow: bool = True
    subject: str = ""  # only about this device, job, lease ...


class EventVerbs:
    """The verb over the farm's history."""

    def __init__(self, history: EventHistory) -> None:
        self._history = history

    def register(self, server: ControlServer) -> None:
        """Add the verb to the door."""
        server.register("events", self.events, Role.VIEWER)

    async def events(self, call: ControlCall) -> Mapping[str, Any]:
        """Stream events; answers with the number of the last one sent."""
        asked = read_fields(call, Since)
        seq = asked.since
        try:
            async with aclosing(self._history.follow(seq, asked.subject, wait=asked.follow)) as events:
                async for event in events:
                    await call.progress(**event.to_wire())
                    seq = event.seq
        except CallerGoneError:
            return {}
        return {"seq": seq}
