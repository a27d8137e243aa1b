"""Who gets what: leasing, the TVM door before it, reservations, and the dispatcher of jobs with its executors."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from farm.adb.watch_policy import Load
from farm.config import FarmConfig, TvmConfig
from farm.core.allocator_events import AllocatorPolicy, UsageLoaded
from farm.core.labels import normalise
from farm.daemon.lease_people import LeasePeople
from farm.daemon.memory import Memory
from farm.daemon.phones import Phones
from farm.daemon.workers import Workers
from farm.jobs.comparing import Bundles, CompareExecutor
from farm.jobs.dispatcher import Dispatcher
from farm.jobs.kills import Kills
from farm.jobs.lease import LeaseExecutor
from farm.jobs.measuring import BenchExecutor
from farm.jobs.phone_work import HostParts, PhoneWork
from farm.jobs.poison import PoisonLedger
from farm.jobs.quieting import QuietParts
from farm.jobs.run import RunExecutor
from farm.jobs.shell import ShellExecutor
from farm.jobs.specs import BenchSpec, CompareSpec, LeaseSpec, RunSpec, ShellSpec, TuneSpec
from farm.jobs.tune import TuneExecutor
from farm.jobs.workbench import Workbench
from farm.leasing import LeasePolicy, Leasing
from farm.leasing.reserving import ReservationBook
from farm.leasing.usage import decayed_use
from farm.tracker.door import Door, DoorPolicy, TvmDoor
from farm.tracker.external import ExternalPolicy
from farm.tracker.gate import GateLimits
from farm.tracker.gate_door import GateDoor

log = logging.getLogger("farm")


@dataclass(frozen=True, slots=True)
class Sharing:
    """The parts that hand phones out."""

    gate: Callable[[], tuple[str, int]]  # where workers of this host meet the TVM door
    door: Door
    leasing: Leasing
    reservations: ReservationBook
    personal: LeaseExecutor
    poison: PoisonLedger
    dispatcher: Dispatcher
    quieting: QuietParts

    def use(self, config: FarmConfig) -> None:
        """Share by it from now on; leases and sessions that have begun go on as they are."""
        self.leasing.use_policy(_lease_policy(config))
        self.quieting.config = config.quiesce
        self.door.use(_door_policy(config.tvm, GateLimits(idle_s=config.lease.idle_s)))

    def problems(self) -> list[str]:
        """What is wrong with the door now."""
        return [self.door.problem] if self.door.problem else []

    def clock_jumped(self) -> None:
        """The wall clock was set."""
        self.reservations.tell()
        self.leasing.clock_jumped()
        self.dispatcher.clock_jumped()


async def open_sharing(
    config: FarmConfig, stack: contextlib.AsyncExitStack, memory: Memory, workers: Workers, phones: Phones
) -> Sharing:
    """Open the TVM door, and take up the jobs that the daemon before this one left.

    Raises:
        FarmError: the TVM port is taken.
    """
    store, events = memory.store, memory.events
    policy = _lease_policy(config)
    leasing = Leasing(phones.fleet, events, store.epoch, store.leases, policy)
    stack.push_async_callback(leasing.close)
    phones.gates.holds = leasing.holds
    phones.fleet.probes.turn = leasing.turn
    phones.fleet.care.holder = lambda name: "" if (holder := leasing.holder(name)) is None else holder.who
    store.on_problem(leasing.store_problem)
    half_life_s = policy.allocator.usage_half_life_s
    used = await asyncio.to_thread(decayed_use, store.leases.usage, datetime.now(UTC), half_life_s)
    leasing.use(UsageLoaded(used))
    reservations = ReservationBook(store.reservations, events, leasing.use)

    door = await _open_door(config, stack, memory, leasing, phones)
    tvm_host = _dialled(door.host)
    phones.watcher.load = lambda: Load(
        sum(leasing.holds(view.name) for view in phones.fleet.views()), heard_at=door.heard_at
    )

    def gate() -> tuple[str, int]:
        return tvm_host, door.port

    poison = PoisonLedger(store.poison, events)
    parts = HostParts(leasing, gate, poison, Kills(leasing, phones.fleet))
    work = PhoneWork(parts, workers.supervisor, workers.toolchains.of_view)
    quieting = QuietParts(phones.fleet.quiet, leasing, config.quiesce)
    personal = LeaseExecutor(
        leases=leasing,
        phones=phones.fleet,
        client=phones.client,
        gate=gate,
        events=events,
        user_of=LeasePeople(phones.client.address),
    )
    dispatcher = Dispatcher(
        store=store,
        events=events,
        leases=leasing,
        devices=phones.fleet,
        executors={
            BenchSpec.kind: BenchExecutor(work, phones.look, store.measurements.nominal_s, quieting),
            CompareSpec.kind: CompareExecutor(
                work, phones.look, Bundles(workers.bundles.get, phones.fleet.lending), quieting
            ),
            RunSpec.kind: RunExecutor(work),
            TuneSpec.kind: TuneExecutor(
                work, store.record_sets, workers.artifacts, store.measurements.nominal_s, quieting
            ),
            ShellSpec.kind: ShellExecutor(phones.client, phones.fleet),
            LeaseSpec.kind: personal,
        },
        bench=Workbench(
            jobs=store.jobs, events=events, keep_log=memory.logs.keep, leases=leasing, devices=phones.fleet
        ),
        limits=leasing.limits_of,
    )
    # Before anything else may end them: leases whose sessions the gate has carried through the restart.
    survivors = door.survivors
    kept = leasing.tvm.take_up(store.leases.open(), survivors) if survivors else frozenset[str]()
    await dispatcher.start(kept)
    stack.push_async_callback(dispatcher.stop)
    door.begin()
    secrets = {each.device: each.secret for each in survivors if not each.ended}
    phones.fleet.outlived_on = lambda name: secrets.get(name, "") if leasing.in_session(name) else ""
    return Sharing(gate, door, leasing, reservations, personal, poison, dispatcher, quieting)


def _lease_policy(config: FarmConfig) -> LeasePolicy:
    return LeasePolicy(
        unused_s=config.lease.unused_s,
        allocator=AllocatorPolicy(workers=config.jobs.workers),
        quota=config.quota,
        users=config.user,
        tvm_class={normalise(key): lease_class for key, lease_class in config.gates.tvm_class.items()},
    )


async def _open_door(
    config: FarmConfig, stack: contextlib.AsyncExitStack, memory: Memory, leasing: Leasing, phones: Phones
) -> Door:
    """The door with its gate in this process, or with the one that runs apart (`[tvm] gate`)."""
    policy = _door_policy(config.tvm, GateLimits(idle_s=config.lease.idle_s))
    if not config.tvm.gate:
        door = TvmDoor(config.tvm.host, config.tvm.port, leasing.tvm, leasing.tvm, policy)
        await door.start()
        stack.push_async_callback(door.stop)
        return door

    def lost(why: str) -> None:
        if why:
            memory.events.publish("gate.lost", "gate", reason=why)
        else:
            memory.events.publish("gate.back", "gate")

    farm = hashlib.sha256(str(memory.where).encode()).hexdigest()
    apart = GateDoor(Path(config.tvm.gate), farm, leasing.tvm, leasing.tvm, policy, lost)

    async def stop() -> None:
        await apart.stop()
        if apart.left:
            log.info("%d sessions go on at the gate", apart.left)
            phones.leave_adb()

    stack.push_async_callback(stop)
    await apart.start()
    return apart


def _door_policy(config: TvmConfig, gate: GateLimits) -> DoorPolicy:
    external = config.external
    return DoorPolicy(
        advertise=config.advertise,
        external=ExternalPolicy(
            allow=external.allow, custom_addresses=external.custom_addresses, join=frozenset(external.join)
        ),
        gate=gate,
    )


def _dialled(host: str) -> str:
    """The address to dial for a server bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
