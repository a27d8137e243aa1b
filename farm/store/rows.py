"""Rows and the values they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, Table, insert, select, update

from farm.core.events import Event
from farm.core.job import Attempt, AttemptState, Job, JobState
from farm.core.requests import Door, LeaseClass
from farm.store import schema
from farm.store.records import LeaseRecord

MOST_NAMED = 1000  # names in one statement: databases bound its parameters (PostgreSQL by 65,535)

_JOB_FIELDS = tuple(field.name for field in fields(Job))


def in_parts(names: Iterable[str]) -> Iterator[list[str]]:
    """Names in lists that one statement may have."""
    rest = iter(names)
    while part := list(islice(rest, MOST_NAMED)):
        yield part


def select_jobs() -> Select[Any]:
    """Whole jobs, with the text of their selector."""
    columns = [schema.job.c[name] for name in _JOB_FIELDS if name != "selector"]
    return select(*columns, schema.selector.c.text.label("selector")).join_from(schema.job, schema.selector)


def job_of(row: RowMapping) -> Job:
    """The job of a row of `select_jobs`."""
    return Job(
        **{
            **row,
            "state": JobState(row["state"]),
            "avoid": frozenset(row["avoid"]),
            "lease_class": LeaseClass(row["lease_class"]),
            "after": tuple(row["after"]),
        }
    )


def job_values(job: Job) -> dict[str, Any]:
    """What never changes of a job, but for its selector's number."""
    return {
        "id": job.id,
        "kind": job.kind,
        "user": job.user,
        "spec": dict(job.spec),
        "submitted_at": job.submitted_at,
        "array": job.array,
        "lease_class": job.lease_class.value,
        "timeout_s": job.timeout_s,
        "max_attempts": job.max_attempts,
        "deadline": job.deadline,
        "after": list(job.after),
        **job_changes(job),
    }


def job_changes(job: Job) -> dict[str, Any]:
    """What decisions change of a job."""
    return {
        "state": job.state.value,
        "device": job.device,
        "avoid": sorted(job.avoid),
        "priority": job.priority,
        "attempts": job.attempts,
        "uncounted": job.uncounted,
        "not_before": job.not_before,
        "error": None if job.error is None else dict(job.error),
        "ended_at": job.ended_at,
    }


def attempt_of(row: RowMapping) -> Attempt:
    """The attempt of a row of `select(schema.attempt)`."""
    return Attempt(**{**row, "state": AttemptState(row["state"]), "pooled": bool(row["pooled"])})


def attempt_values(attempt: Attempt) -> dict[str, Any]:
    """An attempt's row."""
    return {
        "id": attempt.id,
        "job": attempt.job,
        "number": attempt.number,
        "device": attempt.device,
        "lease": attempt.lease,
        "fence": attempt.fence,
        "started_at": attempt.started_at,
        **attempt_end(attempt),
        "facts": dict(attempt.facts),
        "pooled": int(attempt.pooled),
    }


def attempt_end(attempt: Attempt) -> dict[str, Any]:
    """What its end changes of an attempt."""
    return {
        "state": attempt.state.value,
        "ended_at": attempt.ended_at,
        "error": None if attempt.error is None else dict(attempt.error),
    }


def select_leases() -> Select[Any]:
    """Whole leases, with the text of their selector."""
    columns = [column for column in schema.lease.c if column is not schema.lease.c.selector]
    return select(*columns, schema.selector.c.text.label("selector")).join_from(schema.lease, schema.selector)


def lease_of(row: RowMapping) -> LeaseRecord:
    """The lease of a row of `select_leases`."""
    return LeaseRecord(**{**row, "door": Door(row["door"]), "lease_class": LeaseClass(row["lease_class"])})


def event_of(row: RowMapping) -> Event:
    """The event of a row of `select(schema.event)`."""
    return Event(row["seq"], row["at"], row["kind"], row["subject"], row["data"], drafted=True)


def insert_events(connection: Connection, events: Iterable[Event]) -> None:
    """Keep events."""
    rows = [
        {"seq": each.seq, "at": each.at, "kind": each.kind, "subject": each.subject, "data": dict(each.data)}
        for each in events
    ]
    if rows:
        connection.execute(insert(schema.event), rows)


def put(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Insert a row, or replace the one with its primary key. Engines differ in upserts; one writer needs none."""
    same = [column == values[column.name] for column in table.primary_key]
    if connection.execute(update(table).where(*same).values(values)).rowcount == 0:
        connection.execute(insert(table).values(values))


def selector_number(connection: Connection, text: str) -> int:
    """The number of a selector, which gets one now if it is new. One thread writes: nobody adds it meanwhile."""
    known = connection.execute(select(schema.selector.c.id).where(schema.selector.c.text == text)).scalar_one_or_none()
    if known is not None:
        return int(known)
    added = connection.execute(insert(schema.selector).values(text=text)).inserted_primary_key
    assert added is not None
    return int(added[0])
