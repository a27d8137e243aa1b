"""What a claim costs with many jobs queued: `store.jobs.start`, commit included, on both engines."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import Context, Figure
from farm.model.job import Attempt, AttemptState, Job, JobState
from farm.model.requests import LeaseClass, LeaseSource
from farm.store.leases import LeaseRecord
from farm.store.store import Store
from tests.support import postgres

LENGTHS = (100, 1_000, 10_000, 100_000)
CLAIMS = 500  # at each length, in turns of changing order: what else the host does falls on all of them
WARM_UP = 20
AT_ONCE = 1_000  # jobs of one submit
SELECTORS = 50  # distinct ones
GOAL_RATIO = 1.5  # of medians, longest to shortest queue


def run(context: Context) -> list[Figure]:
    """Figures of each engine."""
    figures = _figures("SQLite", {n: context.folder / f"{n}.db" for n in LENGTHS}, context)
    if why := postgres.missing():
        context.say(f"without PostgreSQL: {why}")
        return figures
    with postgres.running_server(durable=True) as server:
        return figures + _figures("PostgreSQL", {n: postgres.new_database(server) for n in LENGTHS}, context)


def _figures(engine: str, places: dict[int, Path | str], context: Context) -> list[Figure]:
    context.say(f"{engine}: queues of {', '.join(f'{length:,}' for length in LENGTHS)} jobs")
    times = asyncio.run(_measure(places))
    medians = {length: statistics.median(each) for length, each in times.items()}
    ratio = medians[LENGTHS[-1]] / medians[LENGTHS[0]]
    return [
        *(Figure(f"{engine}: claim with {n:,} queued, median", medians[n] * 1000, "ms") for n in LENGTHS),
        Figure(
            f"{engine}: {LENGTHS[-1]:,} queued to {LENGTHS[0]:,}", ratio, "times", None,
            f"below {GOAL_RATIO:g}", ratio < GOAL_RATIO,
        ),
    ]  # fmt: skip


async def _measure(places: dict[int, Path | str]) -> dict[int, list[float]]:
    """Seconds of each claim by length of the queue."""
    chance = random.Random(0)
    times: dict[int, list[float]] = {length: [] for length in places}
    with contextlib.ExitStack() as stack:
        stores = {}
        for length, place in places.items():
            store = stores[length] = Store.open(place)
            stack.callback(store.close)
            for first in range(0, length, AT_ONCE):
                await store.jobs.add([_job(number) for number in range(first, min(first + AT_ONCE, length))])
        for turn in range(WARM_UP + CLAIMS):
            for length, store in chance.sample(list(stores.items()), len(stores)):
                took_s = await _claim(store, f"job-{chance.randrange(length):06}", turn + 1)
                if turn >= WARM_UP:
                    times[length].append(took_s)
    return times


async def _claim(store: Store, job_id: str, fence: int) -> float:
    """Claim a job, then put it back into the queue: its length stays. Seconds of the claim alone."""
    job = store.jobs.get(job_id)
    assert job is not None
    now = datetime.now(UTC)
    lease = LeaseRecord(
        f"l{fence}", "phone", job.user, LeaseSource.JOB, job.id, LeaseClass.BENCH, job.selector, "", fence, now
    )
    await store.leases.grant(lease)
    number = job.attempts + 1
    attempt = Attempt(f"{job.id}.{number}", job.id, number, lease.device, lease.id, fence, now)
    begun = time.perf_counter()
    won = await store.jobs.start(attempt, attempts_before=job.attempts)
    took_s = time.perf_counter() - begun
    ended = replace(attempt, state=AttemptState.FAILED, ended_at=now)
    kept = await store.jobs.finish(ended, replace(job, attempts=number, state=JobState.QUEUED))
    assert won
    assert kept
    await store.leases.end(lease.id, ended_at=now, reason="over", held_s=0.0)
    return took_s


def _job(number: int) -> Job:
    spec = {"kind": "bench", "on": f"soc=sm{number % SELECTORS}", "model": "a" * 64, "name": "model.onnx"}
    return Job(f"job-{number:06}", "bench", f"user-{number % 7}", spec, spec["on"], datetime.now(UTC))
