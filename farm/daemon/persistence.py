"""Persistent state: the store, the event log and the audit log over it, attempts' logs, and their retention."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from farm import __version__
from farm.common.events import Event, EventLog
from farm.common.tasks import Begin
from farm.config import FarmConfig
from farm.control.audit import AuditTrail
from farm.control.listeners import group_to_admit, prepare_runtime_folder
from farm.daemon.problems import Problems
from farm.daemon.starting import Start
from farm.head.wire import UNDERSTOOD
from farm.jobs.logs import AttemptLogs
from farm.leasing.lab_view import LabView
from farm.model.event_kinds import TROUBLE
from farm.store.event_follower import EventFollower
from farm.store.event_history import EventHistory
from farm.store.retention import Retention
from farm.store.server_opening import StoreRole
from farm.store.store import Store

log = logging.getLogger("farm")


@dataclass(frozen=True, slots=True)
class Persistence:
    """The parts that keep state."""

    where: str | Path  # the database: a URL, or the file
    store: Store
    events: EventLog  # of this daemon, as they happen; readers get those of `history`
    follower: EventFollower | None  # of a database on a server
    history: EventHistory
    logs: AttemptLogs
    retention: Retention
    audit: AuditTrail
    hosts: tuple[str, ...] | None  # whose leases this daemon holds; None: all of the database
    lab: LabView  # with the other hosts

    def use(self, config: FarmConfig) -> None:
        """Keep things as long as it says, from now on."""
        self.retention.use(config.store.keep_days, config.store.max_mb, config.control.audit_days)

    def tasks(self) -> dict[str, Begin]:
        """The tasks that run as long as the daemon, by name."""
        tasks: dict[str, Begin] = {"history": self.history.run}
        if self.hosts is None:
            tasks["retention"] = self.retention.run
        else:  # the head prunes the database
            tasks["logs"] = partial(self.logs.keep_tidy, self.store.jobs)
        if self.store.server is not None:
            tasks["database server"] = self.store.server.run
        if self.follower is not None:
            tasks["events of the database"] = self.follower.run
        return tasks

    def ending_tasks(self) -> dict[str, Begin]:
        """The tasks whose end ends the daemon, by name: this process may not write to the database any more."""
        ends: dict[str, Begin] = {}
        if self.store.term is not None:
            ends["term of the database"] = self.store.term.lost
        if self.store.server is not None:
            ends["changes of the database"] = self.store.database.writer.lost
        return ends


def database_of(config: FarmConfig) -> str | Path:
    """The database: a URL, or the file."""
    return config.store.url or config.state_dir / "farm.db"


async def open_persistence(
    config: FarmConfig, stack: contextlib.AsyncExitStack, problems: Problems, start: Start
) -> Persistence:
    """Open the store and begin a new epoch; a database on a server is waited for.

    Raises:
        StopRequestedError: the daemon is to end before the database is there.
        HostError: the runtime folder cannot be used; the database is damaged, of a newer farm, or cannot be opened.
    """
    prepare_runtime_folder(config.runtime_dir, group_to_admit())
    where = database_of(config)
    open_store = partial(
        Store.open, where, config.lab.host, state_dir=config.state_dir, role=StoreRole.HOST, protocols=UNDERSTOOD
    )
    store = await start.open_database(open_store, config.runtime_dir) if config.store.url else open_store()
    stack.callback(store.close)
    events = EventLog(store.epoch, store.now)
    if config.lab.head_apart:
        events.host_of = lambda _: config.lab.host
    events.subscribe(_log_event)
    follower = None if store.server is None else EventFollower(events, store.events)
    history = EventHistory(events, store.events, follower)
    stack.push_async_callback(history.close)
    audit = AuditTrail(store.audit, "" if store.server is None else config.lab.host, wall=store.now)
    stack.push_async_callback(audit.close)  # after the parts that may still write to it
    events.publish("daemon.started", "daemon", epoch=store.epoch, version=__version__)
    store.on_problem(problems.of_store(store, events))
    if store.server is not None:
        problems.sources.append(store.server.problems)
    logs = AttemptLogs(config.state_dir / "logs")
    keep = config.store
    retention = Retention(
        store.database, keep_days=keep.keep_days, max_mb=keep.max_mb, audit_days=config.control.audit_days,
        remove_logs=logs.remove,
    )  # fmt: skip
    hosts = (config.lab.host,) if config.lab.head_apart else None
    lab = LabView(config.lab.host if config.lab.head_apart else "", store.lab)
    return Persistence(where, store, events, follower, history, logs, retention, audit, hosts, lab)


def _log_event(event: Event) -> None:
    log.log(
        logging.WARNING if event.kind in TROUBLE else logging.INFO,
        "%s %s %s",
        event.kind,
        event.subject,
        " ".join(f"{name}={value}" for name, value in event.data.items() if value),
    )
