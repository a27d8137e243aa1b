"""A database with a past: ended jobs, each with its lease, attempt, result and events, as the store's own rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

from sqlalchemy import Connection, insert

from farm.common.events import Event
from farm.model.job import Attempt, AttemptState, Job, JobState
from farm.model.requests import LeaseClass, LeaseSource
from farm.store import schema
from farm.store.appended_rows import append_rows, event_rows
from farm.store.database import Database, selector_number, values_of
from farm.store.leases import LeaseRecord
from farm.store.store import Store

AT_ONCE = 2000  # jobs in one commit
EACH_S = 20.0  # a job lasts so long
DEVICES = 50
USERS = 20
SPEC = {
    "kind": "bench", "on": "android", "model": "0" * 64, "name": "mobilenet.onnx", "repeat": 20, "number": 5,
}  # fmt: skip
RESULT = {"ok": True, "latency_ms": {"median": 12.5}, "samples_s": [0.0125] * 20}
EVENTS_OF_A_JOB = ("job.submitted", "attempt.started", "attempt.ended", "job.done")
EVENTS_OF_A_LEASE = ("lease.granted", "lease.released")


async def write_history(path: Path, jobs: int) -> None:
    """Fill a new database with `jobs` ended jobs, the last of which ended now: all of it counts as recent use."""
    store = Store.open(path)
    began = datetime.now(UTC) - timedelta(seconds=jobs * EACH_S / DEVICES)
    try:
        database: Database = store.jobs._database  # noqa: SLF001 (rows by the thousand: no verb of the store needs that)
        numbers = iter(range(1, jobs + 1))
        while chunk := list(islice(numbers, AT_ONCE)):
            await database.write(partial(_insert, numbers=chunk, began=began))
    finally:
        store.close()


def _insert(connection: Connection, numbers: list[int], began: datetime) -> None:
    made = [_one(number, began) for number in numbers]
    selector = selector_number(connection, "android")
    connection.execute(
        insert(schema.job), [{**values_of(job), "selector": selector, "submission": None} for job, _, _ in made]
    )
    connection.execute(insert(schema.lease), [{**values_of(lease), "selector": selector} for _, lease, _ in made])
    connection.execute(insert(schema.attempt), [values_of(attempt) for _, _, attempt in made])
    connection.execute(insert(schema.result), [{"job": job.id, "body": RESULT} for job, _, _ in made])
    events = (event for number, each in zip(numbers, made, strict=True) for event in _events(number, *each))
    append_rows(connection, event_rows(events))


def _one(number: int, began: datetime) -> tuple[Job, LeaseRecord, Attempt]:
    at = began + timedelta(seconds=(number - 1) * EACH_S / DEVICES - EACH_S)
    ended, device, user = at + timedelta(seconds=EACH_S), f"phone-{number % DEVICES}", f"user-{number % USERS}"
    job = Job(
        id=f"bench-{number:08x}", kind="bench", user=user, spec=SPEC, selector="android", submitted_at=at,
        state=JobState.DONE, attempts=1, ended_at=ended, lease_class=LeaseClass.BENCH,
    )  # fmt: skip
    lease = LeaseRecord(
        id=f"lease-0-{number}", device=device, user=user, source=LeaseSource.JOB, job=job.id,
        lease_class=LeaseClass.BENCH, selector="android", key="", fence=number, granted_at=at, ended_at=ended,
        reason="done", held_s=EACH_S,
    )  # fmt: skip
    attempt = Attempt(f"{job.id}.1", job.id, 1, device, lease.id, number, at)
    return job, lease, replace(attempt, state=AttemptState.DONE, ended_at=ended)


def _events(number: int, job: Job, lease: LeaseRecord, attempt: Attempt) -> Iterator[Event]:
    told = [(kind, job.id) for kind in EVENTS_OF_A_JOB] + [(kind, lease.id) for kind in EVENTS_OF_A_LEASE]
    data = {"job": job.id, "device": lease.device, "fence": lease.fence, "lease": lease.id, "state": attempt.state}
    for place, (kind, subject) in enumerate(told):
        yield Event(number * len(told) + place, lease.granted_at, kind, subject, data)
