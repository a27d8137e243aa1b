"""`farm bench`: one attempt per matching phone, each under its own lease; a phone's fault is tried once more.

Performs over leasing and the supervisor. An attempt is worth something only while its lease lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from farm.core.device import DeviceView, Life
from farm.core.error_wire import error_to_wire
from farm.core.errors import FarmError, Fault, NoPhoneError, PhoneError, UserError
from farm.core.requests import Door, Lease, LeaseClass, LeaseRequest
from farm.core.selector import Selector
from farm.jobs.attempt import AttemptHost, SessionOffer, Task
from farm.jobs.choice import READY_OR_SOON, choose, is_usable
from farm.jobs.model import (
    AttemptRecord,
    AttemptState,
    BenchResult,
    BenchSpec,
    BenchTask,
    PhoneResult,
    identity_to_wire,
)
from farm.leasing.model import PhoneLostError

WORKER = "farm.worker.bench"
MOST_ATTEMPTS = 2  # a phone's fault is often a loose cable or a driver's bad day; twice the same is the phone
MENDING_LIMIT_S = 15.0  # cleaning and checking take a second; a longer story is the next attempt's to wait for
MOST_AT_ONCE = 8  # workers share the host: each compiles on one core and holds some 100 MB of its own

Progress = Callable[[str, str, Mapping[str, Any]], None]  # device, step, further facts


class NoTargetError(UserError):
    """The phone has no such compile target."""

    code = "no_target"


class Leases(Protocol):
    """Leasing, as a job needs it."""

    async def acquire(self, request: LeaseRequest) -> Lease:
        """Wait for a phone; cancelling withdraws the request."""
        ...

    def release(self, lease_id: str) -> None:
        """Give a phone back."""
        ...

    def taken_away(self, lease_id: str) -> asyncio.Future[FarmError]:
        """Told why when a lease is taken from its holder."""
        ...

    def abort(self, lease_id: str, reason: str) -> None:
        """The lease's session went wrong: the phone is cleaned and checked before anybody uses it again."""
        ...

    def new_match_key(self, lease_id: str, *, single_use: bool) -> str:
        """A key that opens a session at the gate."""
        ...


class Devices(Protocol):
    """The fleet, as a job needs it."""

    def views(self) -> tuple[DeviceView, ...]:
        """Every device."""
        ...

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view; returns the function that ends it."""
        ...


class Workers(Protocol):
    """The supervisor, as a job needs it."""

    async def run(self, toolchain: str, task: Task, host: AttemptHost) -> Mapping[str, Any]:
        """Run one attempt."""
        ...

    def cache_folder(self, toolchain: str) -> Path:
        """Where workers keep compiled libraries."""
        ...

    def versions(self, toolchain: str) -> Mapping[str, str]:
        """Versions in a toolchain."""
        ...


@dataclass(slots=True)
class _Run:
    """One job under way."""

    id: str
    spec: BenchSpec
    user: str
    progress: Progress
    spare: list[DeviceView] = field(default_factory=list)


@dataclass(slots=True)
class _Attempt:
    """One try of a run on one phone; its fence is known once it has the lease."""

    run: _Run
    name: str
    view: DeviceView
    started_at: datetime
    fence: int = 0

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:
        self.run.progress(self.view.name, step, fields)

    def record(self, state: AttemptState, error: Mapping[str, object] | None = None) -> AttemptRecord:
        now = datetime.now(UTC)
        return AttemptRecord(self.name, self.run.id, self.view.name, self.fence, state, self.started_at, now, error)


@dataclass(slots=True)
class _Host:
    """What one attempt's worker may ask for: sessions under its lease."""

    leases: Leases
    lease: Lease
    gate: Callable[[], tuple[str, int]]
    attempt: _Attempt

    async def open_session(self) -> SessionOffer:
        host, port = self.gate()
        return SessionOffer(host, port, self.leases.new_match_key(self.lease.id, single_use=True))

    async def abort_session(self, reason: str) -> None:
        self.leases.abort(self.lease.id, reason)

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:
        self.attempt.progressed(step, fields)


class BenchRunner:
    """Runs bench jobs. `run` may be called for several jobs at once."""

    def __init__(
        self,
        *,
        leases: Leases,
        devices: Devices,
        workers: Workers,
        gate: Callable[[], tuple[str, int]],
        toolchain_of: Callable[[DeviceView], str],
    ) -> None:
        """`gate`: where workers on this host reach the TVM door. `toolchain_of`: the one its bundle is paired with."""
        self._leases = leases
        self._devices = devices
        self._workers = workers
        self._gate = gate
        self._toolchain_of = toolchain_of
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    async def run(self, job_id: str, spec: BenchSpec, user: str, progress: Progress = lambda *_: None) -> BenchResult:
        """Run a job to its end. Cancelling it ends its workers and gives its phones back.

        Raises:
            UserError: the selector is wrong, or no phone can be used. What goes wrong on a phone is in its result.
        """
        choice = choose(spec, self._devices.views())
        run = _Run(job_id, spec, user, progress, list(choice.spare))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._on_phone(run, i, view)) for i, view in enumerate(choice.chosen)]
        return BenchResult(run.id, spec, tuple(task.result() for task in tasks))

    async def _on_phone(self, run: _Run, index: int, view: DeviceView) -> PhoneResult:
        """The result of one of the job's places: its phone's, or a stand-in's after the phone failed."""
        attempts: list[AttemptRecord] = []
        while True:
            name = f"{run.id}.{index}.{len(attempts) + 1}"
            attempt = _Attempt(run, name, view, datetime.now(UTC))
            try:
                report = await self._attempt(attempt)
            except FarmError as error:
                wire = error_to_wire(error)
                attempts.append(attempt.record(AttemptState.FAILED, wire))
                again = self._next(run, view) if _worth_another(error, len(attempts)) else None
                if again is None:
                    return self._result(run, view, attempts, error=wire)
                run.progress(view.name, f"failed: {error.message}; next: {again.name}", {})
                view = again
            else:
                attempts.append(attempt.record(AttemptState.DONE))
                return self._result(run, view, attempts, report=report)

    def _next(self, run: _Run, failed: DeviceView) -> DeviceView | None:
        """A phone for another attempt: a stand-in, else the one that failed, unless nothing is to be had of it."""
        candidates = [self._current(view) for view in (*run.spare, failed)]
        chosen = next((view for view in candidates if is_usable(view)), None)
        run.spare = [view for view in run.spare if chosen is None or view.name != chosen.name]
        return chosen

    async def _attempt(self, attempt: _Attempt) -> Mapping[str, Any]:
        """One attempt's report. It ends at once when the phone is lost, whether it waits for the phone or has it."""
        device = attempt.view.name
        try:
            return await _unless(self._lost(device), self._placed(attempt))
        except PhoneLostError:
            raise
        except PhoneError as error:
            # A pulled cable breaks the session first and is noticed a moment later: say what it really was.
            lost = await self._lost_while_mending(device)
            if lost is None:
                raise
            lost.evidence = error.message
            raise lost from error

    async def _placed(self, attempt: _Attempt) -> Mapping[str, Any]:
        # The place comes first: a phone in hand that waits for a worker is a phone nobody can use.
        async with self._places:
            attempt.progressed("waiting for the phone", {})
            lease = await self._acquire(attempt)
            attempt.fence = lease.fence
            try:
                # What a worker reports after its lease was taken away is void: the phone may be another's by then.
                return await _unless(self._leases.taken_away(lease.id), self._worked(attempt, lease))
            finally:
                self._leases.release(lease.id)

    async def _worked(self, attempt: _Attempt, lease: Lease) -> Mapping[str, Any]:
        # A phone that was on its way when the job came has its identity and bundle only now.
        view = self._current(attempt.view)
        task = self._task(attempt, view)
        return await self._workers.run(self._toolchain_of(view), task, _Host(self._leases, lease, self._gate, attempt))

    async def _lost(self, device: str) -> FarmError:
        view = await self._seen(device, lambda view: view.life not in READY_OR_SOON)
        return _lost_error(view)

    async def _lost_while_mending(self, device: str) -> PhoneLostError | None:
        """What became of a phone that failed: None when it is fit again, or still being mended after a while."""
        try:
            async with asyncio.timeout(MENDING_LIMIT_S):
                view = await self._seen(device, lambda view: view.life is Life.READY or view.life not in READY_OR_SOON)
        except TimeoutError:
            return None
        return None if view.life is Life.READY else _lost_error(view)

    async def _seen(self, device: str, wanted: Callable[[DeviceView], bool]) -> DeviceView:
        """The device's view as soon as it is `wanted`."""
        seen: asyncio.Future[DeviceView] = asyncio.get_running_loop().create_future()

        def look(view: DeviceView) -> None:
            if view.name == device and not seen.done() and wanted(view):
                seen.set_result(view)

        unsubscribe = self._devices.subscribe(look)
        try:
            for view in self._devices.views():
                look(view)
            return await seen
        finally:
            unsubscribe()

    async def _acquire(self, attempt: _Attempt) -> Lease:
        run, view = attempt.run, attempt.view
        request = LeaseRequest(
            Selector.parse(run.spec.selector), run.user, Door.JOB, lease_class=LeaseClass.BENCH, device=view.name
        )
        try:
            async with asyncio.timeout(run.spec.timeout_s):
                return await self._leases.acquire(request)
        except TimeoutError as error:
            raise NoPhoneError(
                f"{view.name} was not free within {run.spec.timeout_s:g} s", hint=f"farm explain {view.name} says why"
            ) from error

    def _task(self, attempt: _Attempt, view: DeviceView) -> Task:
        spec, targets = attempt.run.spec, view.identity.targets if view.identity else {}
        if spec.target not in targets:
            raise NoTargetError(
                f"{view.name} has no target {spec.target!r}", hint=f"its targets: {', '.join(targets) or 'none'}"
            )
        task = BenchTask(
            model=spec.model,
            name=spec.name,
            inputs=spec.inputs,
            device=view.name,
            target_name=spec.target,
            target=targets[spec.target],
            repeat=spec.repeat,
            number=spec.number,
            min_repeat_ms=spec.min_repeat_ms,
            cache=str(self._workers.cache_folder(self._toolchain_of(view))),
        )
        return Task(attempt.name, attempt.fence, WORKER, task.to_wire(), spec.timeout_s)

    def _current(self, view: DeviceView) -> DeviceView:
        return next((now for now in self._devices.views() if now.name == view.name), view)

    def _result(
        self,
        run: _Run,
        view: DeviceView,
        attempts: Sequence[AttemptRecord],
        *,
        report: Mapping[str, Any] | None = None,
        error: Mapping[str, object] | None = None,
    ) -> PhoneResult:
        view = self._current(view)
        identity, toolchain = view.identity, self._toolchain_of(view)
        return PhoneResult(
            device=view.name,
            ok=report is not None,
            target=run.spec.target,
            soc=(identity.soc.name or identity.soc.model) if identity else "",
            gpu=identity.gpu.model if identity else "",
            attempts=tuple(attempts),
            identity=identity_to_wire(identity),
            bundle=view.bundle,
            toolchain=toolchain,
            versions=dict(self._workers.versions(toolchain)),
            temperature_c=view.temperature_c,
            report=report or {},
            error=error,
        )


T = TypeVar("T")


async def _unless(trouble: Awaitable[FarmError], work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`, or the error that `trouble` returns if that comes first; `work` is then cancelled."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(trouble)
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            raise watching.result()
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def _lost_error(view: DeviceView) -> PhoneLostError:
    return PhoneLostError(
        f"{view.name} is {view.life}" + (f": {view.reason}" if view.reason else ""),
        hint=f"farm explain device {view.name}",
    )


def _worth_another(error: FarmError, attempts: int) -> bool:
    """A phone's fault is tried once more; wrong numbers too. A user's never, and the host is the same next time."""
    return attempts < MOST_ATTEMPTS and error.fault is Fault.PHONE
