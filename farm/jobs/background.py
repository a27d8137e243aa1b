"""Tasks that nobody awaits: their failures are told, and they are ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from farm.core.tasks import tell_failure


class Background:
    """Tasks on their own. One that fails takes nothing else down."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begin `work`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def end(self, limit_s: float) -> tuple[str, ...]:
        """Wait until all have ended, `limit_s` at most; the late ones are cancelled. Returns their names."""
        if not self._tasks:
            return ()
        _, late = await asyncio.wait(tuple(self._tasks), timeout=limit_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return tuple(task.get_name() for task in late)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        tell_failure(task)
