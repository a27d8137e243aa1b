"""The base of executors of all kinds: the daemon's parts, work on leased phones, the state of a phone that measures."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field

from farm.adb.client import AdbClient
from farm.bundle.model import Bundle
from farm.bundle.versions import PAIR_HINT, checked, of_packages
from farm.common.errors import FarmError, ProtocolError
from farm.common.events import EventLog
from farm.common.limits import MAX_ARTIFACTS, MAX_CORES
from farm.common.verbs import Sha256, verb
from farm.control.artifacts import ArtifactFolder
from farm.devices.fleet import Fleet
from farm.devices.identity.targets import target_on
from farm.devices.quiesce_policy import Level, QuiesceResult, describe, not_quiet
from farm.devices.server.session_cores import place_session
from farm.jobs.attempt import AttemptHost, SessionOffer, Task, Text
from farm.jobs.executor import AttemptContext, Executor
from farm.jobs.poison import PoisonLedger
from farm.jobs.supervisor import Supervisor
from farm.leasing.leases import Leasing
from farm.model.device import DeviceView, Life
from farm.model.job import Attempt
from farm.model.placement import ThreadPlacement, placed
from farm.model.specs import EarlierBench, ModelSpec, ModelTask
from farm.store.artifacts import RecordSets

WORKER = "worker"  # the source of the log lines of workers
MAX_KILLS = 2  # of one artifact, reported by one attempt: enough to have it refused
MAX_CHECKED_ARTIFACTS = 1_000_000  # artifacts of one attempt
# A broken session is followed by a check within 2 s.
# The asking worker takes the daemon for dead after 15 s, so this must be shorter.
CHECK_WAIT_S = 10.0
# The states of a phone whose session broke while its RPC server lives and its link holds. After a lost link it passes
# through PROVISIONING or an earlier state, after the end of its server through STARTING: both may have other causes.
_LINK_KEPT_STATES = frozenset({Life.READY, Life.RECOVERING, Life.CHECKING})


@dataclass(frozen=True, slots=True)
class LeaseHost:
    """The daemon's side of one attempt's worker: sessions under its lease, and reports."""

    context: AttemptContext
    parts: ExecutorParts
    # The artifacts that this attempt has asked about, each with the kills that it reported: it may report no others.
    kills_seen: dict[str, int] = field(default_factory=dict, kw_only=True)

    async def open_session(self, lease: str) -> SessionOffer:  # noqa: ARG002 - the attempt has one lease
        """A way to the lease's phone, good for one session."""
        return self.offer(self.context.lease.id)

    def offer(self, lease: str) -> SessionOffer:
        """A way to that lease's phone, good for one session."""
        host, port = self.parts.gate()
        return SessionOffer(host, port, self.parts.leasing.new_match_key(lease, single_use=True))

    async def abort_session(self, lease: str, reason: str) -> None:  # noqa: ARG002 - the attempt has one lease
        """Have the session cut, and the phone cleaned and checked."""
        self.parts.leasing.abort(self.context.lease.id, reason)

    @verb("poison.check")
    async def check_poison(
        self, artifacts: Annotated[list[Sha256], Field(max_length=MAX_ARTIFACTS)]
    ) -> Mapping[str, Any]:
        """Those of the artifacts that are not run any more for the job's user."""
        if len(self.kills_seen) + len(artifacts) <= MAX_CHECKED_ARTIFACTS:
            for artifact in artifacts:
                self.kills_seen.setdefault(artifact, 0)
        poison = self.parts.poison
        return {"poisoned": sorted(await poison.read(poison.refused, artifacts, self.context.job.user))}

    @verb("poison.report")
    async def report_poison(
        self, artifact: Text, device: Text, what: Text, kills: Annotated[int, Field(ge=1, le=MAX_KILLS)] = 1
    ) -> None:
        """An artifact killed its process on a phone."""
        if device not in self.devices():
            raise ProtocolError(f"{device} is no phone of this attempt")
        await self._report_kills(artifact, device, what, kills)

    @verb("poison.suspect")
    async def suspect(self, artifact: Text, what: Text) -> Mapping[str, Any]:
        """Whether an artifact killed its process on the attempt's phone."""
        lease = self.context.lease
        killed = await process_killed(self.parts.leasing, self.parts.fleet, lease.id, lease.device)
        if killed:
            await self._report_kills(artifact, lease.device, what, 1)
        return {"killed": killed}

    def devices(self) -> Collection[str]:
        """The phones that the attempt has had."""
        return (self.context.lease.device,)

    async def _report_kills(self, artifact: str, device: str, what: str, kills: int) -> None:
        if artifact not in self.kills_seen:
            raise ProtocolError("a worker reports only artifacts that it has asked about")
        if self.kills_seen[artifact] + kills > MAX_KILLS:
            raise ProtocolError(f"an attempt reports at most {MAX_KILLS} kills by one artifact")
        self.kills_seen[artifact] += kills
        job = self.context.job
        # What a worker says is its user's word: models are programs.
        await self.parts.poison.report(artifact, device, what, kills, user=job.user, job=job.id, seen=False)

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:
        """Publish the step, and log it once: reports of the interval so far repeat the step that they belong to."""
        self.context.progress(step, **fields)
        if "timing" not in fields:
            self.context.log(step, source=WORKER)

    def logged(self, text: str, level: str) -> None:
        """Keep the line in the attempt's log."""
        self.context.log(text, level, source=WORKER)

    def yield_wanted(self) -> bool:
        """Whether others wait for the phone."""
        return self.context.yield_wanted()


class PhoneWork:
    """Runs attempts' workers on the phones they have leased."""

    def __init__(
        self, workers: Supervisor, toolchain_of: Callable[[DeviceView], str], bundle: Callable[[str], Bundle]
    ) -> None:
        """`toolchain_of`: the toolchain paired with a phone's bundle. `bundle`: a bundle by its hash, in a thread."""
        self._workers = workers
        self._toolchain_of = toolchain_of
        self._bundle = bundle

    async def run(
        self,
        context: AttemptContext,
        worker: str,
        payload: Mapping[str, Any],
        host: AttemptHost,
        *,
        limit_s: float | None = None,
    ) -> dict[str, Any]:
        """The report of a worker (the module whose `main` runs), with the known facts about its phone.

        `host`: answers the worker. `limit_s`: of the worker; None: its job's.
        """
        toolchain, timeout_s = self._toolchain_of(context.view), limit_s or context.job.timeout_s
        await self._check_versions(context, toolchain, host)
        task = Task(context.attempt.id, context.attempt.fence, worker, payload, timeout_s, context.job.user)
        report = await self._workers.run(toolchain, task, host)
        return {**report, **self._about(context.view, toolchain)}

    async def _check_versions(self, context: AttemptContext, toolchain: str, host: AttemptHost) -> None:
        """Refuse a toolchain that no longer fits the phone's bundle: its packages may have changed since."""
        view = context.view
        if not view.bundle:
            return
        packages = await self._workers.versions_when_up(toolchain, host)
        bundle = await asyncio.to_thread(self._bundle, view.bundle)
        what = f"toolchain {toolchain} with bundle {bundle.name or bundle.short_hash} on {view.name}"
        if warning := checked(of_packages(packages), bundle.versions, what, PAIR_HINT):
            context.log(warning, "warning")

    def target(self, context: AttemptContext, text: str) -> Any:
        """The compile target that a spec's text means on the attempt's phone: a TVM tag or target dict."""
        identity = context.view.identity
        return target_on(text, identity.targets if identity else {}, context.view.name)

    def cache(self, context: AttemptContext) -> str:
        """Where the worker keeps compiled libraries and reference outputs of the job's user."""
        return str(self._workers.cache_folder(self._toolchain_of(context.view), context.job.user))

    def _about(self, view: DeviceView, toolchain: str) -> dict[str, Any]:
        return {
            **about_phone(view),
            "bundle": view.bundle,
            "toolchain": toolchain,
            "versions": dict(self._workers.versions(toolchain)),
            "temperature_c": view.temperature_c,
        }


def about_phone(view: DeviceView) -> dict[str, Any]:
    """The fields of every result that name its phone."""
    identity = view.identity
    return {
        "device": view.name,
        "soc": (identity.soc.model or identity.soc.name) if identity else "",  # as `farm status` has it
        "gpu": identity.gpu.model if identity else "",
        "identity": {name: fact for name, fact in asdict(identity).items() if name != "raw"} if identity else {},
    }


async def process_killed(
    leases: Leasing, devices: Fleet, lease_id: str, device: str, *, wait_s: float = CHECK_WAIT_S
) -> bool:
    """Whether the phone's side ended the lease's session, and the phone passed its check with its link kept.

    This distinguishes a killed process from a lost phone.
    """
    changed, lost = asyncio.Event(), False

    def check(view: DeviceView) -> None:
        nonlocal lost
        if view.name == device:
            lost = lost or view.life not in _LINK_KEPT_STATES
            changed.set()

    def life() -> Life:
        return next((view.life for view in devices.views() if view.name == device), Life.GONE)

    unsubscribe = devices.subscribe(check)
    try:
        async with asyncio.timeout(wait_s):
            if not await leases.ended_by_phone(lease_id):
                return False
            while not lost and (now := life()) is not Life.READY and now in _LINK_KEPT_STATES:
                changed.clear()
                await changed.wait()
            return not lost and life() is Life.READY
    except TimeoutError:
        return False
    finally:
        unsubscribe()


# Reads a phone by its serial: fields of farm.measure.conditions.PhoneCondition, None for an unknown one.
# Raises FarmError when the phone does not answer.
ReadConditions = Callable[[str], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class MeasuringHost(LeaseHost):
    """The daemon's side of the worker of a measurement."""

    quiet: DeviceQuiescer

    async def open_session(self, lease: str) -> SessionOffer:
        """Make the phone quiet, then offer a way to it. Not earlier: compiling for it may have taken minutes."""
        await self.quiet.begin()
        return await LeaseHost.open_session(self, lease)

    @verb("place")
    async def place(self, mask: Annotated[int, Field(ge=0, lt=1 << MAX_CORES)], top_app: bool) -> None:
        """Set the cores of the session."""
        await place_session(self.parts.client, self.context.view.serial, mask, top_app=top_app)

    @verb("conditions")
    async def conditions(self) -> Mapping[str, Any]:
        """Those of the phone that can be read, {} when it does not answer."""
        try:
            return await self.parts.read_conditions(self.context.view.serial)
        except FarmError as error:
            self.context.log(f"the phone's condition is not known: {error.message}", "warning")
            return {}


def placement_on(spec: Any, view: DeviceView) -> tuple[ThreadPlacement, ...]:
    """What the fields `threads`, `cores` and `top_app` of a spec mean on a phone; () where none is given."""
    if not (spec.threads or spec.cores or spec.top_app):
        return ()
    clusters = view.identity.cpu if view.identity else ()
    return (placed(spec.threads, spec.cores, spec.top_app, clusters, view.name),)


def epoch_of(view: DeviceView) -> str:
    """The identity epoch a phone is in: its build fingerprint, which every system update changes."""
    return view.identity.fingerprint if view.identity else ""


async def measured(
    work: PhoneWork, context: AttemptContext, worker: str, payload: Mapping[str, Any], host: MeasuringHost
) -> Mapping[str, Any]:
    """The report of a worker that measures, with the phone in its certificate."""
    try:
        report = {"target": payload["spec"].get("target"), **await work.run(context, worker, payload, host)}
    finally:
        await host.quiet.end()
    certificate = certified(report, context.view)
    certificate |= {"quiesce": host.quiet.to_wire(), "notes": [*certificate.get("notes", ()), *host.quiet.notes()]}
    return {**report, "certificate": certificate}


def certified(report: Mapping[str, Any], view: DeviceView) -> dict[str, Any]:
    """A report's certificate, with the phone in it."""
    phone = {name: report[name] for name in ("device", "soc", "gpu", "bundle", "toolchain")}
    tvm = report["versions"].get("apache-tvm", "")
    return {"tvm": tvm, **report["certificate"], **phone, "epoch": epoch_of(view)}


def quiet_lease(parts: ExecutorParts, context: AttemptContext) -> DeviceQuiescer:
    """The quiescer of the attempt's only phone."""
    return DeviceQuiescer(parts, context, context.lease.id, context.lease.device)


@dataclass(frozen=True, slots=True)
class ModelExecutor(Executor):
    """Runs attempts that take a model to a phone, by their kind's worker."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate."""
        task = await self.task(context)
        host = MeasuringHost(context, self.parts, quiet_lease(self.parts, context))
        worker = f"farm.kinds.{context.spec.kind}.worker"
        return await measured(self.parts.work, context, worker, task.to_wire(), host)

    async def task(self, context: AttemptContext) -> ModelTask[Any]:
        """The worker's task."""
        return ModelTask(**self.model(context))

    def model(self, context: AttemptContext) -> dict[str, Any]:
        """The fields of `ModelTask` that need no placement."""
        spec, work = context.spec, self.parts.work
        assert isinstance(spec, ModelSpec)
        return {
            "spec": spec,
            "target": work.target(context, spec.target),
            "cache": work.cache(context),
            "virtual": is_virtual(context.view),
        }


def is_virtual(view: DeviceView) -> bool:
    """Whether the phone is a virtual one."""
    return view.identity is not None and view.identity.virtual


class DeviceQuiescer:
    """Makes one lease's phone quiet, and changes it back. Call `begin` any number of times, `end` once, in any case.

    Until `end` has worked, the lease is one whose phone must be cleaned and checked: however it ends (its phone lost,
    taken away, the daemon killed), the life cycle changes the phone back before it is leased again.
    """

    def __init__(self, parts: ExecutorParts, context: AttemptContext, lease: str, device: str) -> None:
        asked = getattr(context.spec, "quiesce", None)
        self._parts = parts
        self._phones = parts.fleet.quiesce
        self._leases = parts.leasing
        self._context = context
        self._lease = lease
        self._device = device
        self._asked = asked is not None
        self._config = self._phones.config
        self._level = self._config.level_of(context.spec.lease_class, asked)
        self._begun = False
        self._cut = False  # `begin` was cancelled: the phone may become quiet after an `end`
        self._quiet = not_quiet("")
        self._changed = False

    async def begin(self, at_least_s: float = 0.0) -> None:
        """Make the phone quiet, if it is not yet. A refused change is noted, and the phone measures without it.

        `at_least_s`: for so long it stays quiet without contact, if that is longer than configured.
        """
        if self._begun or self._level is Level.OFF:
            return
        elsewhere = self._leases.borrowed.get(self._lease)
        if elsewhere is None and not self._leases.changed_phone(self._lease, changed=True):
            return
        self._begun = self._cut = True
        restore_after_s = max(self._config.restore_after_s, at_least_s)
        try:
            if elsewhere is not None and (lab := self._parts.lab) is not None:
                quiet = await lab.quiesce(elsewhere.host, self._lease, self._level, restore_after_s)
            else:
                quiet = await self._phones.begin(self._device, self._level, self._lease, restore_after_s)
        except FarmError as error:
            self._context.log(f"{self._device} is measured as it is: {error.message}", "warning")
            self._quiet = not_quiet(error.message)
        else:
            self._quiet, self._changed = quiet.to_wire(), quiet.changed
        self._cut = False

    async def end(self) -> None:
        """Change the phone back, if this lease still has it."""
        begun, self._begun = self._begun, False
        if not begun or self._cut or not self._leases.changed_phone(self._lease, changed=True):
            return
        try:
            restored = await self._phones.end(self._device, self._lease)
        except FarmError as error:
            self._context.log(f"{self._device} is cleaned and checked: {error.message}", "warning")
        else:
            self._leases.changed_phone(self._lease, changed=False)
            if self._changed and not restored.restored and not restored.left:
                self._quiet = not_quiet("it changed itself back, or was rebooted, while it measured")

    def to_wire(self) -> Mapping[str, Any]:
        """The changes in force, for the certificate."""
        return self._quiet

    def notes(self) -> list[str]:
        """Notes for readers of the number: all quieting, if the job asked for a level; pinned clocks anyway."""
        notes = [describe(self._quiet)] if self._asked else []
        if pinned := self._quiet["pinned"]:
            notes.append(f"clocks pinned at their highest: {', '.join(pinned)}; heat still lowers them")
        return notes


@dataclass(frozen=True, slots=True)
class LabParts:
    """Parts of the daemon of a host in a lab of several."""

    second_copy: Callable[[str], Awaitable[object]]  # gives an artifact a copy elsewhere; FarmError: there is none
    attempts_of: Callable[[str], Awaitable[Sequence[Attempt]]]  # of a job, first to last
    # Makes a phone of another host quiet: host, lease, level, restore_after_s.
    quiesce: Callable[[str, str, Level, float], Awaitable[QuiesceResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorParts:
    """Parts of the daemon; each executor takes some of them."""

    work: PhoneWork  # runs workers on leased phones
    leasing: Leasing
    fleet: Fleet
    client: AdbClient  # of the real adb server
    gate: Callable[[], tuple[str, int]]  # where TVM sessions are opened
    poison: PoisonLedger
    events: EventLog
    read_conditions: ReadConditions
    builders: str  # the unix socket of the farm's builders; "": there are none
    # seconds of reference kernels: of a device, in an epoch, for a user
    nominals: Callable[[str, str, str], Awaitable[dict[str, float]]]
    earlier: Callable[[str, str, str, str], Awaitable[tuple[EarlierBench, ...]]]  # the same of a model
    bundle: Callable[[str], Bundle]  # by name or hash, in a thread; NoSuchBundleError: there is none
    record_sets: RecordSets
    artifacts: ArtifactFolder
    # The user of a loopback connection, as jobs name them; "" for root and the service user, who may use every lease.
    user_of: Callable[[socket.socket], Awaitable[str]]
    own_ports: Callable[[], Collection[int]]  # of farm on this host, in a thread: no phone may dial one
    meters: dict[str, Sequence[str]] = field(default_factory=dict)  # commands of power meters, by the phone's name
    lab: LabParts | None = None  # None: the only host of its database
