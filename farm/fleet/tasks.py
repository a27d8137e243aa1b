"""Tasks and futures that are of no interest any more."""

from __future__ import annotations

import asyncio


def told(asked: asyncio.Future[None] | None) -> None:
    """Whoever asked hears that it is done, unless they heard something already."""
    if asked is not None and not asked.done():
        asked.set_result(None)


def let_go(task: asyncio.Task[None] | None) -> None:
    """Cancel a task that is no longer wanted; its own end is of no interest."""
    if task is not None and task is not asyncio.current_task():
        task.cancel()
