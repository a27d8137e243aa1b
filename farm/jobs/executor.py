"""What runs one attempt of a kind of job, and what it is told: the line between the dispatcher and the kinds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from farm.core.device import DeviceView
from farm.core.errors import FarmError, UserError
from farm.core.job import Attempt, Job
from farm.core.requests import Lease
from farm.jobs.pool import Pool
from farm.jobs.specs import AnySpec


class YieldedError(FarmError):
    """The attempt gave its phone to others at a good moment and goes on later."""

    code = "yielded"


class FailedWithResultError(UserError):
    """The work was done to its end and failed; what it gave is kept as the job's result."""

    code = "failed"
    exit_code = 1
    result: Mapping[str, Any] = MappingProxyType({})


class Progress(Protocol):
    """Tells those who watch the job; nothing of it is kept."""

    def __call__(self, step: str, **facts: Any) -> None:
        """The attempt is at `step`."""
        ...


class Log(Protocol):
    """Keeps one line of the attempt's log."""

    def __call__(self, text: str, level: str = "info", *, source: str = "farm") -> None:
        """`source` is who said it: farm, worker, stdout, stderr."""
        ...


@dataclass(frozen=True, slots=True)
class Running:
    """One attempt under way, as its executor sees it."""

    job: Job
    spec: AnySpec
    attempt: Attempt
    lease: Lease
    view: DeviceView  # the phone when the attempt began
    progress: Progress
    log: Log
    save_facts: Callable[[Mapping[str, Any]], Awaitable[None]]  # what `resume` needs; kept when this returns
    yield_wanted: Callable[[], bool]  # whether others wait for this phone: raise YieldedError when it suits
    over: Callable[[], bool] = lambda: False  # when cancelled: the job ends with it, and is not tried again
    pool: Pool | None = None  # of an attempt whose kind is pooled: `lease` and `view` are its first phone's


class Executor(Protocol):
    """Runs attempts of one kind. Several at once, each cancelled when it must end: stop then, leave nothing."""

    async def run(self, running: Running) -> Mapping[str, Any]:
        """Do the work; returns the result as JSON.

        Raises:
            YieldedError: it goes on later.
            FarmError: it failed; the fault decides what follows.
        """
        ...


@runtime_checkable
class KeepingExecutor(Executor, Protocol):
    """Of a kind whose attempts leave something for the next one that is worth keeping when there is no next one."""

    async def keep_left(self, running: Running) -> None:
        """The job ends while it waits; `running` is its last attempt, without a phone or a lease that lasts.

        Raises:
            FarmError: it could not be kept.
        """
        ...


@runtime_checkable
class ResumableExecutor(Executor, Protocol):
    """Of a kind whose attempts outlive the daemon."""

    async def resume(self, running: Running) -> Mapping[str, Any]:
        """Go on with an attempt that saved `attempt.facts` under the daemon before this one."""
        ...
