"""Events of a database on a server as its readers see them: of all daemons, in the order of the numbers in the store.

The daemon's own log numbers events before they are committed; readers get theirs from here, with the stored numbers,
which another daemon knows too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import replace

from farm.common.errors import HostError
from farm.common.events import Event, EventLog
from farm.common.tasks import at_most
from farm.store.event_history import READ_AT_ONCE, TRANSIENT, EventTable

POLL_S = 0.5  # events of other daemons are seen this late
PAUSE_S = 0.02  # between two reads: what is committed meanwhile is read at once
MAX_TRANSIENT = 1000  # that wait to be shown; the oldest are dropped

logger = logging.getLogger(__name__)


class EventFollower:
    """Reads new events from the table, and shows it in `log`. Used from the event loop's thread."""

    def __init__(self, own: EventLog, table: EventTable) -> None:
        """Begin after the events that are in the table and final. Blocking.

        Raises:
            HostError: the database cannot be read.
        """
        self._table = table
        # with the own log's number of the last event before it that is to be stored by itself
        self._transient: deque[tuple[int, Event]] = deque(maxlen=MAX_TRANSIENT)
        self._to_store = self._stored = own.seq
        self._some = asyncio.Event()
        self._reading = asyncio.Lock()
        _, horizon = table.final(0, 0)
        self.log = EventLog(after=horizon - 1)
        own.subscribe(self._on_event)

    async def run(self) -> None:
        """Show events as they come, until cancelled."""
        while True:
            self._some.clear()
            with contextlib.suppress(HostError):  # the writer reports it
                await self.read()
            await asyncio.sleep(PAUSE_S)
            async with at_most(POLL_S):
                await self._some.wait()

    async def read(self) -> None:
        """Show all that is final by now.

        Raises:
            HostError: the database cannot be read.
        """
        async with self._reading:
            transient = []  # before the table is read: what they follow is committed
            while self._transient and self._transient[0][0] <= self._stored:
                transient.append(self._transient.popleft()[1])
            full = True
            while full:
                events, horizon = await self._table.in_thread(self._table.final, self.log.seq, READ_AT_ONCE)
                full = len(events) == READ_AT_ONCE
                for event in events:
                    self.log.show(event)
            for event in transient:
                if self.log.seq + 1 < horizon:  # a number that no event of the table gets any more
                    self.log.show(replace(event, seq=self.log.seq + 1))

    def on_stored(self, number: int) -> None:
        """The own log's events to this number are committed."""
        self._stored = number
        self._some.set()

    def _on_event(self, event: Event) -> None:
        if event.kind in TRANSIENT:
            self._transient.append((self._to_store, event))
        elif not event.drafted:
            self._to_store = event.seq
            return
        self._some.set()
