"""The interfaces for people and programs: the control channel with every verb, and the web page over it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from farm import __version__
from farm.builders.process import BuilderVerbs
from farm.bundle.model import Bundle, platform_of
from farm.common.doctor_findings import Diagnosis
from farm.common.errors import NotAllowedError
from farm.common.events import EventLog
from farm.common.tasks import LastingTasks, end_tasks
from farm.config import FarmConfig, WebConfig
from farm.control.audit import OK, WRONG_KEY, AuditTrail
from farm.control.callers import Accounts, Caller, LocalUsers, Role
from farm.control.listeners import CurveListener
from farm.control.server import ControlServer
from farm.control.verbs import VerbGroup
from farm.control.verbs.auth import AuthVerbs
from farm.control.verbs.bundle import BundleVerbs, ToolchainVerbs
from farm.control.verbs.device import DeviceOrderVerbs, ReadingsVerbs, ToolVerbs
from farm.control.verbs.doctor import MB, DoctorHost, DoctorVerbs
from farm.control.verbs.fleet import DaemonFacts, FleetVerbs
from farm.control.verbs.job import JobVerbs
from farm.control.verbs.job_views import JobSteps, JobStreams
from farm.control.verbs.lease import LeaseVerbs, TunnelVerbs
from farm.control.verbs.records import HistoryVerbs, PoisonVerbs, RecordsVerbs
from farm.control.verbs.store import EventVerbs, StoreVerbs
from farm.daemon.persistence import Persistence
from farm.daemon.phones import Phones
from farm.daemon.problems import Problems
from farm.daemon.reload import Reloader
from farm.daemon.scheduling import Scheduling
from farm.daemon.sharing import Sharing, begin_sharing
from farm.daemon.stopped_results import StoppedResults
from farm.daemon.workers import Workers
from farm.kinds import KINDS
from farm.kinds.lease.executor import PersonalLeaseVerbs
from farm.leasing.lab_rules import lab_findings
from farm.model.requests import Lease
from farm.store.maintenance import damage_of
from farm.web.app import create_app
from farm.web.server import WebPortError, WebServer

if TYPE_CHECKING:
    from fastapi import FastAPI

    from farm.lab.bundles import HostBundles

RETRY_PAGE_S = 10.0  # to open the page's port
DOCTOR_CHECK_BYTES = 256 << 20  # of a larger database only `farm store check` reads every page: that takes minutes

log = logging.getLogger("farm")


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a verb may work with."""

    config: FarmConfig
    persistence: Persistence
    workers: Workers
    phones: Phones
    scheduling: Scheduling
    problems: Problems
    lasting: LastingTasks
    reloader: Reloader
    web: WebPage
    stopped_results: StoppedResults


async def open_control_channel(stack: contextlib.AsyncExitStack, parts: Parts) -> ControlServer:
    """Register each verb with the part that answers it, then open the listeners.

    Raises:
        ControlSocketError: the socket cannot be opened.
    """
    config, persistence, workers = parts.config, parts.persistence, parts.workers
    accounts = Accounts(persistence.store.accounts)
    remote = _remote_listener(config, accounts, persistence.audit)

    def adb_used(lease: Lease, service: str, allowed: bool) -> None:
        caller = Caller(lease.request.user, Role.USER, f"adb of {lease.id}")
        persistence.audit.record_later(caller, f"adb.{service}", lease.device, OK if allowed else NotAllowedError.code)

    parts.scheduling.personal.adb_used = adb_used
    control = ControlServer(
        config.control_socket,
        artifacts=workers.artifacts,
        principal_of=LocalUsers(at=config.lab.users_at).principal_of,
        gid=workers.gid,
        audit=persistence.audit,
        accounts=accounts,
        remote=remote,
    )
    for verbs in (
        AuthVerbs(accounts, persistence.store.audit, remote),
        parts.reloader,
        *_device_verbs(parts),
        *_work_verbs(parts),
        *_host_verbs(stack, parts),
    ):
        verbs.register(control)
    parts.problems.sources.append(control.problems)
    await control.start()
    stack.push_async_callback(control.stop)
    if workers.sharing is not None:
        _answer_other_hosts(stack, parts, workers.sharing, control)
        await begin_sharing(config, persistence, workers.sharing)
    return control


def _answer_other_hosts(
    stack: contextlib.AsyncExitStack, parts: Parts, sharing: Sharing, control: ControlServer
) -> None:
    """Verbs about phones of other hosts are answered there, and theirs about phones of this host here."""
    from farm.lab.following import HostReach, follow_other_hosts  # only a lab of several hosts has the packages
    from farm.lab.leases import CarriedLeases
    from farm.lab.verbs import HostForwarder

    personal = parts.scheduling.personal

    def has(word: str) -> bool:
        views = parts.phones.fleet.views()
        return personal.has(word) or any(word in (view.name, view.serial) for view in views)

    ports = parts.config.state_dir / "adb" / "carried.json"
    leases = CarriedLeases(sharing.link, personal.adb_of, personal.admits, parts.scheduling.gate, ports)
    stack.push_async_callback(leases.close)
    forget_ended = partial(leases.forget_ended, parts.persistence.store.leases.is_open)
    reach = HostReach(sharing.link)
    parts.persistence.lab.unreached, parts.persistence.lab.still_unreached = reach.problem_of, reach.still_unreached
    for name, look in (("leases", forget_ended), ("links", reach.look)):
        following = parts.lasting.start(f"{name} of other hosts", partial(follow_other_hosts, {name: look}))
        stack.push_async_callback(end_tasks, following)
    HostForwarder(parts.persistence.lab, sharing.link, control, has, leases)


def _remote_listener(config: FarmConfig, accounts: Accounts, audit: AuditTrail) -> CurveListener | None:
    """The listener for clients on other hosts; None if `[control] listen` is empty."""
    if not config.control.listen:
        return None
    listener = CurveListener(config.control.listen, accounts, config.state_dir / "keys" / "server.key")
    listener.on_wrong_key = lambda place: audit.record_later(
        Caller("", Role.VIEWER, f"unknown key from {place}"), "auth.key", "", WRONG_KEY
    )
    return listener


def _device_verbs(parts: Parts) -> tuple[VerbGroup, ...]:
    """Verbs of devices: state, operators' orders, readings, tunnels, files."""
    phones, scheduling = parts.phones, parts.scheduling
    fleet, leasing = phones.fleet, scheduling.leasing
    facts = DaemonFacts(
        __version__,
        os.getpid(),
        scheduling.gate,
        scheduling.tvm_server.summary,
        parts.config.adb_socket,
        parts.problems.current,
        tvm_server=lambda: (scheduling.tvm_server.host, scheduling.tvm_server.pid),
        web=lambda: parts.web.url,
        builders=parts.workers.builder_slots,
    )
    return (
        FleetVerbs(fleet, leasing, phones.aliases, parts.persistence.history.shown, facts, parts.persistence.lab),
        DeviceOrderVerbs(fleet),
        ReadingsVerbs(fleet, phones.series),
        TunnelVerbs(fleet, phones.tunnels),
        ToolVerbs(fleet, leasing, parts.workers.artifacts, phones.client),
    )


def _work_verbs(parts: Parts) -> tuple[VerbGroup, ...]:
    """Verbs of jobs, leases and their products: measurements, records, poison."""
    scheduling, persistence = parts.scheduling, parts.persistence
    store, events, leasing = persistence.store, persistence.events, scheduling.leasing

    def notes_of(job_ids: Sequence[str]) -> Mapping[str, str]:
        return {job.id: str(job.spec.get("note", "")) for job in store.jobs.several(job_ids)}

    sharing = parts.workers.sharing
    open_log = persistence.logs.open if sharing is None else sharing.logs.open
    streams = JobStreams(store, persistence.history, open_log, scheduling.head.is_live)
    jobs = JobVerbs(scheduling.head, store, streams, JobSteps(events), KINDS)
    leases = LeaseVerbs(
        parts.phones.fleet,
        leasing,
        parts.phones.aliases,
        events,
        records=store.leases,
        lab=persistence.lab,
        head=scheduling.head,
        adb_key=parts.config.state_dir / "adb" / "adbkey",
        explain_job=jobs.explain,
        notes_of=notes_of,
        heat_note=parts.phones.gates.note,
    )
    parts.problems.sources.append(leases.problems)
    return (
        jobs,
        leases,
        PersonalLeaseVerbs(scheduling.personal),
        PoisonVerbs(scheduling.poison, leasing.active.holders),
        RecordsVerbs(store.record_sets, parts.workers.artifacts),
        HistoryVerbs(store.measurements),
    )


def _share_bundles(parts: Parts) -> HostBundles | None:
    """Bundles of this host and the others of its lab; None: there are none."""
    if parts.workers.sharing is None:
        return None
    from farm.lab.bundles import HostBundles

    fleet, workers = parts.phones.fleet, parts.workers

    def groups() -> set[tuple[str, str]]:
        known = (view.identity for view in fleet.views() if view.adopted and view.identity is not None)
        return {(each.abi, platform_of(each)) for each in known}

    return HostBundles(
        parts.config.lab.host, workers.bundles, workers.artifacts, parts.persistence.store.shared_bundles,
        groups, fleet.bundles_changed, parts.config.state_dir / "bundles" / "offered",
    )  # fmt: skip


def _exchange_with_hosts(
    stack: contextlib.AsyncExitStack, parts: Parts, toolchains: ToolchainVerbs, bundles: HostBundles
) -> None:
    """From now on take up what the other hosts of the lab change in the database, and write readings for them."""
    from farm.lab.following import follow_other_hosts, share_readings

    looks = {
        "bundles": bundles.look, "configuration": parts.reloader.follow_lab, "keys": parts.phones.aliases.reread,
        "toolchains": toolchains.reread,
    }  # fmt: skip
    save = partial(parts.persistence.store.lab.save_readings, parts.config.lab.host)
    for name, begin in (
        ("changes of other hosts", partial(follow_other_hosts, looks)),
        ("readings for other hosts", partial(share_readings, parts.phones.fleet.views, save)),
    ):
        stack.push_async_callback(end_tasks, parts.lasting.start(name, begin))


def _host_verbs(stack: contextlib.AsyncExitStack, parts: Parts) -> tuple[VerbGroup, ...]:
    """Verbs of this host: bundles, toolchains, the store, the event log and doctor."""
    shared = _share_bundles(parts)
    workers, fleet, persistence = parts.workers, parts.phones.fleet, parts.persistence

    def in_use(bundle: Bundle) -> str:
        holders, named_by = fleet.bundles_in_use().get(bundle.hash), workers.toolchains.naming(bundle)
        if named_by:
            return f"toolchain {named_by[0]} names it"
        return f"it is on {', '.join(holders)}" if holders else fleet.rollouts.keeps(bundle)

    toolchains = ToolchainVerbs(workers.toolchains, workers.supervisor, workers.bundles, fleet.bundles_changed)
    if shared is not None:
        _exchange_with_hosts(stack, parts, toolchains, shared)
    return (
        BundleVerbs(
            workers.bundles,
            workers.artifacts,
            workers.toolchains.compiler_of,
            in_use,
            fleet.rollouts,
            fleet.bundles_changed,
            shared,
        ),
        toolchains,
        EventVerbs(persistence.history),
        BuilderVerbs(workers.builders),
        StoreVerbs(persistence.store, persistence.where, persistence.retention),
        DoctorVerbs(_host(parts.config, persistence, workers), parts.phones.check_usb, _check_lab(parts)),
    )


def _check_lab(parts: Parts) -> Callable[[], Awaitable[Sequence[Diagnosis]]] | None:
    """Findings about the other hosts of the lab; None: there is no lab."""
    lab, store = parts.persistence.lab, parts.persistence.store
    server = store.server
    if not lab.own or server is None:
        return None

    async def check() -> Sequence[Diagnosis]:
        picture = await lab.look()
        if store.problem and not picture.old_s:  # it is of before: it knows of no removal
            return []
        return list(lab_findings(picture, lab.own, parts.phones.fleet.views(), server.facts.max_connections))

    return check


def _host(config: FarmConfig, persistence: Persistence, workers: Workers) -> DoctorHost:
    """The parts of this host that `farm doctor` checks."""
    return DoctorHost(
        workers.artifacts,
        persistence.store,
        None if config.store.url else config.state_dir / "farm.db",
        config.store.max_mb * MB,
        workers.run_as.name,
        config.state_dir,
        damage=partial(damage_of, persistence.store.database.engine, DOCTOR_CHECK_BYTES),
        blocked=workers.run_as.blocked,
        workers_apart=workers.run_as.first_id > 0,
    )


class WebPage:
    """The web page, served in the daemon's event loop. `farm status` shows its address."""

    def __init__(self, config: WebConfig, problems: Problems, *, lab: bool = False) -> None:
        self._config = config
        self._problems = problems
        self._lab = lab  # this host is one of several
        self.url = ""  # "": there is no page
        self.tasks: Sequence[asyncio.Task[None]] = ()  # what runs for as long as it is open
        self._serve: Callable[[], None] = lambda: None  # from `open` on
        self._problem = ""  # why it is not open

    def open(
        self,
        stack: contextlib.AsyncExitStack,
        control: ControlServer,
        events: EventLog,
        *,
        metrics: Callable[[str], Coroutine[Any, Any, tuple[bytes, str]]],
    ) -> None:
        """Serve until `stack` ends. Without its port, `farm status` shows a problem, and phones are served.

        Raises:
            WebPortError: the port is taken, and `[web] required` says that there must be a page.
        """
        if not self._config.enabled or control.accounts is None:
            return
        app = create_app(control, control.accounts, events, metrics, self._config, lab=self._lab)
        self._serve = partial(self._begin, stack, app)
        self._problems.sources.append(lambda: [self._problem] if self._problem else [])
        try:
            self._serve()
        except WebPortError as error:
            if self._config.required:
                raise
            self._problem = f"{error} ({error.hint})"
            log.warning("%s", self._problem)

    async def retry(self) -> None:
        """Serve as soon as the port can be had: after a power cut its address may come later than the daemon."""
        while self._problem:
            await asyncio.sleep(RETRY_PAGE_S)
            with contextlib.suppress(WebPortError):
                self._serve()

    def _begin(self, stack: contextlib.AsyncExitStack, app: FastAPI) -> None:
        server = WebServer(self._config.host, self._config.port)
        server.start(app)
        stack.push_async_callback(server.stop)
        stack.callback(app.state.hints.close)
        self.url, self.tasks, self._problem = server.url, server.tasks, ""
        log.info("the web page is at %s", self.url)
