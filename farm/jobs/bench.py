"""`farm bench`: one attempt per matching phone, each under its own lease; a phone's fault is tried once more.

`choose` is pure; `BenchRunner` performs over leasing and the supervisor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from farm.core.device import DeviceView, Life, Service
from farm.core.error_wire import error_to_wire
from farm.core.errors import FarmError, Fault, NoPhoneError, UserError
from farm.core.requests import Door, Lease, LeaseClass, LeaseRequest
from farm.core.selector import Selector
from farm.jobs.attempt import AttemptHost, SessionOffer, Task
from farm.jobs.model import (
    AttemptRecord,
    AttemptState,
    BenchResult,
    BenchSpec,
    BenchTask,
    PhoneResult,
    identity_to_wire,
)

WORKER = "farm.worker.bench"
MOST_ATTEMPTS = 2  # a phone's fault is often a loose cable or a driver's bad day; twice the same is the phone
MOST_AT_ONCE = 8  # workers share the host: each compiles on one core and holds some 100 MB of its own

# A phone in one of these states is ready, or will be without anybody's help.
READY_OR_SOON = frozenset(
    {Life.READY, Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING}
)

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

    async def revoke(self, target: str, reason: str) -> None:
        """End a lease and cut its session."""
        ...

    def new_match_key(self, lease_id: str, *, single_use: bool) -> str:
        """A key that opens a session at the gate."""
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


@dataclass(frozen=True, slots=True)
class Choice:
    """Which phones a job runs on, and which others could stand in."""

    chosen: tuple[DeviceView, ...]
    spare: tuple[DeviceView, ...]


def choose(spec: BenchSpec, devices: Sequence[DeviceView]) -> Choice:
    """The phones a spec means: every usable match, or the first `devices` of them with ready ones first.

    Raises:
        SelectorError: the selector does not follow the grammar.
        NoPhoneError: none matches (the nearest is named), or none of those is usable now (each reason is said).
    """
    selector = Selector.parse(spec.selector)
    adopted = [view for view in devices if view.adopted]
    matching = [view for view in adopted if selector.matches(view.labels, view.aliases)]
    strangers = [view.name for view in devices if view.life is Life.NEW]
    if strangers and not adopted:
        raise NoPhoneError(
            f"no phone matches {selector}: none is adopted yet", hint=f"let one in: farm device adopt {strangers[0]}"
        )
    if not matching:
        raise selector.no_match((view.labels, view.aliases) for view in adopted)
    usable = [view for view in matching if view.service is Service.IN and view.life in READY_OR_SOON]
    if not usable:
        raise NoPhoneError(
            f"no phone that matches {selector} can be used now: {'; '.join(map(_why_not, matching))}",
            hint="`farm device list` shows every phone's state",
        )
    usable.sort(key=lambda view: (not view.leasable, view.name))
    most = len(usable) if spec.devices is None else spec.devices
    return Choice(tuple(usable[:most]), tuple(usable[most:]))


def _why_not(view: DeviceView) -> str:
    state = view.life if view.service is Service.IN else view.service
    return f"{view.name} is {state}" + (f" ({view.reason})" if view.reason else "")


@dataclass(slots=True)
class _Host:
    """What one attempt's worker may ask for: sessions under its lease."""

    leases: Leases
    lease: Lease
    gate: Callable[[], tuple[str, int]]
    progress: Progress

    async def open_session(self) -> SessionOffer:
        host, port = self.gate()
        return SessionOffer(host, port, self.leases.new_match_key(self.lease.id, single_use=True))

    async def abort_session(self, reason: str) -> None:
        await self.leases.revoke(self.lease.id, reason)

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:
        self.progress(self.lease.device, step, fields)


@dataclass(slots=True)
class _Run:
    """One job under way."""

    id: str
    spec: BenchSpec
    user: str
    progress: Progress
    spare: list[DeviceView] = field(default_factory=list)


class BenchRunner:
    """Runs bench jobs. `run` may be called for several jobs at once."""

    def __init__(
        self,
        *,
        leases: Leases,
        devices: Callable[[], tuple[DeviceView, ...]],
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
        choice = choose(spec, self._devices())
        run = _Run(job_id, spec, user, progress, list(choice.spare))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._on_phone(run, i, view)) for i, view in enumerate(choice.chosen)]
        return BenchResult(run.id, spec, tuple(task.result() for task in tasks))

    async def _on_phone(self, run: _Run, index: int, view: DeviceView) -> PhoneResult:
        """The result of one of the job's places: its phone's, or a stand-in's after the phone failed."""
        attempts: list[AttemptRecord] = []
        while True:
            name = f"{run.id}.{index}.{len(attempts) + 1}"
            view = self._current(view)
            record = AttemptRecord(name, run.id, view.name, 0, AttemptState.RUNNING, datetime.now(UTC))
            try:
                fence, report = await self._attempt(run, name, view)
            except FarmError as error:
                wire = error_to_wire(error)
                attempts.append(_ended(record, AttemptState.FAILED, wire))
                if not _worth_another(error, len(attempts)):
                    return self._result(run, view, attempts, error=wire)
                run.progress(view.name, f"failed: {error.message}; trying again", {})
                view = run.spare.pop(0) if run.spare else view
            else:
                attempts.append(_ended(record, AttemptState.DONE, None, fence))
                return self._result(run, view, attempts, report=report)

    async def _attempt(self, run: _Run, name: str, view: DeviceView) -> tuple[int, Mapping[str, Any]]:
        run.progress(view.name, "waiting for the phone", {})
        lease = await self._acquire(run, view)
        try:
            async with self._places:
                # A phone that was on its way when the job came has its identity and bundle only now.
                task = self._task(run, name, self._current(view), lease.fence)
                host = _Host(self._leases, lease, self._gate, run.progress)
                return lease.fence, await self._workers.run(self._toolchain_of(view), task, host)
        finally:
            self._leases.release(lease.id)

    async def _acquire(self, run: _Run, view: DeviceView) -> Lease:
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

    def _task(self, run: _Run, name: str, view: DeviceView, fence: int) -> Task:
        spec, targets = run.spec, view.identity.targets if view.identity else {}
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
        return Task(name, fence, WORKER, task.to_wire(), spec.timeout_s)

    def _current(self, view: DeviceView) -> DeviceView:
        return next((now for now in self._devices() if now.name == view.name), view)

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


def _ended(
    record: AttemptRecord, state: AttemptState, error: Mapping[str, object] | None, fence: int = 0
) -> AttemptRecord:
    return replace(record, state=state, error=error, fence=fence, ended_at=datetime.now(UTC))


def _worth_another(error: FarmError, attempts: int) -> bool:
    """A phone's fault is tried once more; wrong numbers too. A user's never, and the host is the same next time."""
    return attempts < MOST_ATTEMPTS and error.fault is Fault.PHONE
