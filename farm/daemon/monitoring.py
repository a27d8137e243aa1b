"""Monitoring of the daemon: its progress and one line for systemd, and its metrics.

The scheduler and the allocator make progress while no timer of theirs is long overdue. The adb watcher does while its
rounds end: each call to an adb server is bounded, and a round with a call that timed out counts, so a wedged adb server
does not end the daemon. The store's thread does while no commit takes longer than all its timeouts together; a database
in trouble ends nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from farm import __version__
from farm.common.histogram import Histogram
from farm.common.systemd import ProgressCheck
from farm.control.server import ControlServer
from farm.daemon.interfaces import Parts
from farm.metrics.collector import FarmCollector, Sources
from farm.metrics.exposition import rendered
from farm.metrics.process import heap_bytes, queue_figures
from farm.model.device import DeviceView

# The watcher's longest way round is a new adb key (30 s) and a start of the server (15 s); every call is bounded.
WATCHER_LIMIT_S = 90.0
STORE_LIMIT_S = 120.0  # connecting may take 10 s, a lock 5 s, a statement on the server 30 s
TRIM_EVERY_S = 10.0


def progress_checks(parts: Parts) -> tuple[ProgressCheck, ...]:
    """The components that must make progress beside the event loop."""
    watcher, queue, database = parts.phones.watcher, parts.scheduling.queue, parts.persistence.store.database
    return (
        ProgressCheck("the adb watcher", lambda: time.monotonic() - watcher.moved_at, WATCHER_LIMIT_S),
        *(() if queue is None else queue.checks()),
        ProgressCheck("the store", database.writer.silent_s, STORE_LIMIT_S),
    )


def status_line(views: Sequence[DeviceView], *, leased: int, sessions: int, waiting: int) -> str:
    """The line that `systemctl status farm` shows."""
    states = Counter(view.life for view in views if view.adopted)
    phones = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none adopted"
    return f"phones: {phones}; {leased} leased, {sessions} sessions, {waiting} requests waiting"


async def return_memory() -> None:
    """Give freed memory back to the host every 10 s, until cancelled: glibc keeps it otherwise.

    Also while nothing grows: what is freed last, after a burst, is the most. A look without effect takes 0.01 ms.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # man 3 malloc_trim; other C libraries have none
    while trim is not None:
        await asyncio.to_thread(trim, 0)
        await asyncio.sleep(TRIM_EVERY_S)


def current_status(parts: Parts) -> str:
    """The line as of now."""
    scheduling = parts.scheduling
    return status_line(
        parts.phones.fleet.views(),
        leased=len(scheduling.leasing.active.holders()),
        sessions=scheduling.tvm_server.sessions,
        waiting=scheduling.head.waiting_here,
    )


def metrics_page(
    parts: Parts, control: ControlServer, progress: Sequence[ProgressCheck], loop_delay: Histogram
) -> Callable[[str], Coroutine[Any, Any, tuple[bytes, str]]]:
    """Count from now on. Returns a function from an Accept header to the body of /metrics and its content type."""
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    GCCollector(registry=process)
    config, phones, scheduling, accounts = parts.config, parts.phones, parts.scheduling, control.accounts
    store, leasing, supervisor = parts.persistence.store, scheduling.leasing, parts.workers.supervisor
    recoveries, queue = phones.fleet.recovery.log, scheduling.queue
    collector = FarmCollector(
        Sources(
            version=__version__,
            heap_bytes=heap_bytes,
            epoch=store.epoch,
            state_dir=config.state_dir,
            database=store.path,
            views=phones.fleet.views,
            quarantined=lambda: {serial: row.fault for serial, row in recoveries.quarantined.items()},
            probe_failures=phones.fleet.probes.failed,
            away_limit_s=phones.fleet.recovery.away_limit_s,
            heat_policy=phones.gates.policy,
            adb_up=lambda: not phones.watcher.server_lost,
            round_trips=phones.client.round_trips,
            holders=leasing.active.holders,
            queue=None if queue is None else queue_figures(queue),
            draining=lambda: bool(scheduling.head.drained),
            sessions=lambda: scheduling.tvm_server.sessions,
            bundles=phones.fleet.rollouts.states,
            builders=parts.workers.builder_slots,
            builders_unmatched=lambda: parts.workers.builders.unmatched() if parts.workers.builders else 0,
            toolchains=supervisor.standing,
            zygote_starts=supervisor.starts,
            worker_ends=supervisor.ends,
            results_late=parts.stopped_results.ages_s,
            lab=lambda: parts.persistence.lab.latest,
            store_problem=lambda: store.problem,
            round_trip_s=lambda: store.server.facts.round_trip_s if store.server else None,
            commits=store.database.writer.commits,
            calls=control.calls,
            auth_failures=lambda: 0 if accounts is None else accounts.tokens.wrong + accounts.keys.wrong,
            progress=progress,
            loop_delay=loop_delay,
        ),
        clock=store.now,
    )
    collector.follow(parts.persistence.events, phones.fleet.subscribe)

    async def answer(accept: str) -> tuple[bytes, str]:
        await parts.persistence.lab.look()
        return await asyncio.to_thread(rendered, collector.read(), accept, process=process)

    return answer
