"""Noticing that the wall clock was set: people's times are read anew, and nothing else depends on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from farm.core.events import EventLog

LOOK_S = 1.0  # how late a jump may be noticed
JUMP_S = 2.0  # NTP slews by 0.5 ms a second; a clock that was set, or a host that slept, is off by more than this


class ClockWatch:
    """Compares the wall clock with the monotonic one."""

    def __init__(
        self,
        events: EventLog,
        jumped: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`jumped` is called after each jump, `events` gets clock.jumped."""
        self._events = events
        self._jumped = jumped
        self._clock = clock
        self._wall = wall
        self._offset_s = self._offset()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Compare the clocks once. Slewing adds up to a jump too, in its time."""
        offset_s = self._offset()
        by_s = offset_s - self._offset_s
        if abs(by_s) < JUMP_S:
            return
        self._offset_s = offset_s
        self._events.publish("clock.jumped", "clock", seconds=round(by_s, 3))
        self._jumped()

    def _offset(self) -> float:
        return self._wall().timestamp() - self._clock()
