"""Verbs about the store: is it sound, copy it, prune it; and the events that it keeps, then each as it happens."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from farm.common.verbs import Count, verb
from farm.control.callers import Role
from farm.control.messages import MAX_FRAME_BYTES
from farm.control.router import CallerGoneError
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup
from farm.store.event_history import EventHistory
from farm.store.maintenance import back_up, check
from farm.store.retention import Retention
from farm.store.store import Store

MAX_KEEP_DAYS = 36_500
EVENTS_AT_ONCE = 50  # events, some 4 ms of the daemon's loop; then others have their turn
EVENTS_PER_S = 2_000  # to all streams of one user together: a sixth of the loop
AHEAD_S = 2.0  # events for so long are sent without a pause: more than a day's of most farms


class StoreVerbs(VerbGroup):
    """Verbs over the store, for operators."""

    def __init__(self, store: Store, where: Path | str, retention: Retention) -> None:
        self._store = store
        self._where = where
        self._retention = retention
        self._whole_reads = ThreadPoolExecutor(1, "farm-store-whole")  # a thread continues although its caller left

    @verb("store.check", Role.OPERATOR, changes=False)
    async def check(self) -> Mapping[str, Any]:
        """Check every table: its damage, its number of rows."""
        report = await asyncio.get_running_loop().run_in_executor(self._whole_reads, check, self._store.database.engine)
        return {**report.to_wire(), "problem": self._store.problem}

    @verb("store.backup", Role.OPERATOR)
    async def backup(self, call: ControlCall, send: bool = False) -> Mapping[str, Any]:
        """Copy the database while it serves: beside it, or with `send` to the caller, in raw frames.

        The service cannot write into users' folders or their /tmp.
        """
        made = await asyncio.get_running_loop().run_in_executor(self._whole_reads, back_up, self._where)
        size_bytes = made.stat().st_size
        if not send:
            return {"path": str(made), "size_bytes": size_bytes}
        seen = hashlib.sha256()
        with made.open("rb") as file:
            made.unlink()
            while data := await asyncio.to_thread(file.read, MAX_FRAME_BYTES):
                seen.update(data)
                await call.progress(data, size_bytes=size_bytes)
        return {"size_bytes": size_bytes, "sha256": seen.hexdigest()}

    @verb("store.prune", Role.OPERATOR, order=("keep_days",))
    async def prune(
        self, keep_days: Annotated[float, Field(ge=0, le=MAX_KEEP_DAYS)] | None = None, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Remove rows older than `keep_days` (None: as configured)."""
        if dry_run:
            pruned = await self._store.in_thread(self._retention.would_prune, keep_days)
        else:
            pruned = await self._retention.prune(keep_days)
        return {**pruned.to_wire(), "dry_run": dry_run}


class EventPace:
    """Paces events, all streams of one user together: a user who asks for the past over and over waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # by user: when the events so far would have been sent at EVENTS_PER_S
        self._sent_until_s: dict[int | str, float] = {}

    def pause_s(self, user: int | str, events: int) -> float:
        """How long to wait now that so many more were sent."""
        now = self._clock()
        self._sent_until_s = {each: until for each, until in self._sent_until_s.items() if until > now - AHEAD_S}
        until = max(self._sent_until_s.get(user, 0.0), now - AHEAD_S) + events / EVENTS_PER_S
        self._sent_until_s[user] = until
        return max(0.0, until - now)


class EventVerbs(VerbGroup):
    """The verb over the farm's history."""

    def __init__(self, history: EventHistory) -> None:
        self._history = history
        self._pace = EventPace()

    @verb("events.newest", Role.VIEWER)
    async def newest(
        self, subject: str, limit: Annotated[int, Field(ge=1, le=200)] = 50, topics: tuple[str, ...] = ()
    ) -> Mapping[str, Any]:
        """The newest events about one thing, newest first; those of leases and sessions name their device.

        `topics` are first words of kinds; none: all.
        """
        events = await self._history.newest(subject, limit, topics)
        return {"events": [event.to_wire() for event in events]}

    @verb("events", Role.VIEWER, stream=True)
    async def events(
        self, call: ControlCall, since: Count = 0, follow: bool = True, subject: str = ""
    ) -> Mapping[str, Any]:
        """Stream events after `since`, with `follow` also new ones; answers with the number of the last one sent.

        `subject`: only events about this device, job, lease ...
        """
        seq, unpaced = since, 0
        peer = call.caller.peer
        user = call.caller.user if peer is None else peer.quota_key
        await asyncio.sleep(self._pace.pause_s(user, 0))
        try:
            async with aclosing(self._history.follow(seq, subject, wait=follow)) as events:
                async for event in events:
                    await call.progress(**event.to_wire())
                    seq, unpaced = event.seq, unpaced + 1
                    if unpaced == EVENTS_AT_ONCE:
                        unpaced = 0
                        await asyncio.sleep(self._pace.pause_s(user, EVENTS_AT_ONCE))
        except CallerGoneError:
            return {}
        finally:
            self._pace.pause_s(user, unpaced)
        return {"seq": seq}
