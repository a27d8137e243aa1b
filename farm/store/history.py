"""The event log's long memory: keeps what no change drafted, and reads back what the log has forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from itertools import islice

from farm.core.events import Event, EventLog
from farm.store.changes import to_its_end
from farm.store.event_table import EventTable
from farm.store.patience import Patience
from farm.store.writer import StoreWriteError

KEPT_WITHIN_S = 0.4  # events that tell no change of the store may come this late: a burst shares one commit
MOST_WAITING = 20_000  # events that wait for a full disk; the oldest are given up
MOST_AT_ONCE = 500  # rows of one read or commit
# Steps of something whose end is told too: news for whoever watches, of no use later.
PASSING = frozenset({"job.progress", "device.pushing"})

logger = logging.getLogger(__name__)


class EventHistory:
    """All events of a farm, in order, from whichever of memory and store has them."""

    def __init__(self, log: EventLog, book: EventTable) -> None:
        self._log = log
        self._book = book
        self._waiting: deque[Event] = deque(maxlen=MOST_WAITING)
        self._some = asyncio.Event()
        self._keeping = asyncio.Lock()
        self._stop = log.subscribe(self._heard)

    async def run(self) -> None:
        """Keep events as they come, until cancelled."""
        patience = Patience()
        while True:
            await self._some.wait()
            await asyncio.sleep(KEPT_WITHIN_S)
            await patience.write(self._keep, "events")

    async def close(self) -> None:
        """Keep the last ones."""
        self._stop()
        try:
            await self._keep()
        except StoreWriteError as error:
            logger.warning("%d events were not kept: %s", len(self._waiting), error)

    async def read(self, since: int, subject: str = "") -> Sequence[Event]:
        """Some events after `since`, oldest first; none when there is none yet."""
        while since + 1 < (oldest := self._log.oldest):
            await self._keep_before(oldest)
            kept = await asyncio.to_thread(self._book.since, since, MOST_AT_ONCE, subject)
            if older := [event for event in kept if event.seq < oldest]:
                return older
            since = oldest - 1
        return [event for event in self._log.since(since) if subject in ("", event.subject)]

    async def past(self, subjects: Collection[str], since: int, before: int) -> AsyncGenerator[Event, None]:
        """Events about any of these subjects after `since` that memory, whose oldest is `before`, has forgotten."""
        await self._keep_before(before)
        while some := await asyncio.to_thread(self._book.about, subjects, since, before, MOST_AT_ONCE):
            for event in some:
                yield event
            since = some[-1].seq

    async def newest(self, subject: str, limit: int, rooms: Collection[str] = ()) -> Sequence[Event]:
        """The newest events about a device or job, newest first: its own, and in memory those that name it too.

        Args:
            subject: a device, job, lease ...
            limit: at most so many.
            rooms: first words of kinds ("device", "session"); empty: all.
        """
        kinds = tuple(f"{room}." for room in rooms) or ("",)

        def wanted(event: Event) -> bool:
            if not event.kind.startswith(kinds):
                return False
            data = event.data
            return event.subject == subject or data.get("device") == subject or data.get("job") == subject

        found = self._log.newest(wanted, limit)
        if len(found) < limit:
            oldest = self._log.oldest
            await self._keep_before(oldest)
            kept = await asyncio.to_thread(self._book.newest, subject, oldest, limit)
            found += [event for event in kept if wanted(event)]
        return found[:limit]

    async def follow(self, since: int, subject: str = "", *, wait: bool = True) -> AsyncGenerator[Event, None]:
        """Every event after `since`, in order, without gap or double, at the reader's pace.

        A reader holds no queue: one that is slow reads from the store what memory has forgotten meanwhile.

        Args:
            since: number of the last event seen.
            subject: only events about this; empty: about anything.
            wait: go on with events as they happen; else end with the newest there is at the start.
        """
        until = self._log.seq
        news = asyncio.Event()
        stop = self._log.subscribe(lambda _: news.set())
        try:
            while True:
                news.clear()
                newest = self._log.seq
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
                await news.wait()
        finally:
            stop()

    def _heard(self, event: Event) -> None:
        if not event.drafted and event.kind not in PASSING:
            self._waiting.append(event)
            self._some.set()

    async def _keep_before(self, oldest: int) -> None:
        """Everything before the oldest in memory has been told, so it is in the store or on its way there: hurry."""
        if self._waiting and self._waiting[0].seq < oldest:
            with contextlib.suppress(StoreWriteError):  # a full disk: what does not fit in memory either is lost
                await self._keep()

    @to_its_end  # a batch that is being committed when the daemon stops would be written again by `close`
    async def _keep(self) -> None:
        async with self._keeping:
            while batch := tuple(islice(self._waiting, MOST_AT_ONCE)):
                try:
                    await self._book.add(batch)
                except StoreWriteError:
                    raise
                except Exception:  # a bug: these are given up, or none would ever be kept again
                    logger.exception("%d events cannot be kept", len(batch))
                kept_to = batch[-1].seq
                while self._waiting and self._waiting[0].seq <= kept_to:
                    self._waiting.popleft()
            self._some.clear()
