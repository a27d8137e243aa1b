"""How late the event loop is: whatever blocks it delays every phone, session and answer by as much."""

from __future__ import annotations

import asyncio

from farm.core.histogram import QUICK_S, Histogram

EVERY_S = 0.25


class LoopDelay:
    """Sleeps and notes by how much it overslept."""

    def __init__(self) -> None:
        self.seconds = Histogram(QUICK_S)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.seconds.observe(max(0.0, loop.time() - due_s))
