"""Jobs, attempts and leases to store."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from farm.model.job import Attempt, AttemptState, Job, JobState
from farm.model.requests import LeaseClass, LeaseSource
from farm.store.database import Database
from farm.store.leases import LeaseRecord
from farm.store.store import Store
from tests.support.waiting import HANG_S, until

NOW = datetime(2026, 11, 20, 12, 0, 0, 123457, tzinfo=UTC)


def job(name: str = "j1", **fields: Any) -> Job:
    return Job(**{"id": name, "kind": "shell", "user": "ann", "spec": {"command": "id"}, "selector": "soc=sm8550",
                  "submitted_at": NOW, **fields})  # fmt: skip


def lease(fence: int = 1, device: str = "pixel", **fields: Any) -> LeaseRecord:
    return LeaseRecord(**{"id": f"l{fence}", "device": device, "user": "ann", "source": LeaseSource.JOB, "job": "j1",
                          "lease_class": LeaseClass.BENCH, "selector": "soc=sm8550", "key": "", "fence": fence,
                          "granted_at": NOW, "armed_at": NOW, **fields})  # fmt: skip


def attempt(fence: int = 1, of: str = "j1", number: int = 1, device: str = "pixel") -> Attempt:
    return Attempt(f"{of}.{number}", of, number, device, f"l{fence}", fence, NOW)


def over(begun: Attempt, state: AttemptState = AttemptState.DONE, **fields: Any) -> Attempt:
    return replace(begun, state=state, ended_at=NOW + timedelta(seconds=7), **fields)


def ended(before: Job, state: JobState = JobState.DONE, **fields: Any) -> Job:
    return replace(before, state=state, ended_at=NOW + timedelta(seconds=7), **fields)


async def begin(store: Store, begun: Attempt) -> bool:
    """A lease and an attempt under it."""
    await store.leases.grant(lease(begun.fence, begun.device, job=begun.job))
    return await store.jobs.start(begun, attempts_before=begun.number - 1)


def listened(store: Store) -> list[bool]:
    """What the store tells from now on: True when writing fails, False when it works again."""
    heard: list[bool] = []
    store.on_problem(heard.append)
    return heard


def sql(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Execute a statement in a SQLite file as another program does; its rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


@asynccontextmanager
async def busy_writer(
    database: Database, before: Callable[[Connection], object] = id, after: Callable[[Connection], object] = id
) -> AsyncIterator[asyncio.Task[None]]:
    """The writer is in a transaction as long as the block; `before`, `after`: its statements at either end."""
    begun, go_on = threading.Event(), threading.Event()

    def write(connection: Connection) -> None:
        before(connection)
        begun.set()
        assert go_on.wait(HANG_S)
        after(connection)

    writing = asyncio.ensure_future(database.write(write))
    await until(begun.is_set)
    try:
        yield writing
    finally:
        go_on.set()
    await asyncio.wait((writing,))
    assert writing.cancelled() or writing.exception() is None
