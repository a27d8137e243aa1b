"""One attempt from its first step to its outcome: its executor's context, its work, and the causes that end it sooner.

A report counts only while its lease lasts: what comes after the lease was revoked is void. Nothing is written here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from farm.common.errors import HOST_STANDS, JOB_LACKS, Code, FarmError, HostError, PhoneError, error_to_wire
from farm.common.events import EventLog
from farm.common.limits import MAX_RESULT_BYTES
from farm.common.os_errors import hint_for, host_errno
from farm.devices.fleet import Fleet
from farm.head.planning import request_of
from farm.head.queue.model import Error, Outcome
from farm.head.queue.retry import broken_off, crashes
from farm.jobs.attempt import AttemptTimeoutError, YieldedError
from farm.jobs.executor import (
    AttemptContext,
    Executor,
    FailedWithResultError,
    Progress,
)
from farm.jobs.lab_devices import LabDevices
from farm.jobs.pool import Pool
from farm.jobs.zygote import START_LIMIT_S, ToolchainError
from farm.leasing.leases import Leasing
from farm.leasing.model import PhoneLostError, view_when
from farm.model.device import DeviceView, Life
from farm.model.job import FINAL, Attempt, AttemptState, Job
from farm.model.requests import Lease, NoSuchLeaseError
from farm.model.specs import Kinds, spec_from_wire
from farm.store.jobs import JobTable

UNLISTED_LIMIT_S = 2.0  # adb lists a pulled phone as offline, if at all, for some milliseconds
RECOVERY_LIMIT_S = 15.0  # cleaning and checking take a second; a longer recovery is left to the next attempt
# Beyond the attempt's limit, which is its worker's: the supervisor counts it from the worker's start and ends it first.
GRACE_S = START_LIMIT_S + 2.0
READ_AGAIN_S = 1.0  # between tries while no database answers
HOST_HINT = "`farm doctor` looks at this host; the daemon's log has the trace"
STOP_LIMIT_S = 20.0  # a worker that ignores SIGTERM is killed after a few seconds; this bounds a bug

log = logging.getLogger(__name__)


class AttemptRun:
    """One attempt under its lease. `run` once; `stop` may be called meanwhile."""

    def __init__(self, job: Job, attempt: Attempt, lease: Lease, contexts: AttemptContextFactory) -> None:
        self.job = job
        self.attempt = attempt
        self.lease = lease
        self._contexts = contexts
        self._leases = contexts.leases
        self._devices = contexts.devices
        self.pool = Pool(job, lease, contexts.leases, contexts.devices, contexts.others) if attempt.pooled else None
        self._step = "starting"
        self._began_s = asyncio.get_running_loop().time()
        self._stop: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def stop(self, state: AttemptState, error: Error | None = None) -> None:
        """End it so, unless it has an end already."""
        if not self._stop.done():
            self._stop.set_result(Outcome(state, error))

    def release(self, reason: str) -> None:
        """Give back whatever it has."""
        if self.pool is not None:
            self.pool.close(reason)
        else:
            self._leases.release(self.lease.id, reason)

    async def waits(self) -> str:
        """Why it works with fewer phones than it should have; "" when it does not."""
        return await self.pool.waits() if self.pool is not None else ""

    def stop_with_daemon(self) -> None:
        """The daemon stops: a person's lease continues under the next one, all else is interrupted."""
        if self._personal():
            self.stop(AttemptState.RUNNING)
        else:
            self.stop(*broken_off(self._contexts.kinds, self.job, HostError(code=Code.DAEMON_STOPPED)))

    async def run(self, executor: Executor | None) -> Outcome:
        """Do the work; returns an outcome that can be stored, whatever happens.

        `executor` is the one of the job's kind, None when there is none.
        """
        try:
            return _storable(await self._work(executor))
        except Exception as error:  # noqa: BLE001
            return self._failed_inside(error)
        finally:
            if self.pool is not None:  # before the end is written: no phone may be granted to a job that is over
                self.pool.settle()

    async def _work(self, executor: Executor | None) -> Outcome:
        try:
            context = self._contexts.create(self.job, self.attempt, self.lease)
            if self.pool is not None:
                self.pool.begin(partial(_pool_changed, context))
                revoked: asyncio.Future[FarmError] = asyncio.get_running_loop().create_future()  # no one phone's loss
            else:
                revoked = self._when_revoked()
            context = replace(
                context,
                progress=self._remembering_step(context.progress),
                pool=self.pool,
                stopped_for_good=self._stopped_for_good,
            )
            if executor is None:
                raise HostError(f"there is no way to run a {self.job.kind} job here", Code.NO_SUCH_KIND)
            work = asyncio.ensure_future(_start(executor, context))
        except FarmError as error:
            return _failed(error)
        limit_s = None if context.spec.personal else self.job.timeout_s
        patience_s = None if limit_s is None else limit_s + GRACE_S
        try:
            await asyncio.wait((work, revoked, self._stop), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if revoked.done():
                return await self._outcome_of_loss(revoked.result(), work)
            if work.done():
                return await self._outcome_of_work(work, revoked)
            if self._stop.done():
                return self._stop.result()
            message = f"no result after {patience_s:g} s, of which {limit_s:g} s may be work; it was at: {self._step}"
            return _failed(AttemptTimeoutError(message, hint="a longer --timeout, or a smaller job"))
        finally:
            await _stop_work(work, self.attempt.id)

    def _when_revoked(self) -> asyncio.Future[FarmError]:
        try:
            return self._leases.when_revoked(self.lease.id)
        except NoSuchLeaseError as error:  # between the attempt's commit and this moment; the job is not at fault
            raise PhoneLostError(f"the lease of {self.lease.device} was over before the work began") from error

    def _personal(self) -> bool:
        kind = self._contexts.kinds.get(self.job.kind)
        return kind is not None and kind.personal

    def _stopped_for_good(self) -> bool:
        """Whether it was stopped for good: not by a daemon that comes back, nor for others."""
        return self._stop.done() and self._stop.result().state in (AttemptState.CANCELLED, AttemptState.FAILED)

    def _remembering_step(self, publish: Progress) -> Progress:
        """Remembers the step, for questions why the attempt takes so long."""

        def progress(step: str, **facts: Any) -> None:
            self._step = step
            publish(step, **facts)

        return progress

    async def _outcome_of_loss(self, revoked: FarmError, work: asyncio.Future[Mapping[str, Any]]) -> Outcome:
        """The lease was revoked; no try of the job's own where its phone went with the adb server or a hub."""
        error = _with_evidence(await self._final_loss(revoked), work)
        if error.code != Code.HOST_LINK_LOST or self._personal():  # a person's lease is over with its phone
            return _failed(error)
        state, wire = broken_off(self._contexts.kinds, self.job, error)
        return Outcome(state, wire, crashes=1 + await self._contexts.crashes(self.job))

    async def _outcome_of_work(
        self, work: asyncio.Future[Mapping[str, Any]], revoked: asyncio.Future[FarmError]
    ) -> Outcome:
        try:
            return Outcome(AttemptState.DONE, result=work.result())
        except YieldedError:
            return Outcome(AttemptState.YIELDED)
        except PhoneError as error:
            if self._contexts.gate_gone_at() >= self._began_s:
                return _failed(HostError(code=Code.GATE_GONE, hint="see `farm doctor`", evidence=error.message))
            # A pulled cable breaks the session first and is noticed a moment later: name the real cause.
            lost = None if self.pool is not None else await self._loss_while_recovering(revoked)
            return _failed(error) if lost is None else await self._outcome_of_loss(lost, work)
        except FailedWithResultError as error:
            return Outcome(AttemptState.FAILED, error_to_wire(error), result=error.result)
        except FarmError as error:
            return _failed(error)
        except Exception as error:  # noqa: BLE001 - the executor's bug must not take the others' attempts down
            return self._failed_inside(error)

    def _failed_inside(self, error: Exception) -> Outcome:
        if not host_errno(error):  # what the host lacks is no bug, and `OperatorCauses` tells it once
            log.error("attempt %s failed inside farm", self.attempt.id, exc_info=error)
        return _failed(error)

    async def _loss_while_recovering(self, revoked: asyncio.Future[FarmError]) -> FarmError | None:
        """Why the lease of a phone that failed was revoked; None when it is ready again, or not yet after a while."""
        with view_when(self._devices, self.lease.device, lambda life: life is Life.READY) as ready:
            await asyncio.wait(
                (revoked, ready, self._stop), timeout=RECOVERY_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
        return revoked.result() if revoked.done() else None

    async def _final_loss(self, revoked: FarmError) -> FarmError:
        """Why the lease was revoked: a phone that adb lists as offline may be one whose cable was pulled just now."""
        if not isinstance(revoked, PhoneLostError):
            return revoked
        with view_when(self._devices, self.lease.device, lambda life: life is not Life.OFFLINE) as now:
            await asyncio.wait((now, self._stop), timeout=UNLISTED_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        return PhoneLostError.of(now.result()) if now.done() and now.result().life is Life.GONE else revoked


def _pool_changed(context: AttemptContext, step: str, facts: Mapping[str, Any]) -> None:
    context.progress(step, **facts)
    context.log(step)


def _start(executor: Executor, context: AttemptContext) -> Coroutine[Any, Any, Mapping[str, Any]]:
    """A new attempt, or one that the daemon before this one began."""
    return executor.resume(context) if context.attempt.facts else executor.run(context)


def _with_evidence(revoked: FarmError, work: asyncio.Future[Any]) -> FarmError:
    """Why a lease was revoked; an error of the work by then is its evidence."""
    if work.done() and not work.cancelled() and (failed := work.exception()) is not None:
        revoked.evidence = revoked.evidence or str(failed)
    return revoked


def _storable(outcome: Outcome) -> Outcome:
    """The outcome, or a failure in its place when its result is no JSON or too large."""
    if outcome.result is None:
        return outcome
    try:
        size = len(json.dumps(dict(outcome.result), allow_nan=False))
        if size > MAX_RESULT_BYTES:
            raise ValueError(f"it has {size:,} bytes as JSON; at most {MAX_RESULT_BYTES:,} are kept")
    except (TypeError, ValueError, RecursionError) as error:
        refused = FarmError(f"the result cannot be kept: {error}", Code.RESULT_NOT_KEPT, hint="this is a bug in farm")
        return Outcome(AttemptState.FAILED, outcome.error or error_to_wire(refused))
    return outcome


def _failed(error: BaseException) -> Outcome:
    if isinstance(error, OSError) and error.errno is not None:  # a disk, a folder that is gone, no descriptors
        code, hint = (Code.HOST_IMPAIRED, hint_for(error.errno)) if host_errno(error) else (None, HOST_HINT)
        error = HostError(f"this host failed the attempt: {error}", code, hint=hint)
    if isinstance(error, FarmError) and error.code in HOST_STANDS | JOB_LACKS:
        error.hint = f"an operator of the host has to mend that: {error.hint}".removesuffix(": ")
    # Without a toolchain nothing was begun: the queue waits for it, however long it takes.
    state = AttemptState.INTERRUPTED if isinstance(error, ToolchainError) else AttemptState.FAILED
    return Outcome(state, error_to_wire(error))


async def _stop_work(work: asyncio.Future[Any], attempt: str) -> None:
    """Make sure that the executor's work is over, whatever it was."""
    if work.done():
        return
    work.cancel()
    await asyncio.wait((work,), timeout=STOP_LIMIT_S)
    if not work.done():
        log.error("attempt %s was stopped %g s ago and still works", attempt, STOP_LIMIT_S)
    elif not work.cancelled() and (error := work.exception()) is not None:
        log.warning("attempt %s failed while it was stopped: %s", attempt, error)


class AttemptContextFactory:
    """Builds `AttemptContext` for attempts."""

    def __init__(
        self,
        *,
        kinds: Kinds,
        jobs: JobTable,
        events: EventLog,
        store_log: Callable[..., None],
        leases: Leasing,
        devices: Fleet,
        others: LabDevices | None = None,
        gate_gone_at: Callable[[], float] = lambda: -math.inf,
    ) -> None:
        """Keep the parts.

        Args:
            kinds: of jobs.
            jobs: the store's.
            events: get the progress of attempts.
            store_log: `AttemptLogs.store`.
            leases: of this host.
            devices: of this host.
            others: devices of other hosts; None: there are none.
            gate_gone_at: when the gate was last away, in the loop's time.
        """
        self.kinds = kinds
        self._jobs = jobs
        self._events = events
        self._store_log = store_log
        self.leases = leases
        self.devices = devices
        self.others = others or LabDevices()
        self.gate_gone_at = gate_gone_at

    def create(self, job: Job, attempt: Attempt, lease: Lease) -> AttemptContext:
        """The context for the executor of that attempt.

        Raises:
            UserError: the job's spec is of another release and cannot be read.
        """
        return AttemptContext(
            job=job,
            spec=spec_from_wire(self.kinds, job.spec),
            attempt=attempt,
            lease=lease,
            view=self._view(lease.device),
            progress=partial(self._progress, attempt),
            log=partial(self._store_log, attempt),
            save_facts=partial(self._jobs.save_facts, attempt.id, attempt.fence),
            yield_wanted=partial(self.leases.yield_wanted, lease.id),
        )

    async def crashes(self, job: Job) -> int:
        """Under how many of its attempts the daemon, the adb server or a hub died; waits while no database answers."""
        while True:
            try:
                return crashes(await self._jobs.read(self._jobs.attempts, job.id))
            except HostError as error:  # the writer reports it
                log.debug("the attempts of %s cannot be read now: %s", job.id, error.message)
                await asyncio.sleep(READ_AGAIN_S)

    def _view(self, device: str) -> DeviceView:
        # After a restart a person's lease continues before its phone is listed again.
        unseen = DeviceView(device, "", Life.GONE)
        return next((view for view in self.devices.views() if view.name == device), unseen)

    def _progress(self, attempt: Attempt, step: str, /, **facts: Any) -> None:
        facts |= {"step": step, "device": attempt.device, "attempt": attempt.number}
        self._events.publish("job.progress", attempt.job, **facts)


async def salvage(job: Job, executor: Executor | None, jobs: JobTable, contexts: AttemptContextFactory) -> None:
    """Before a job that does not run is written as ended; whatever happens here, it ends."""
    if job.state not in FINAL or job.attempts == 0 or executor is None:
        return
    try:
        last = (await jobs.read(jobs.attempts, job.id))[-1]
        # long over
        lease = Lease(last.lease, last.device, last.fence, request_of(contexts.kinds, job, frozenset()), granted_at=0.0)
        await executor.salvage(contexts.create(job, last, lease))
    except Exception:
        log.exception("what attempts of %s left could not be kept", job.id)
