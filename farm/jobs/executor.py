"""Executors and the context of an attempt: the interface between the dispatcher and the kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from farm.common.errors import UserError
from farm.jobs.pool import Pool
from farm.model.device import DeviceView
from farm.model.job import Attempt, Job
from farm.model.requests import Lease
from farm.model.specs import JobSpec


class FailedWithResultError(UserError):
    """The work was done to its end and failed; its output is stored as the job's result."""

    code = "failed"
    exit_code = 1
    result: Mapping[str, Any] = MappingProxyType({})


class Progress(Protocol):
    """Shows a step to the clients that watch the job; nothing of it is stored."""

    def __call__(self, step: str, **facts: Any) -> None:
        """The attempt is at `step`."""


class Log(Protocol):
    """Keeps one line of the attempt's log."""

    def __call__(self, text: str, level: str = "info", *, source: str = "farm") -> None:
        """`source` is where it is from: farm, worker, stdout, stderr."""


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """One attempt under way, as its executor sees it."""

    job: Job
    spec: JobSpec
    attempt: Attempt
    lease: Lease
    view: DeviceView  # the phone when the attempt began
    progress: Progress
    log: Log
    save_facts: Callable[[Mapping[str, Any]], Awaitable[object]]  # what `resume` needs; kept when this returns
    yield_wanted: Callable[[], bool]  # whether others wait for this phone: raise YieldedError when it suits
    stopped_for_good: Callable[[], bool] = lambda: False  # when cancelled: the job ends with this attempt
    pool: Pool | None = None  # of an attempt whose kind is pooled: `lease` and `view` are its first phone's


class Executor(ABC):
    """Runs attempts of one kind. Several at once, each cancelled when it must end: stop then, leave nothing."""

    @abstractmethod
    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """Do the work; returns the result as JSON.

        Raises:
            YieldedError: it continues later.
            FarmError: it failed; the fault decides what follows.
        """

    async def resume(self, context: AttemptContext) -> Mapping[str, Any]:
        """Continue an attempt that saved `attempt.facts` under the daemon before this one; by default, begin again."""
        return await self.run(context)

    async def salvage(self, context: AttemptContext) -> None:  # noqa: B027 - most kinds have nothing to keep
        """Keep the results of the attempts of a job that ends while it waits for the next one; by default, nothing.

        `context` is of its last attempt, without a phone or a lease that lasts.

        Raises:
            FarmError: it could not be kept.
        """
