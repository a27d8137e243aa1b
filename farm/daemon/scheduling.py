"""Leasing, the TVM server before it, reservations, and the dispatcher of jobs with its executors."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from farm.adb.connection import ServerAddress
from farm.adb.program import holds_socket, server_pid
from farm.adb.watch_policy import Load
from farm.common.errors import NotAllowedError
from farm.common.peers import UserNames, name_at, owner_of
from farm.common.tasks import BackgroundTasks, Begin
from farm.config import FarmConfig, TvmConfig
from farm.config.consistency import own_ports
from farm.config.lease_policy import lease_policy
from farm.control.callers import LocalUsers
from farm.daemon.lab import HeadLetters, open_head
from farm.daemon.persistence import Persistence, database_of
from farm.daemon.phones import Phones
from farm.daemon.workers import Workers
from farm.devices.quiesce import QuiesceController
from farm.head.head import Head
from farm.head.local import LocalHead, read_clock
from farm.head.messages import DialBack
from farm.head.model import LeasePolicy
from farm.head.write_queue import LeaseWriteQueue
from farm.jobs.attempt_run import AttemptContextFactory
from farm.jobs.attempts import Attempts
from farm.jobs.config import MAX_USERS
from farm.jobs.executor import Executor
from farm.jobs.lab_devices import LabDevices
from farm.jobs.poison import PoisonLedger
from farm.kinds import KINDS
from farm.kinds.execution import ExecutorParts, LabParts, PhoneWork
from farm.kinds.lease.executor import LeaseExecutor
from farm.leasing.leases import Leasing
from farm.leasing.remote_head import RemoteHead
from farm.store.store import Store
from farm.tvm_server.gate.child import GateChild
from farm.tvm_server.listener import bind
from farm.tvm_server.server import TvmServer, TvmServerPolicy, check_gate

if TYPE_CHECKING:
    from farm.lab.link import HostLink

log = logging.getLogger("farm")


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The parts that hand phones out."""

    gate: Callable[[], tuple[str, int]]  # where workers of this host meet the TVM server
    tvm_server: TvmServer
    leasing: Leasing
    head: Head
    letters: HeadLetters | None  # of a head apart; None: it is in this process
    personal: LeaseExecutor
    poison: PoisonLedger
    quiesce: QuiesceController
    meters: dict[str, Sequence[str]]
    attempts: Attempts

    def use(self, config: FarmConfig) -> None:
        """Share by it from now on; leases and sessions that have begun continue as they are."""
        policy = lease_policy(config)
        self.leasing.use_policy(policy)
        if self.queue is not None:  # a head apart goes by its own configuration and clock
            self.queue.use(policy)
        self.quiesce.config = config.quiesce
        self.meters.clear()
        self.meters.update(config.power.meter)
        self.tvm_server.use(_tvm_policy(config))

    @property
    def queue(self) -> LocalHead | None:
        """The head with its queue; None: it is apart."""
        return self.head if isinstance(self.head, LocalHead) else None

    def tasks(self) -> dict[str, Begin]:
        """The tasks that run as long as the daemon, by name."""
        return {} if self.letters is None else self.letters.tasks()

    def ending_tasks(self) -> dict[str, Begin]:
        """The task whose end ends the daemon, by name: this host was removed from its lab."""
        return {} if self.letters is None else {"membership of the lab": self.letters.head.removed}

    def problems(self) -> list[str]:
        """The current problems of the TVM server, and what attempts found that only an operator mends."""
        return [*filter(None, [self.tvm_server.problem]), *self.attempts.problems()]

    def clock_jumped(self) -> None:
        """The wall clock was set."""
        if self.queue is not None:
            self.queue.clock_jumped()
        self.leasing.clock_jumped()


def open_gate(config: TvmConfig, stack: contextlib.AsyncExitStack) -> GateChild | None:
    """Start the daemon's own gate, unless another one has the port.

    Raises:
        FarmError: the port is taken.
    """
    if config.gate:
        return None
    gate = GateChild(bind(config.host, config.port))
    stack.callback(gate.stop)
    gate.start()
    return gate


async def open_scheduling(
    config: FarmConfig, stack: contextlib.AsyncExitStack, persistence: Persistence, workers: Workers, phones: Phones,
    own_gate: GateChild | None,
) -> Scheduling:  # fmt: skip
    """Open the TVM server, and take up the jobs that the daemon before this one left.

    Raises:
        FarmError: the TVM port is taken.
    """
    store, events = persistence.store, persistence.events
    writes, tasks = LeaseWriteQueue(events), BackgroundTasks()
    head, letters = await open_head(config, stack, persistence, writes, tasks)
    leasing = _open_leasing(lease_policy(config), stack, persistence, phones, head, writes)
    leasing.tvm.users_at, leasing.tvm.may_use = config.lab.users_at, _may_use(config)
    tvm_server = await _open_tvm_server(config, stack, persistence, leasing, phones, own_gate)
    if workers.sharing is not None:
        leasing.tvm.lab = persistence.lab
        _reach_other_hosts(config.lab.host, workers.sharing.link, leasing, tvm_server)
    tvm_host = _dialled(tvm_server.host)
    phones.watcher.load = lambda: Load(
        sum(leasing.holds(view.name) for view in phones.fleet.views()), last_byte_at=tvm_server.last_phone_byte_at
    )

    def gate() -> tuple[str, int]:
        return tvm_host, tvm_server.port

    phones.fleet.quiesce.config = config.quiesce
    poison = PoisonLedger(store.poison, events)
    parts = ExecutorParts(
        work=PhoneWork(workers.supervisor, workers.toolchains.of_view, workers.bundles.get),
        leasing=leasing,
        fleet=phones.fleet,
        client=phones.client,
        gate=gate,
        poison=poison,
        events=events,
        read_conditions=phones.read_conditions,
        builders=workers.builders.socket if workers.builders else "",
        nominals=lambda device, epoch, user: store.in_thread(store.measurements.nominal_s, device, epoch, user),
        earlier=lambda *of: store.in_thread(store.measurements.earlier, *of),
        bundle=workers.bundles.get,
        record_sets=store.record_sets,
        artifacts=workers.artifacts,
        user_of=LoopbackUsers(phones.client.address, config.lab.users_at),
        own_ports=lambda: {*own_ports(config), gate()[1], phones.client.address.port, *_open_ports()},
        meters=dict(config.power.meter),
        lab=_lab_parts(workers, store, leasing, phones.fleet.quiesce),
    )
    executors = {name: kind.executor(parts) for name, kind in KINDS.kinds.items()}
    attempts = _attempts(persistence, phones, leasing, executors, tasks, tvm_server)
    await _take_up(stack, persistence, phones, leasing, tvm_server, attempts, letters)
    personal = executors["lease"]
    assert isinstance(personal, LeaseExecutor)
    return Scheduling(
        gate, tvm_server, leasing, head, letters, personal, poison, phones.fleet.quiesce, parts.meters, attempts
    )


def _reach_other_hosts(host: str, link: HostLink, leasing: Leasing, tvm_server: TvmServer) -> None:
    """TVM clients of this host reach phones of others, and theirs the phones of this one."""
    from farm.lab.sessions import LabSessions  # its packages are those of a lab

    leasing.elsewhere.connect(host, LabSessions(link, tvm_server.serve_elsewhere).dial)
    link.ask_back_by(lambda other, token: leasing.head.send_to_host(other, DialBack(host, token)))
    if isinstance(leasing.head, RemoteHead):
        leasing.head.dial_back = link.dial_back


def _lab_parts(workers: Workers, store: Store, leasing: Leasing, quiesce: QuiesceController) -> LabParts | None:
    if (sharing := workers.sharing) is None:
        return None
    from farm.lab.quiesce import HostQuiesce

    return LabParts(
        second_copy=sharing.artifacts.second_copy,
        attempts_of=lambda job: store.read(store.jobs.attempts, job),
        quiesce=HostQuiesce(sharing.link, leasing, quiesce).begin,
    )


def _attempts(
    persistence: Persistence,
    phones: Phones,
    leasing: Leasing,
    executors: Mapping[str, Executor],
    tasks: BackgroundTasks,
    tvm_server: TvmServer,
) -> Attempts:
    """The attempts of this host."""
    store, events = persistence.store, persistence.events
    contexts = AttemptContextFactory(
        kinds=KINDS,
        jobs=store.jobs,
        events=events,
        store_log=persistence.logs.store,
        leases=leasing,
        devices=phones.fleet,
        others=None if persistence.hosts is None else LabDevices(store.mailbox.devices_elsewhere(persistence.hosts)),
        gate_gone_at=lambda: tvm_server.gone_at,
    )
    return Attempts(
        store=store,
        events=events,
        leases=leasing,
        executors=executors,
        contexts=contexts,
        head=leasing.head,
        tasks=tasks,
        clock=partial(read_clock, store),
    )


async def _take_up(
    stack: contextlib.AsyncExitStack,
    persistence: Persistence,
    phones: Phones,
    leasing: Leasing,
    tvm_server: TvmServer,
    attempts: Attempts,
    letters: HeadLetters | None,
) -> None:
    """Take up the jobs and leases that the daemon before this one left, then accept TVM clients."""
    # Before anything else may end them: leases whose sessions the gate has carried through the restart.
    orphans, leases = tvm_server.orphans, persistence.store.leases
    adopted = leasing.tvm.restore_leases(await leases.read(leases.open), orphans) if orphans else frozenset[str]()
    await attempts.recover(adopted, persistence.hosts)
    if letters is None:
        await attempts.finish_leftovers()
    else:
        letters.attempts = attempts  # it ends them later: no head may answer now
    await leasing.head.start(attempts)
    attempts.begin()
    stack.push_async_callback(attempts.stop)
    if isinstance(leasing.head, LocalHead):  # else the head apart continues with them at other hosts
        stack.callback(leasing.head.stop_jobs)
    tvm_server.begin()
    secrets = {each.device: each.secret for each in orphans if not each.ended}
    phones.fleet.surviving_session_secret = lambda name: secrets.get(name, "") if leasing.in_session(name) else ""


def _open_leasing(
    policy: LeasePolicy,
    stack: contextlib.AsyncExitStack,
    persistence: Persistence,
    phones: Phones,
    head: Head,
    writes: LeaseWriteQueue,
) -> Leasing:
    """The leases of this host; the parts of the fleet that ask about them are set."""
    store = persistence.store
    leasing = Leasing(
        phones.fleet, persistence.events, store.epoch, store.leases, policy, head=head, writes=writes, wall=store.now
    )
    stack.push_async_callback(leasing.close)
    phones.gates.holds = leasing.holds
    phones.fleet.probes.lease_of = leasing.lease_of
    phones.fleet.is_awaited = head.awaits
    phones.fleet.recovery.holder = lambda name: (
        "" if (holder := leasing.active.holder(name)) is None else holder.holder_name
    )
    store.on_problem(leasing.store_problem)
    return leasing


async def check_gate_apart(config: FarmConfig) -> None:
    """Check, before a start changes anything, that a gate apart is there and speaks this release's protocol.

    Raises:
        FarmError: it is not there, or does not work for this daemon.
    """
    if config.tvm.gate:
        await check_gate(Path(config.tvm.gate), _farm_of(config), config.lease.idle_s)


def _farm_of(config: FarmConfig) -> str:
    """What a gate knows the daemons of one database by."""
    return hashlib.sha256(str(database_of(config)).encode()).hexdigest()


async def _open_tvm_server(
    config: FarmConfig,
    stack: contextlib.AsyncExitStack,
    persistence: Persistence,
    leasing: Leasing,
    phones: Phones,
    own_gate: GateChild | None,
) -> TvmServer:
    """The TVM server over the daemon's own gate, or over one that runs apart (`[tvm] gate`)."""

    def lost(why: str) -> None:
        if why:
            persistence.events.publish("gate.lost", "gate", reason=why)
        else:
            persistence.events.publish("gate.back", "gate")

    gate, policy = own_gate or Path(config.tvm.gate), _tvm_policy(config)
    tvm_server = TvmServer(gate, _farm_of(config), leasing.tvm, leasing.tvm, policy, lost)

    async def stop() -> None:
        await tvm_server.stop()
        if tvm_server.detached:
            log.info("%d sessions continue at the gate", tvm_server.detached)
            phones.leave_adb()

    stack.push_async_callback(stop)
    await tvm_server.start()
    return tvm_server


def _may_use(config: FarmConfig) -> Callable[[str], Awaitable[bool]] | None:
    """Whether a login of this host may use the TVM port; None: every login may. Workers always may."""
    if config.tvm.local == "any":
        return None
    users, first = LocalUsers(), config.jobs.first_uid
    of_workers = {f"uid-{uid}" for uid in range(first, first + MAX_USERS)} | {config.jobs.user}

    async def may_use(login: str) -> bool:
        return login in of_workers or await users.may_use_phones(login)

    return may_use


def _tvm_policy(config: FarmConfig) -> TvmServerPolicy:
    tvm = config.tvm
    return TvmServerPolicy(advertise=tvm.advertise, external=tvm.external, idle_s=config.lease.idle_s)


def _dialled(host: str) -> str:
    """The address to dial for a server bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _open_ports() -> Iterator[int]:
    """The TCP ports where this process and its children listen."""
    daemon = psutil.Process()
    for process in (daemon, *daemon.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            for each in process.net_connections(kind="tcp"):
                if each.status == psutil.CONN_LISTEN:
                    yield int(each.laddr.port)


class LoopbackUsers:
    """Names the user behind a loopback connection to a leased adb server, or to one of its forwards.

    For a reverse the adb server dials, under the daemon's uid, which may use every lease: the process that has the
    socket shows that a phone dials. Where a reverse leads cannot be checked when it is made: listeners open later.
    """

    def __init__(self, adb: ServerAddress, users_at: str = "") -> None:
        """`adb` is where the real adb server listens; `users_at`: see `farm.common.peers.name_at`."""
        self._adb = adb
        self._users_at = users_at
        self._names = UserNames()

    async def __call__(self, connection: socket.socket) -> str:
        """The user's name, as of the owner of jobs; "" for root and the daemon's user.

        Raises:
            NotAllowedError: a phone dials, or the user is unknown.
            OSError: the client has closed the connection.
        """
        owner = owner_of(connection)
        if owner is None:
            raise NotAllowedError("the kernel does not say who connects")
        if owner.uid not in (0, os.geteuid()):
            return name_at(await self._names(owner.uid), self._users_at)
        if await asyncio.to_thread(self._is_adb_server, owner.inode):
            raise NotAllowedError("a phone dials a lease through a reverse")
        if owner_of(connection) != owner:  # closed meanwhile: what it has sent must not count
            raise NotAllowedError("the client has closed the connection")
        return ""

    def _is_adb_server(self, inode: int) -> bool:
        try:
            return holds_socket(server_pid(self._adb), inode)
        except OSError as error:
            raise NotAllowedError(f"the process behind the connection is unknown: {error}") from error
