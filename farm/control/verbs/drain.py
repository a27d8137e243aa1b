"""The verb `host.drain`: hand out no phone any more, so that the host can be upgraded; who has one keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from farm.control.callers import Role
from farm.control.forms import Verbs, form, verb
from farm.control.server import ControlCall
from farm.core.events import EventLog
from farm.leasing.model import Holder


@form
class Drain:
    """`host.drain`: begin, or end with `on` false."""

    on: bool = True


class Grants(Protocol):
    """Leasing, as far as it can be held back."""

    @property
    def drained(self) -> str:
        """Why nothing is granted, when an operator wants it so; "" else."""
        ...

    def drain(self, reason: str) -> None:
        """Grant nothing from now on; "" ends it."""
        ...

    def holders(self) -> Sequence[Holder]:
        """Current leases."""
        ...


class DrainVerbs(Verbs):
    """The one verb. What it does ends with the daemon: the next one hands phones out again."""

    def __init__(self, leasing: Grants, events: EventLog) -> None:
        self._leasing = leasing
        self._events = events

    def problems(self) -> list[str]:
        """For `farm status`."""
        return [f"{self._leasing.drained}: farm drain --end"] if self._leasing.drained else []

    @verb("host.drain", Role.OPERATOR)
    async def drain(self, asked: Drain, call: ControlCall) -> Mapping[str, Any]:
        """Hold grants back or let them go on -> {draining, leases}: who still has which phone."""
        by = call.caller.user
        if asked.on and not self._leasing.drained:
            since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            self._leasing.drain(f"{by} drains this host since {since}: no phone is handed out")
            self._events.publish("host.draining", "host", by=by)
        elif not asked.on and self._leasing.drained:
            self._leasing.drain("")
            self._events.publish("host.in_service", "host", by=by)
        held = [
            {"device": each.lease.device, "user": each.who, "held_s": each.held_s} for each in self._leasing.holders()
        ]
        return {"draining": bool(self._leasing.drained), "leases": held}
