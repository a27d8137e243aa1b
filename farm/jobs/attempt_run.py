"""One attempt from its first step to its outcome: the executor's work, and everything that may end it sooner.

A report counts only while its lease lasts: what comes after the lease was taken away is void. Nothing is written here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from farm.core.device import Life
from farm.core.device_news import Devices, seen
from farm.core.error_wire import error_to_wire
from farm.core.errors import FarmError, HostError, PhoneError
from farm.core.job import Attempt, AttemptState, Job
from farm.core.limits import MAX_RESULT_BYTES
from farm.core.queue_messages import Error
from farm.core.requests import Lease
from farm.core.retry import DaemonStoppedError
from farm.jobs.attempt import AttemptTimeoutError
from farm.jobs.executor import Executor, FailedWithResultError, Progress, ResumableExecutor, Running, YieldedError
from farm.jobs.interruption import broken_off
from farm.jobs.pool import Pool
from farm.jobs.ports import Leases
from farm.jobs.specs import KINDS
from farm.jobs.workbench import Workbench
from farm.jobs.zygote import START_LIMIT_S, ToolchainError
from farm.leasing.model import NoSuchLeaseError, PhoneLostError

UNLISTED_LIMIT_S = 2.0  # adb lists a pulled phone as offline, if at all, for some milliseconds
MENDING_LIMIT_S = 15.0  # cleaning and checking take a second; a longer story is the next attempt's to wait for
# Beyond the attempt's limit, which is its worker's: the supervisor counts it from the worker's start and ends it first.
GRACE_S = START_LIMIT_S + 2.0
HOST_HINT = "`farm doctor` looks at this host; the daemon's log has the trace"
STOP_LIMIT_S = 20.0  # a worker that ignores SIGTERM is killed after a few seconds; this bounds a bug

log = logging.getLogger(__name__)


class UnknownKindError(HostError):
    """This farm cannot run that kind of job."""

    code = "unknown_kind"


class ResultNotKeptError(FarmError):
    """What the attempt came to cannot be kept."""

    code = "result_not_kept"


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended; `running`: it goes on under the next daemon."""

    state: AttemptState
    error: Error | None = None
    result: Mapping[str, Any] | None = None


class AttemptRun:
    """One attempt under its lease. `to_its_end` runs it; `stop` may be called meanwhile."""

    def __init__(self, job: Job, attempt: Attempt, lease: Lease, leases: Leases, devices: Devices) -> None:
        self.job = job
        self.attempt = attempt
        self.lease = lease
        self._leases = leases
        self._devices = devices
        self.pool = Pool(job, lease, leases, devices) if attempt.pooled else None
        self._step = "starting"
        self._stop: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def stop(self, state: AttemptState, error: Error | None = None) -> None:
        """End it so, unless it has an end already."""
        if not self._stop.done():
            self._stop.set_result(End(state, error))

    def release(self, reason: str) -> None:
        """Give back whatever it has."""
        if self.pool is not None:
            self.pool.close(reason)
        else:
            self._leases.release(self.lease.id, reason)

    def waits(self) -> str:
        """Why it works with fewer phones than it should have; "" when it does not."""
        return self.pool.waits() if self.pool is not None else ""

    def leave(self) -> None:
        """The daemon stops: a person's lease goes on under the next one, all else is interrupted."""
        kind = KINDS.get(self.job.kind)
        goes_on = kind is not None and kind.personal
        if goes_on:
            self.stop(AttemptState.RUNNING)
        else:
            self.stop(*broken_off(self.job, DaemonStoppedError))

    async def to_its_end(self, executor: Executor | None, bench: Workbench) -> End:
        """Do the work; returns what can be kept of how it ended, whatever happens.

        `executor` is the one of the job's kind, None when there is none.
        """
        try:
            return _keepable(await self._end(executor, bench))
        except Exception as error:
            log.exception("attempt %s failed inside farm", self.attempt.id)
            return _failed(error)
        finally:
            if self.pool is not None:  # before the end is written: no phone may be granted to a job that is over
                self.pool.settle()

    async def _end(self, executor: Executor | None, bench: Workbench) -> End:
        try:
            running = bench.running(self.job, self.attempt, self.lease)
            if self.pool is not None:
                self.pool.begin(partial(_pool_changed, running))
                taken: asyncio.Future[FarmError] = asyncio.get_running_loop().create_future()  # no one phone's loss
            else:
                taken = self._taken_away()
            running = replace(running, progress=self._noting(running.progress), pool=self.pool, over=self._over)
            if executor is None:
                raise UnknownKindError(f"there is no way to run a {self.job.kind} job here")
            work = asyncio.ensure_future(_begin(executor, running))
        except FarmError as error:
            return _failed(error)
        limit_s = None if running.spec.personal else self.job.timeout_s
        patience_s = None if limit_s is None else limit_s + GRACE_S
        try:
            await asyncio.wait((work, taken, self._stop), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if taken.done():
                return _failed(_because(await self._as_it_was(taken.result()), work))
            if work.done():
                return await self._reported(work, taken)
            if self._stop.done():
                return self._stop.result()
            said = f"no result after {patience_s:g} s, of which {limit_s:g} s may be work; it was at: {self._step}"
            return _failed(AttemptTimeoutError(said, hint="a longer --timeout, or a smaller job"))
        finally:
            await _ended(work, self.attempt.id)

    def _taken_away(self) -> asyncio.Future[FarmError]:
        try:
            return self._leases.taken_away(self.lease.id)
        except NoSuchLeaseError as error:  # between the attempt's commit and this moment; the job is not to blame
            raise PhoneLostError(f"the lease of {self.lease.device} was over before the work began") from error

    def _over(self) -> bool:
        """Whether it was told to stop for good: not by a daemon that comes back, nor for others."""
        return self._stop.done() and self._stop.result().state in (AttemptState.CANCELLED, AttemptState.FAILED)

    def _noting(self, tell: Progress) -> Progress:
        """Remembers the step, for the one who asks why it takes so long."""

        def progress(step: str, **facts: Any) -> None:
            self._step = step
            tell(step, **facts)

        return progress

    async def _reported(self, work: asyncio.Future[Mapping[str, Any]], taken: asyncio.Future[FarmError]) -> End:
        try:
            return End(AttemptState.DONE, result=work.result())
        except YieldedError:
            return End(AttemptState.YIELDED)
        except PhoneError as error:
            # A pulled cable breaks the session first and is noticed a moment later: say what it really was.
            lost = None if self.pool is not None else await self._lost_while_mending(taken)
            if lost is None:
                return _failed(error)
            return _failed(_because(await self._as_it_was(lost), work))
        except FailedWithResultError as error:
            return End(AttemptState.FAILED, error_to_wire(error), error.result)
        except FarmError as error:
            return _failed(error)
        except Exception as error:  # the executor's bug must not take the others' attempts down
            log.exception("attempt %s failed inside farm", self.attempt.id)
            return _failed(error)

    async def _lost_while_mending(self, taken: asyncio.Future[FarmError]) -> FarmError | None:
        """Why the lease of a phone that failed was taken; None when it is fit again, or still mending after a while."""
        with seen(self._devices, self.lease.device, lambda life: life is Life.READY) as fit:
            await asyncio.wait((taken, fit, self._stop), timeout=MENDING_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        return taken.result() if taken.done() else None

    async def _as_it_was(self, taken: FarmError) -> FarmError:
        """Why the lease was taken: a phone that adb lists as offline may be one whose cable was pulled just now."""
        if not isinstance(taken, PhoneLostError):
            return taken
        with seen(self._devices, self.lease.device, lambda life: life is not Life.OFFLINE) as now:
            await asyncio.wait((now, self._stop), timeout=UNLISTED_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        return PhoneLostError.of(now.result()) if now.done() and now.result().life is Life.GONE else taken


def _pool_changed(running: Running, step: str, facts: Mapping[str, Any]) -> None:
    running.progress(step, **facts)
    running.log(step)


def _begin(executor: Executor, running: Running) -> Coroutine[Any, Any, Mapping[str, Any]]:
    """A new attempt, or one that the daemon before this one began."""
    if running.attempt.facts and isinstance(executor, ResumableExecutor):
        return executor.resume(running)
    return executor.run(running)


def _because(taken: FarmError, work: asyncio.Future[Any]) -> FarmError:
    """Why a lease was taken away; what the work failed with by then is its evidence."""
    if work.done() and not work.cancelled() and (failed := work.exception()) is not None:
        taken.evidence = taken.evidence or str(failed)
    return taken


def _keepable(end: End) -> End:
    """The end, or a failure in its place when its result is no JSON or too large."""
    if end.result is None:
        return end
    try:
        size = len(json.dumps(dict(end.result), allow_nan=False))
        if size > MAX_RESULT_BYTES:
            raise ValueError(f"it has {size:,} bytes as JSON; at most {MAX_RESULT_BYTES:,} are kept")
    except (TypeError, ValueError, RecursionError) as error:
        said = ResultNotKeptError(f"the result cannot be kept: {error}", hint="this is a bug in farm")
        return End(AttemptState.FAILED, end.error or error_to_wire(said))
    return end


def _failed(error: BaseException) -> End:
    if isinstance(error, ToolchainError):  # nothing was begun: the queue waits for the toolchain, however long it takes
        return End(AttemptState.INTERRUPTED, error_to_wire(error))
    if isinstance(error, OSError) and error.errno is not None:  # a disk, a folder that is gone, no descriptors
        error = HostError(f"this host failed the attempt: {error}", hint=HOST_HINT)
    return End(AttemptState.FAILED, error_to_wire(error))


async def _ended(work: asyncio.Future[Any], attempt: str) -> None:
    """Make sure that the executor's work is over, whatever it was."""
    if work.done():
        return
    work.cancel()
    await asyncio.wait((work,), timeout=STOP_LIMIT_S)
    if not work.done():
        log.error("attempt %s was told to stop %g s ago and still works", attempt, STOP_LIMIT_S)
    elif not work.cancelled() and (error := work.exception()) is not None:
        log.warning("attempt %s failed while it was stopped: %s", attempt, error)
