"""The composition root of `farm serve`: builds every part, runs them, takes them down in the opposite order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from farm import __version__
from farm.adb.client import AdbClient
from farm.adb.errors import AdbNotInstalled
from farm.adb.program import AdbBinary, Neighbours, find_adb
from farm.adb.server import AdbServer
from farm.adb.tools import PhoneTools
from farm.adb.tunnels import TunnelLedger
from farm.adb.watch import DeviceWatcher, WatchNews
from farm.bundle.library import BundleLibrary
from farm.bundle.manifest import Bundle
from farm.config import FarmConfig
from farm.control.artifact_budget import DAY_S, GB, ArtifactRules
from farm.control.artifacts import ArtifactFolder
from farm.control.bundle_verbs import BundleVerbs
from farm.control.doctor_verbs import MB, DoctorVerbs, Host
from farm.control.event_verbs import EventVerbs
from farm.control.job_streams import JobStreams
from farm.control.job_verbs import JobVerbs
from farm.control.lease_verbs import LeaseVerbs
from farm.control.personal_lease_verbs import PersonalLeaseVerbs
from farm.control.runtime_folder import group_to_let_in, prepare_runtime_folder
from farm.control.server import ControlServer, user_name
from farm.control.store_verbs import StoreVerbs
from farm.control.tool_verbs import ToolVerbs
from farm.control.toolchain_verbs import ToolchainVerbs
from farm.control.tunnel_verbs import TunnelVerbs
from farm.control.verbs import DaemonFacts, FleetVerbs
from farm.control.worker_door import WorkerDoor
from farm.core.adoption import rules_of
from farm.core.allocator_events import AllocatorPolicy, UsageLoaded
from farm.core.errors import HostError, NotAllowedError
from farm.core.events import Event, EventLog
from farm.fleet.aliases import Aliases
from farm.fleet.fleet import Fleet, FleetConfig
from farm.fleet.tunnels import TunnelKeeper
from farm.jobs.bench import BenchExecutor
from farm.jobs.checker import FarmChecker
from farm.jobs.dispatcher import Dispatcher
from farm.jobs.lease import LeaseExecutor
from farm.jobs.logs import AttemptLogs
from farm.jobs.phone_work import PhoneWork
from farm.jobs.run import RunExecutor
from farm.jobs.shell import ShellExecutor
from farm.jobs.specs import BenchSpec, LeaseSpec, RunSpec, ShellSpec
from farm.jobs.supervisor import Supervisor
from farm.jobs.toolchains import Toolchains
from farm.jobs.workbench import Workbench
from farm.jobs.worker_user import workers_as
from farm.leasing import LeasePolicy, Leasing
from farm.leasing.clock import ClockWatch
from farm.leasing.reserving import ReservationBook
from farm.leasing.usage import decayed_use
from farm.store.history import EventHistory
from farm.store.lock import StateFolderLock
from farm.store.retention import Retention
from farm.store.store import Store
from farm.tracker.door import DoorPolicy, TvmDoor
from farm.tracker.external import ExternalPolicy
from farm.tracker.gate import GateLimits
from farm.tracker.sockets import owner_of

log = logging.getLogger("farm")


class Daemon:
    """One `farm serve`."""

    def __init__(self, config: FarmConfig) -> None:
        self._config = config
        self._news: dict[str, str] = {}  # what is wrong with adb now, by subject
        self._neighbours = Neighbours(config.adb_socket)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            FarmError: the state folder is in use, a port is taken, the database is damaged, adb is missing.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)
        async with contextlib.AsyncExitStack() as stack:
            try:
                parts = await self._build(stack)
            except OSError as error:
                raise HostError(
                    f"cannot start: {error.filename or 'the host'}: {error.strerror or error}",
                    hint="look at the daemon's state and runtime folders: farm doctor",
                ) from error
            log.info("farm %s serves (pid %d, socket %s)", __version__, os.getpid(), self._config.control_socket)
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((*parts, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            log.info("stopping")
        for part in parts:
            if not part.cancelled() and (failed := part.exception()) is not None:
                raise failed

    async def _build(self, stack: contextlib.AsyncExitStack) -> list[asyncio.Task[None]]:
        """Start every part, bottom floor first; returns what runs for as long as the daemon does.

        `stack` takes them down in the opposite order: first the doors, so that nobody comes in, then the fleet.
        """
        config = self._config
        lock = StateFolderLock(config.state_dir)
        stack.callback(lock.close)
        where = config.store.url or config.state_dir / "farm.db"
        store = Store.open(where)
        stack.callback(store.close)
        events = EventLog(store.epoch)
        events.subscribe(_log_event)
        history = EventHistory(events, store.events)
        stack.push_async_callback(history.close)
        events.publish("daemon.started", "daemon", epoch=store.epoch, version=__version__)
        store.on_problem(self._store_heard(store, events))

        gid = group_to_let_in()
        prepare_runtime_folder(config.runtime_dir, gid)
        binary = await self._find_adb()
        server = None
        if config.adb.manage and binary is not None:
            server = AdbServer(binary, config.adb_socket, config.state_dir / "adb", usb=config.adb.usb, gid=gid)
            stack.push_async_callback(server.stop)
        client = AdbClient(config.adb_socket)
        bundles = await asyncio.to_thread(BundleLibrary, config.state_dir / "bundles")
        toolchains = Toolchains(config.toolchain, store.toolchains, events, bundles)
        rules = ArtifactRules(int(config.artifacts.budget_gb * GB), config.artifacts.keep_days * DAY_S)
        artifacts = ArtifactFolder(config.state_dir / "artifacts", rules, store.artifact_use)

        pythons = [toolchain.python for toolchain in toolchains.all()]
        workers = await asyncio.to_thread(workers_as, config.jobs.user, config.state_dir, pythons)
        # The runtime folder is closed to workers of another user: adb's socket is in it.
        worker_sockets = config.state_dir / "work" if workers.user else config.runtime_dir
        worker_door = WorkerDoor(
            worker_sockets / "worker.sock", artifacts, gid=workers.user.gid if workers.user else None
        )
        await worker_door.start()
        stack.push_async_callback(worker_door.stop)
        supervisor = Supervisor(toolchains.all(), config.state_dir / "work", worker_door, user=workers.user)
        await supervisor.start()
        stack.push_async_callback(supervisor.stop)

        # Leasing follows the fleet, the fleet's checker asks leasing for keys, its workers meet the gate at the door:
        # the checker is given ways to partners that are there before the first phone is.
        def gate() -> tuple[str, int]:
            return _dialled(config.tvm.host), door.port

        def checking_key(device: str) -> str:
            return leasing.checking_key(device)

        watcher = DeviceWatcher(
            client, server=server, own_version=binary.version if binary else 0, on_news=self._heard(events)
        )
        fleet = Fleet(
            client,
            watcher,
            toolchains,
            FarmChecker(supervisor, key=checking_key, gate=gate),
            store.devices,
            events,
            FleetConfig(rules=rules_of(config.adopt)),
        )
        aliases = Aliases(fleet, store.aliases, config.aliases)
        parts: list[asyncio.Task[None]] = []  # begun when everything is there, ended when the doors are closed
        stack.push_async_callback(_end, parts)
        tunnels = TunnelKeeper(client, watcher, TunnelLedger(config.state_dir / "adb" / "tunnels.json"))
        policy = LeasePolicy(
            unused_s=config.lease.unused_s,
            allocator=AllocatorPolicy(workers=config.jobs.workers),
            quota=config.quota,
            users=config.user,
        )
        leasing = Leasing(fleet, events, store.epoch, store.leases, policy)
        stack.push_async_callback(leasing.close)
        store.on_problem(leasing.store_problem)
        half_life_s = policy.allocator.usage_half_life_s
        used = await asyncio.to_thread(decayed_use, store.leases.usage, datetime.now(UTC), half_life_s)
        leasing.use(UsageLoaded(used))
        reservations = ReservationBook(store.reservations, events, leasing.use)

        def clock_jumped() -> None:
            reservations.tell()
            leasing.clock_jumped()
            dispatcher.clock_jumped()

        door = TvmDoor(
            config.tvm.host,
            config.tvm.port,
            leasing,
            leasing,
            DoorPolicy(
                advertise=config.tvm.advertise,
                external=ExternalPolicy(
                    allow=config.tvm.external.allow,
                    custom_addresses=config.tvm.external.custom_addresses,
                    join=frozenset(config.tvm.external.join),
                ),
                gate=GateLimits(idle_s=config.lease.idle_s),
            ),
        )
        await door.start()
        stack.push_async_callback(door.stop)
        logs = AttemptLogs(config.state_dir / "logs")
        work = PhoneWork(keys=leasing, workers=supervisor, gate=gate, toolchain_of=toolchains.of_view)
        personal = LeaseExecutor(
            leases=leasing, phones=fleet, client=client, gate=gate, events=events, user_of=_user_of
        )
        dispatcher = Dispatcher(
            store=store,
            events=events,
            leases=leasing,
            devices=fleet,
            executors={
                BenchSpec.kind: BenchExecutor(work),
                RunSpec.kind: RunExecutor(work),
                ShellSpec.kind: ShellExecutor(client, fleet),
                LeaseSpec.kind: personal,
            },
            bench=Workbench(jobs=store.jobs, events=events, keep_log=logs.keep, leases=leasing, devices=fleet),
            limits=lambda user: config.user.get(user, config.quota),
        )
        await dispatcher.start()
        stack.push_async_callback(dispatcher.stop)

        control = ControlServer(config.control_socket, artifacts=artifacts, gid=gid)
        facts = DaemonFacts(
            __version__,
            os.getpid(),
            gate,
            door.summary,
            config.adb_socket,
            config.state_dir / "adb" / "adbkey",
            self._problems,
        )
        FleetVerbs(fleet, leasing, aliases, events, facts).register(control)

        def in_use(bundle: Bundle) -> str:
            phones, named_by = fleet.bundles_in_use().get(bundle.hash), toolchains.naming(bundle)
            if named_by:
                return f"toolchain {named_by[0]} names it"
            return f"it is on {', '.join(phones)}" if phones else ""

        BundleVerbs(bundles, toolchains.compiler_of, in_use, fleet.bundles_changed).register(control)
        ToolchainVerbs(toolchains, supervisor, bundles, fleet.bundles_changed).register(control)
        EventVerbs(history).register(control)
        database = None if config.store.url else config.state_dir / "farm.db"
        host = Host(artifacts, store, database, config.store.max_mb * MB, workers.name, workers.blocked)
        DoctorVerbs(host).register(control)
        streams = JobStreams(store, events, history, logs, dispatcher.lives)
        job_verbs = JobVerbs(dispatcher, store, streams, leasing)
        job_verbs.register(control)

        def note_of(job_id: str) -> str:
            job = store.jobs.get(job_id)
            return "" if job is None else str(job.spec.get("note", ""))

        LeaseVerbs(
            fleet,
            leasing,
            aliases,
            events,
            records=store.leases,
            reservations=reservations,
            adb_key=facts.adb_key,
            explain_job=job_verbs.explain,
            note_of=note_of,
        ).register(control)
        retention = Retention(
            store.database,
            keep_days=config.store.keep_days,
            max_mb=config.store.max_mb,
            remove_logs=logs.remove,
        )
        PersonalLeaseVerbs(personal).register(control)
        StoreVerbs(store, where, retention).register(control)
        TunnelVerbs(fleet, tunnels).register(control)
        tools = PhoneTools(config.adb_socket)
        stack.callback(tools.close)
        ToolVerbs(fleet, tools, artifacts).register(control)
        await control.start()
        stack.push_async_callback(control.stop)
        running = {
            "history": history.run(),
            "retention": retention.run(),
            "fleet": fleet.run(),
            "tunnels": tunnels.run(),
            "clock": ClockWatch(events, clock_jumped).run(),
            "artifacts": artifacts.keep_tidy(),
        }
        parts += [asyncio.create_task(part, name=name) for name, part in running.items()]
        return parts

    async def _find_adb(self) -> AdbBinary | None:
        """The adb program; a farm on somebody else's server can do without."""
        configured = self._config.adb.binary
        try:
            return await asyncio.to_thread(find_adb, Path(configured) if configured else None)
        except AdbNotInstalled:
            if self._config.adb.manage or configured:
                raise
            return None

    def _heard(self, events: EventLog) -> Callable[[WatchNews], None]:
        def heard(news: WatchNews) -> None:
            if news.kind.endswith((".back", ".removed")):
                self._news.pop(news.subject, None)
            else:
                hint = f" ({news.error.hint})" if news.error and news.error.hint else ""
                self._news[news.subject] = news.message + hint
            events.publish(news.kind, news.subject, message=news.message)

        return heard

    def _store_heard(self, store: Store, events: EventLog) -> Callable[[bool], None]:
        def heard(failing: bool) -> None:
            if failing:
                self._news["store"] = store.problem
            else:
                self._news.pop("store", None)
            events.publish("store.full" if failing else "store.back", "store", reason=store.problem)

        return heard

    async def _problems(self) -> list[str]:
        found = list(self._news.values())
        if self._config.adb.manage and self._config.adb.usb:
            found.extend(f"{other} may hold USB phones" for other in await self._neighbours.look())
        return found


def _user_of(connection: socket.socket) -> str:
    """Whose process of this host is at the other end, as the job door names them; "" for root and our own user.

    Raises:
        NotAllowedError: the kernel does not say.
    """
    uid = owner_of(connection)
    if uid is None:
        raise NotAllowedError("the kernel does not say who connects")
    return "" if uid in (0, os.geteuid()) else user_name(uid)


async def _end(parts: Sequence[asyncio.Task[None]]) -> None:
    """Cancel running parts and wait for their end; what they raise is looked at later."""
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)


def _dialled(host: str) -> str:
    """The address to dial for a server bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _log_event(event: Event) -> None:
    said: Mapping[str, Any] = event.data
    log.info(
        "%s %s %s", event.kind, event.subject, " ".join(f"{name}={value}" for name, value in said.items() if value)
    )
