"""asyncio tasks: failures are logged, background tasks end together, blocks have a limit, callers share a call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log the failure of a task; a done callback."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed inside farm", task.get_name(), exc_info=error)


async def end_tasks(*tasks: asyncio.Future[Any], again_s: float | None = None) -> None:
    """Cancel them and wait for their ends; their errors are handled elsewhere.

    `again_s`: those that have not ended by then are cancelled again, for the code of others that loses a cancellation.
    """
    left: Collection[asyncio.Future[Any]] = tasks
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def at_most(limit_s: float) -> AsyncIterator[None]:
    """End the block when it takes longer, without an error."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            yield


class BackgroundTasks:
    """Tasks on their own. One that fails takes nothing else down."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Begin `work`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def end(self, limit_s: float) -> tuple[str, ...]:
        """Wait until all have ended, also those that they begin, `limit_s` at most; the late ones are cancelled.

        Returns their names.
        """
        deadline = time.monotonic() + limit_s
        while self._tasks and (left_s := deadline - time.monotonic()) > 0:
            await asyncio.wait(tuple(self._tasks), timeout=left_s)
        late = tuple(self._tasks)
        await end_tasks(*late)
        return tuple(task.get_name() for task in late)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        log_failure(task)


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedCall(Generic[K, T]):
    """Calls once for all callers during the call, and for those within `keep_s` of its end."""

    def __init__(
        self,
        function: Callable[[K], Coroutine[Any, Any, T]],
        *,
        keep_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`function` is the shared call, by its argument. Its error reaches all callers that wait, and is not kept."""
        self._function = function
        self._keep_s = keep_s
        self._clock = clock
        self._running: dict[K, asyncio.Task[T]] = {}
        self._kept_until: dict[K, float] = {}  # of looks that have ended

    def __call__(self, at: K) -> Awaitable[T]:
        """The result. A cancelled caller does not end the call for the others."""
        now_s = self._clock()
        for old in [each for each, until_s in self._kept_until.items() if until_s <= now_s]:
            del self._kept_until[old], self._running[old]
        if at not in self._running:
            self._running[at] = asyncio.create_task(self._function(at))
            self._running[at].add_done_callback(partial(self._ended, at))
        return asyncio.shield(self._running[at])

    def _ended(self, at: K, task: asyncio.Task[T]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._running[at]
        else:
            self._kept_until[at] = self._clock() + self._keep_s
