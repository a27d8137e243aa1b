"""Waiting for what no event tells, on the event loop."""

import asyncio
from collections.abc import Callable

PATIENCE_S = 30.0  # of a loaded host; nobody waits so long for what happens
LOOK_S = 0.002


async def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Let the loop run until `condition` holds."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 (tests observe; they add no events to what they test)
            await asyncio.sleep(LOOK_S)
