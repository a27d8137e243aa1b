"""Changes that are kept in the store and then believed in memory: both happen or neither does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

LEAVE_LIMIT_S = 5.0  # how long a cancelled caller waits: a commit takes milliseconds, or the disk is full for long

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)
_going: set[asyncio.Task[Any]] = set()  # the event loop itself only has weak references


def to_its_end(change: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a change that has begun go on to its end, whatever becomes of its caller.

    The router cancels the call of a client that left. Were that to hit between the commit and what follows from it, the
    store would know what the daemon does not. So the change runs in a task of its own; a caller that is cancelled waits
    for its end (not for ever) and is cancelled then.

    It begins in a later turn of the loop: what is checked for it must be checked inside.
    """

    @wraps(change)
    async def begun(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.create_task(change(*args, **kwargs), name=change.__qualname__)
        _going.add(task)
        task.add_done_callback(_ended)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            await asyncio.wait((task,), timeout=LEAVE_LIMIT_S)
            raise
        return task.result()

    return begun


def _ended(task: asyncio.Task[Any]) -> None:
    """Whoever is still there is told how it ended; to one that left it is no news."""
    _going.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("%s: %r", task.get_name(), error)
