"""Metrics that a daemon and a head have: of the process, and of the queue where it is."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_size_t as size
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from farm.common.histogram import QUICK_S, Histogram
from farm.common.systemd import ProgressCheck
from farm.head.local import LocalHead
from farm.metrics.exposition import Page
from farm.metrics.ledger import Ledger
from farm.model.requests import LeaseClass

LOOP_PROBE_S = 0.25  # between two observations of the event loop's delay


class _Mallinfo2(ctypes.Structure):  # man 3 mallinfo2: arena to hblks, hblkhd, usmblks and fsmblks, uordblks ...
    _fields_: ClassVar = [("_1", size * 4), ("hblkhd", size), ("_2", size * 2), ("uordblks", size), ("_3", size * 2)]


def heap_bytes() -> float:
    """Bytes in use by malloc, without what it keeps for later; 0 where the C library cannot say."""
    mallinfo2: Any = getattr(ctypes.CDLL(None), "mallinfo2", _Mallinfo2)  # other C libraries have none: all fields 0
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return float(info.uordblks + info.hblkhd)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSources:
    """The state of a process with a store. No function of it waits or asks the store."""

    version: str
    started_at: float = field(default_factory=time.time)  # seconds since 1970
    heap_bytes: Callable[[], float] = float
    loop_delay: Histogram = field(default_factory=partial(Histogram, QUICK_S))
    progress: Sequence[ProgressCheck] = ()  # of the watchdog
    store_problem: Callable[[], str] | None = str  # None: no database is open
    commits: Histogram = field(default_factory=partial(Histogram, QUICK_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """The state of the head that is read, where the head is."""

    depth: Callable[[], Mapping[LeaseClass, int]] = dict  # waiting requests
    longest_s: Callable[[], Mapping[LeaseClass, float]] = dict  # the oldest one's wait
    servable: Callable[[], int] = lambda: 0  # waiting requests that nothing keeps from an idle device
    decisions: Histogram = field(default_factory=partial(Histogram, QUICK_S))  # of the allocator
    jobs: Callable[[], Mapping[tuple[str, str], int]] = dict  # by kind and state


def queue_figures(head: LocalHead) -> QueueFigures:
    """The figures of a head."""
    requests = head.requests
    return QueueFigures(
        depth=lambda: requests.depth,
        longest_s=requests.longest_s,
        servable=requests.overlooked,
        decisions=requests.decisions,
        jobs=head.dispatcher.count,
    )


def add_process(page: Page, sources: ProcessSources) -> None:
    """The process and its store."""
    page.set("farm_build", 1.0, sources.version)
    page.set("farm_daemon_start_time_seconds", sources.started_at)
    page.set("farm_heap_bytes", sources.heap_bytes())
    page.distributed("farm_event_loop_delay_seconds", {(): sources.loop_delay})
    for each in sources.progress:
        page.set("farm_watchdog_silence_seconds", each.silent_s(), each.component)
        page.set("farm_watchdog_limit_seconds", each.limit_s, each.component)
    if sources.store_problem is not None:
        page.set("farm_store_writable", float(not sources.store_problem()))
    page.distributed("farm_store_commit_seconds", {(): sources.commits})


def add_queue(page: Page, queue: QueueFigures) -> None:
    """Waiting requests, the allocator's decisions, and unfinished jobs."""
    waiting, longest_s = queue.depth(), queue.longest_s()
    for lease_class in LeaseClass:
        page.set("farm_requests_waiting", waiting.get(lease_class, 0), lease_class.value)
        page.set("farm_requests_oldest_wait_seconds", longest_s.get(lease_class, 0.0), lease_class.value)
    page.distributed("farm_allocator_decision_seconds", {(): queue.decisions})
    page.set("farm_requests_servable", queue.servable())
    page.counted("farm_jobs", queue.jobs())


def add_decisions(page: Page, ledger: Ledger) -> None:
    """Counts of the events that a head publishes."""
    page.counted("farm_events", ledger.events)
    page.set("farm_clock_jumps", ledger.clock_jumps)
    page.set("farm_store_outages", ledger.outages)
    page.distributed("farm_time_to_device_seconds", ledger.waits)
    page.counted("farm_jobs_submitted", ledger.submitted)
    page.counted("farm_jobs_ended", ledger.jobs)
    page.counted("farm_attempts_ended", ledger.attempts)


def head_page(sources: ProcessSources, queue: QueueFigures | None, ledger: Ledger) -> Page:
    """Everything of a `farm head`; `queue` is None while another head decides."""
    page = Page()
    add_process(page, sources)
    add_decisions(page, ledger)
    page.set("farm_lab_head_decides", float(queue is not None))
    if queue is not None:
        add_queue(page, queue)
    return page


async def measure_loop_delay(delays: Histogram) -> None:
    """Observe how late the event loop's timers are, until cancelled: a blocked loop delays every phone and session."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LOOP_PROBE_S
        await asyncio.sleep(LOOP_PROBE_S)
        delays.observe(max(0.0, loop.time() - due_s))
