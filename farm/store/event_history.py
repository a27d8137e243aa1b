"""Stored events: the table, and the history that joins it with the event log in memory.

On a server that log is `EventFollower.log`: the events of all daemons, as the table numbers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, func, select

from farm.common.errors import HostError, log_error
from farm.common.events import Event, EventLog
from farm.store.database import TableAccess, WriteRetrier, in_parts, run_to_completion
from farm.store.event_numbers import horizon
from farm.store.schema import event
from farm.store.writer import StoreWriteError

if TYPE_CHECKING:
    from farm.store.event_follower import EventFollower

BATCH_DELAY_S = 0.4  # events without a change of the store may be stored this late: a burst shares one commit
MAX_WAITING = 20_000  # events that wait for a full disk; the oldest are dropped
MAX_AT_ONCE = 500  # rows of one commit
READ_AT_ONCE = 100  # rows of one read: each of hundreds of readers holds so many, 0.7 kB each
# Progress of steps whose end has an event too: of no use later.
TRANSIENT = frozenset({"job.progress", "job.waits", "device.pushing"})

logger = logging.getLogger(__name__)


class EventTable(TableAccess):
    """Statements over events."""

    def since(self, seq: int, limit: int = 1000, subject: str = "") -> tuple[Event, ...]:
        """Stored events after `seq`, oldest first, at most `limit`."""
        wanted = select(event).where(event.c.seq > seq).order_by(event.c.seq).limit(limit)
        if subject:
            wanted = wanted.where(event.c.subject == subject)
        return self._events(wanted)

    def final(self, seq: int, limit: int) -> tuple[tuple[Event, ...], int]:
        """On a server: events after `seq` before which none can come any more, oldest first, at most `limit`.

        With the number below which all are final.
        """
        with self._database.reading() as connection:
            end = horizon(connection)
            wanted = select(event).where(event.c.seq > seq, event.c.seq < end).order_by(event.c.seq).limit(limit)
            rows = connection.execute(wanted).mappings().all() if limit else ()
        return tuple(Event(**row, drafted=True) for row in rows), end

    def about(self, subjects: Collection[str], seq: int, before: int, limit: int = 1000) -> tuple[Event, ...]:
        """Stored events about any of these subjects after `seq` and before `before`, oldest first, at most `limit`."""
        wanted = select(event).where(event.c.seq > seq, event.c.seq < before).order_by(event.c.seq).limit(limit)
        found = [each for some in in_parts(subjects) for each in self._events(wanted.where(event.c.subject.in_(some)))]
        return tuple(sorted(found, key=lambda each: each.seq)[:limit])

    def newest(self, subject: str, before: int, limit: int) -> tuple[Event, ...]:
        """Stored events about `subject` before `before`, newest first, at most `limit`."""
        wanted = (
            select(event)
            .where(event.c.subject == subject, event.c.seq < before)
            .order_by(event.c.seq.desc())
            .limit(limit)
        )
        return self._events(wanted)

    def latest(self, subjects: Collection[str], kinds: Collection[str]) -> dict[str, int]:
        """The number of the latest event of any of these kinds, for those of the subjects that have one."""
        found: dict[str, int] = {}
        with self._database.reading() as connection:
            for some in in_parts(subjects):
                wanted = (
                    select(event.c.subject, func.max(event.c.seq))
                    .where(event.c.subject.in_(some), event.c.kind.in_(sorted(kinds)))
                    .group_by(event.c.subject)
                )
                found |= {str(subject): int(seq) for subject, seq in connection.execute(wanted)}
        return found

    async def add(self, events: Sequence[Event]) -> None:
        """Store events that belong to no change of the store."""
        await self._database.write(lambda _: None, events)

    def _events(self, wanted: Select[Any]) -> tuple[Event, ...]:
        return tuple(Event(**row, drafted=True) for row in self._database.rows(wanted))


class EventHistory:
    """All events of a farm, in order: from memory, or from the store when memory has forgotten them."""

    def __init__(self, log: EventLog, table: EventTable, follower: EventFollower | None = None) -> None:
        """`log`: of this daemon's events; `follower`: of a table on a server."""
        self.shown = log if follower is None else follower.log  # what readers see, and the numbers they know
        self._follower = follower
        self._table = table
        self._waiting: deque[Event] = deque(maxlen=MAX_WAITING)
        self._some = asyncio.Event()
        self._storing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._stop = log.subscribe(self._on_event)

    async def run(self) -> None:
        """Store events as they come, until cancelled."""
        retrier = WriteRetrier()
        while True:
            await self._some.wait()
            await asyncio.sleep(BATCH_DELAY_S)
            await retrier.write(self._store_waiting, "events")

    async def close(self) -> None:
        """Store the last events."""
        self._stop()
        try:
            await self._store_waiting()
        except HostError as error:  # also of a head that has lost its term
            logger.warning("%d events were not stored: %s", len(self._waiting), error)

    async def read(self, since: int, subject: str = "") -> Sequence[Event]:
        """Some events after `since`, oldest first; none when there is none yet.

        The table is read for one reader after the other: threads that make events of rows hold up the loop.
        """
        while since + 1 < (oldest := self.shown.oldest):
            await self._store_before(oldest)
            async with self._reading:
                kept = await self._table.in_thread(self._table.since, since, READ_AT_ONCE, subject)
            if older := [event for event in kept if event.seq < oldest]:
                return older
            since = oldest - 1
        return [event for event in self.shown.since(since) if subject in ("", event.subject)]

    async def past(self, subjects: Collection[str], since: int, before: int) -> AsyncGenerator[Event, None]:
        """Events about any of these subjects after `since` before `before`, the oldest in memory."""
        await self._store_before(before)
        while True:
            async with self._reading:
                some = await self._table.in_thread(self._table.about, subjects, since, before, READ_AT_ONCE)
            for each in some:
                yield each
            if not some:
                return
            since = some[-1].seq

    async def newest(self, subject: str, limit: int, topics: Collection[str] = ()) -> Sequence[Event]:
        """The newest events about a device or job, newest first: its own, and in memory those that name it too.

        Args:
            subject: a device, job, lease ...
            limit: at most so many.
            topics: first words of kinds ("device", "session"); empty: all.
        """
        kinds = tuple(f"{topic}." for topic in topics) or ("",)

        def wanted(event: Event) -> bool:
            if not event.kind.startswith(kinds):
                return False
            data = event.data
            return event.subject == subject or data.get("device") == subject or data.get("job") == subject

        await self._catch_up()
        found = self.shown.newest(wanted, limit)
        if len(found) < limit:
            oldest = self.shown.oldest
            await self._store_before(oldest)
            kept = await self._table.in_thread(self._table.newest, subject, oldest, limit)
            found += [event for event in kept if wanted(event)]
        return found[:limit]

    async def follow(self, since: int, subject: str = "", *, wait: bool = True) -> AsyncGenerator[Event, None]:
        """Every event after `since`, in order, without gap or double, at the reader's pace.

        A reader holds no queue: one that is slow reads from the store what memory has forgotten meanwhile.

        Args:
            since: number of the last event seen.
            subject: only events about this; empty: about anything.
            wait: continue with events as they happen; else end with the newest there is at the start.
        """
        if not wait:
            await self._catch_up()
        until = self.shown.seq
        published = asyncio.Event()
        stop = self.shown.subscribe(lambda _: published.set())
        try:
            while True:
                published.clear()
                newest = self.shown.seq
                some = await self.read(since, subject)
                for event in some:
                    if not wait and event.seq > until:
                        return
                    yield event
                    since = event.seq
                if some:
                    continue
                if not wait:
                    return
                since = max(since, newest)
                await published.wait()
        finally:
            stop()

    def _on_event(self, event: Event) -> None:
        if not event.drafted and event.kind not in TRANSIENT:
            self._waiting.append(event)
            self._some.set()

    async def _catch_up(self) -> None:
        """On a server: show the events by now."""
        if self._follower is not None:
            with contextlib.suppress(StoreWriteError):
                await self._store_waiting()
            await self._follower.read()

    async def _store_before(self, oldest: int) -> None:
        """Store now the waiting events older than the oldest in memory: a reader wants it from the table."""
        if self._follower is None and self._waiting and self._waiting[0].seq < oldest:
            with contextlib.suppress(StoreWriteError):  # a full disk: events that do not fit in memory either are lost
                await self._store_waiting()

    @run_to_completion  # a batch that is being committed when the daemon stops would be written again by `close`
    async def _store_waiting(self) -> None:
        async with self._storing:
            while batch := tuple(islice(self._waiting, MAX_AT_ONCE)):
                try:
                    await self._table.add(batch)
                except StoreWriteError:
                    raise
                except Exception as error:  # noqa: BLE001 - else no event would ever be stored again
                    log_error(logger, error, "%d events cannot be stored", len(batch))
                stored_to = batch[-1].seq
                while self._waiting and self._waiting[0].seq <= stored_to:
                    self._waiting.popleft()
                if self._follower is not None:
                    self._follower.on_stored(stored_to)
            self._some.clear()
