"""asyncio tasks: failures are logged, background tasks end together, blocks have a limit, callers share a call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from farm.common.durations import BackOff
from farm.common.errors import FarmError, log_error

BEGIN_AGAIN = BackOff(1.0, 5.0)  # after an error of a lasting task
STEADY_S = 60.0  # a task that ran for so long had no error in a row

log = logging.getLogger(__name__)

Begin = Callable[[], Coroutine[Any, Any, None]]  # the coroutine of one run of a task


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


class LastingTasks:
    """Tasks that run as long as the process does, whatever fails outside it.

    An error ends one run of a task: it is logged, `problems` names it, and the task begins again after a pause. What
    may end the process is no lasting task: its owner waits for it.
    """

    def __init__(self) -> None:
        self._failed: dict[str, tuple[float, str]] = {}  # the latest error by task: until when it is shown, and what

    def start(self, name: str, begin: Begin) -> asyncio.Task[None]:
        """Run `begin()` until it returns. The caller ends the task."""
        return asyncio.create_task(self._keep(name, begin), name=name)

    def problems(self) -> list[str]:
        """One line for each task that has failed and not yet run for long since."""
        now_s = time.monotonic()
        return [
            f"{name} failed and is tried again: {what}"
            for name, (until_s, what) in self._failed.items()
            if until_s > now_s
        ]

    async def _keep(self, name: str, begin: Begin) -> None:
        failures = 0
        while True:
            began_s = time.monotonic()
            try:
                return await begin()
            except asyncio.CancelledError as error:
                if (running := asyncio.current_task()) is None or running.cancelling():
                    raise
                self._report(name, error)  # something that it awaited was cancelled
            except Exception as error:  # noqa: BLE001 - of whatever kind: the process continues
                self._report(name, error)
            failures = 1 if time.monotonic() - began_s > STEADY_S else failures + 1
            await asyncio.sleep(BEGIN_AGAIN.delay_s(failures))

    def _report(self, name: str, error: BaseException) -> None:
        what = error.message if isinstance(error, FarmError) else f"{type(error).__name__}: {error}"
        repeated = what == self._failed.get(name, (0.0, ""))[1]
        level = logging.DEBUG if repeated else logging.ERROR
        log_error(log, error, "%s failed and is tried again", name, level=level)
        self._failed[name] = time.monotonic() + STEADY_S, what


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
        self._kept_until: dict[K, float] = {}  # by argument: when its kept result expires, by `clock`

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
