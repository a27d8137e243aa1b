"""A lab's allocator with 1,000 devices and 100,000 waiting requests, and a head that takes over a queue of so many.

A decision is measured in processor time of its thread, so other load of the host does not count.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from contextlib import AsyncExitStack

from benchmarks import lab_load
from benchmarks.bench_allocator import BusyLab
from benchmarks.harness import Context, Figure, percentile, under
from farm.head.model import LeasePolicy
from farm.head.process import HeadTerm
from farm.kinds import KINDS
from farm.store.server_opening import StoreRole
from farm.store.store import Store
from tests.support import postgres

DEVICES = 1_000
WAITING = 100_000
EVENTS = 2_000
GOAL_MS = 0.5
GOAL_99_MS = 3.0
GOAL_LOADED_S = 5.0


def run(context: Context) -> list[Figure]:
    """Median and 99th percentile of a phone freed, and how long a head takes over."""
    context.say(f"{WAITING:,} requests wait for {DEVICES:,} devices")
    lab = BusyLab(WAITING, devices=DEVICES, clock=time.thread_time)
    ms = [1e3 * each for each in lab.freed(EVENTS)]
    figures = [
        under("a phone freed: median", statistics.median(ms), "ms", GOAL_MS),
        under("a phone freed: 99th percentile", percentile(ms, 99), "ms", GOAL_99_MS),
    ]
    del lab
    with postgres.running_server(durable=True) as server:
        url = postgres.new_database(server)
        context.say(f"writing {WAITING:,} queued jobs")
        asyncio.run(_fill(url))
        gc.collect()  # a head is a process of its own, without the objects of what was measured before
        context.say("a head takes over")
        took_s, processor_s = asyncio.run(_taken_over(url))
    return [
        *figures,
        under(f"a queue of {WAITING:,} jobs read and loaded", took_s, "s", GOAL_LOADED_S),
        Figure("processor time of the head meanwhile", processor_s, "s"),
    ]


async def _fill(url: str) -> None:
    queued = list(lab_load.jobs(WAITING, DEVICES, random.Random(0)))
    await lab_load.fill(url, queued, "one", [lab_load.device(number) for number in range(DEVICES)])


async def _taken_over(url: str) -> tuple[float, float]:
    """Seconds, and those of processor time, until a new head knows the queue; it grants as soon as it does."""
    store = await asyncio.to_thread(Store.open, url, role=StoreRole.HEAD)
    async with AsyncExitStack() as stack:
        stack.callback(store.close)
        term = HeadTerm(store, KINDS, stack)
        begun_s, used_s = time.perf_counter(), time.process_time()
        await term.take_over(LeasePolicy())
        return time.perf_counter() - begun_s, time.process_time() - used_s
