"""The job door: every verb people have, registered with the part that answers it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial

from farm import __version__
from farm.adb.tools import PhoneTools
from farm.bundle.manifest import Bundle
from farm.config import FarmConfig
from farm.control.server import ControlServer
from farm.control.verbs.auth import AuthVerbs
from farm.control.verbs.bundle import BundleVerbs
from farm.control.verbs.care import CareVerbs
from farm.control.verbs.doctor import MB, DoctorVerbs, Host
from farm.control.verbs.drain import DrainVerbs
from farm.control.verbs.event import EventVerbs
from farm.control.verbs.fleet import DaemonFacts, FleetVerbs
from farm.control.verbs.history import HistoryVerbs
from farm.control.verbs.job import JobVerbs
from farm.control.verbs.job_steps import JobSteps
from farm.control.verbs.job_streams import JobStreams
from farm.control.verbs.lease import LeaseVerbs
from farm.control.verbs.personal_lease import PersonalLeaseVerbs
from farm.control.verbs.poison import PoisonVerbs
from farm.control.verbs.readings import ReadingsVerbs
from farm.control.verbs.records import RecordsVerbs
from farm.control.verbs.store import StoreVerbs
from farm.control.verbs.tool import ToolVerbs
from farm.control.verbs.toolchain import ToolchainVerbs
from farm.control.verbs.tunnel import TunnelVerbs
from farm.daemon.http import WebDoor
from farm.daemon.memory import Memory
from farm.daemon.phones import Phones
from farm.daemon.problems import Problems
from farm.daemon.reload import Reloader
from farm.daemon.security import open_security
from farm.daemon.sharing import Sharing
from farm.daemon.workers import Workers
from farm.store.check import damage_of

DOCTOR_CHECK_BYTES = 256 << 20  # of a larger database only `farm store check` reads every page: that takes minutes


async def open_job_door(
    config: FarmConfig,
    stack: contextlib.AsyncExitStack,
    memory: Memory,
    workers: Workers,
    phones: Phones,
    sharing: Sharing,
    problems: Problems,
    reloader: Reloader,
    *,
    web: WebDoor,
) -> ControlServer:
    """Register the verbs and let people in.

    Raises:
        DoorError: the socket cannot be opened.
    """
    store, fleet, leasing = memory.store, phones.fleet, sharing.leasing
    security = open_security(config, memory, sharing.personal)
    control = ControlServer(
        config.control_socket,
        artifacts=workers.artifacts,
        gid=workers.gid,
        audit=memory.audit,
        accounts=security.accounts,
        elsewhere=security.elsewhere,
    )
    facts = DaemonFacts(
        __version__,
        os.getpid(),
        sharing.gate,
        sharing.door.summary,
        config.adb_socket,
        problems.look,
        door=lambda: (sharing.door.host, sharing.door.pid),
        web=lambda: web.url,
    )
    drain = DrainVerbs(leasing, memory.events)
    problems.sources.append(drain.problems)

    def in_use(bundle: Bundle) -> str:
        holders, named_by = fleet.bundles_in_use().get(bundle.hash), workers.toolchains.naming(bundle)
        if named_by:
            return f"toolchain {named_by[0]} names it"
        return f"it is on {', '.join(holders)}" if holders else ""

    def notes_of(job_ids: Sequence[str]) -> Mapping[str, str]:
        return {job.id: str(job.spec.get("note", "")) for job in store.jobs.several(job_ids)}

    streams = JobStreams(store, memory.events, memory.history, memory.logs, sharing.dispatcher.lives)
    jobs = JobVerbs(sharing.dispatcher, store, streams, leasing, JobSteps(memory.events))
    leases = LeaseVerbs(
        fleet,
        leasing,
        phones.aliases,
        memory.events,
        records=store.leases,
        reservations=sharing.reservations,
        adb_key=config.state_dir / "adb" / "adbkey",
        explain_job=jobs.explain,
        notes_of=notes_of,
        heat_note=phones.gates.note,
    )
    tools = PhoneTools(config.adb_socket)
    stack.callback(tools.close)
    for verbs in (
        AuthVerbs(security.accounts, store.audit, security.elsewhere),
        FleetVerbs(fleet, leasing, phones.aliases, memory.events, facts),
        CareVerbs(fleet),
        reloader,
        drain,
        BundleVerbs(workers.bundles, workers.toolchains.compiler_of, in_use, fleet.bundles_changed),
        ToolchainVerbs(workers.toolchains, workers.supervisor, workers.bundles, fleet.bundles_changed),
        EventVerbs(memory.history),
        PoisonVerbs(sharing.poison, leasing.holders),
        DoctorVerbs(_host(config, memory, workers), phones.look_at_usb),
        jobs,
        leases,
        PersonalLeaseVerbs(sharing.personal),
        RecordsVerbs(store.record_sets, workers.artifacts),
        HistoryVerbs(store.measurements),
        ReadingsVerbs(fleet, phones.series),
        StoreVerbs(store, memory.where, memory.retention),
        TunnelVerbs(fleet, phones.tunnels),
        ToolVerbs(fleet, leasing, tools, workers.artifacts, phones.client),
    ):
        verbs.register(control)
    problems.sources.append(control.problems)
    await control.start()
    stack.push_async_callback(control.stop)
    return control


def _host(config: FarmConfig, memory: Memory, workers: Workers) -> Host:
    """What `farm doctor` is told of this host."""
    return Host(
        workers.artifacts,
        memory.store,
        None if config.store.url else config.state_dir / "farm.db",
        config.store.max_mb * MB,
        workers.run_as.name,
        config.state_dir,
        damage=partial(damage_of, memory.store.database.engine, DOCTOR_CHECK_BYTES),
        blocked=workers.run_as.blocked,
    )
