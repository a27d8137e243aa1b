"""What must survive `kill -9`: named statements over the schema, each a method. SQLite with WAL by default.

Reads are short and run where they are called; writes go through the one writer thread and return after the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, delete, event, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import DatabaseError

from farm.core.errors import HostError
from farm.store.schema import SCHEMA_VERSION, alias, device, job, meta, metadata
from farm.store.writer import Writer

BUSY_TIMEOUT_MS = 5_000  # `farm store backup` or a curious sqlite3 shell may hold the file for a moment


class DatabaseUnusableError(HostError):
    """The database file cannot be used."""

    code = "database"


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """What the farm remembers of a phone."""

    serial: str
    name: str
    hardware_serial: str = ""
    pool: str = ""
    adopted: bool = False
    service: str = "in"
    address: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class Store:
    """The open database of one daemon. `epoch` is this start's number."""

    def __init__(self, path: Path) -> None:
        """Open or create the database and begin a new epoch, durably.

        Raises:
            DatabaseUnusableError: the file is damaged, of a newer farm, or cannot be opened.
        """
        self.path = path
        self._engine = _engine(path, begin="BEGIN")
        try:
            with self._engine.connect() as connection:
                _check(connection, path)
            self.epoch = _begin_epoch(path)
        except DatabaseError as error:
            self._engine.dispose()
            raise _unusable(path, str(error.orig)) from error
        except DatabaseUnusableError:
            self._engine.dispose()
            raise
        self._writer = Writer(_engine(path, begin="BEGIN IMMEDIATE"))

    def close(self) -> None:
        """Finish what is queued and close the file."""
        self._writer.close()
        self._engine.dispose()

    # --- devices and aliases --------------------------------------------------------------------------------------

    def devices(self) -> tuple[DeviceRecord, ...]:
        """Every remembered phone, by name."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(device).order_by(device.c.name)).mappings()
            return tuple(
                DeviceRecord(**{**row, "adopted": bool(row["adopted"]), "labels": json.loads(row["labels"])})
                for row in rows
            )

    async def save_device(self, record: DeviceRecord) -> None:
        """Insert or replace a phone.

        Raises:
            StoreConflictError: another phone has that name.
        """
        values = {**asdict(record), "adopted": int(record.adopted), "labels": json.dumps(dict(record.labels))}
        statement = upsert(device).values(values).on_conflict_do_update(index_elements=["serial"], set_=values)
        await self._writer.write(lambda connection: connection.execute(statement) and None)

    async def forget_device(self, serial: str) -> None:
        """Remove a phone."""
        statement = delete(device).where(device.c.serial == serial)
        await self._writer.write(lambda connection: connection.execute(statement) and None)

    def aliases(self) -> dict[str, str]:
        """Aliases set by hand, with their selectors."""
        with self._engine.connect() as connection:
            return {row.alias: row.selector for row in connection.execute(select(alias))}

    async def save_alias(self, name: str, selector: str) -> None:
        """Set an alias."""
        statement = upsert(alias).values(alias=name, selector=selector)
        statement = statement.on_conflict_do_update(index_elements=["alias"], set_={"selector": selector})
        await self._writer.write(lambda connection: connection.execute(statement) and None)

    async def forget_alias(self, name: str) -> bool:
        """Remove an alias; whether there was one."""
        statement = delete(alias).where(alias.c.alias == name)
        return await self._writer.write(lambda connection: connection.execute(statement).rowcount > 0)

    # --- jobs -----------------------------------------------------------------------------------------------------

    async def add_job(self, job_id: str, *, kind: str, user: str, spec: Mapping[str, Any]) -> None:
        """Keep a job before it is acted upon."""
        statement = insert(job).values(
            id=job_id, kind=kind, user=user, spec=json.dumps(spec), state="running", submitted_at=_now()
        )
        await self._writer.write(lambda connection: connection.execute(statement) and None)

    async def end_job(self, job_id: str, *, state: str, result: Mapping[str, Any]) -> None:
        """Keep how a job ended, `done` or `failed`; only the first end counts."""
        statement = (
            update(job)
            .where(job.c.id == job_id, job.c.state == "running")
            .values(state=state, ended_at=_now(), result=json.dumps(result))
        )
        await self._writer.write(lambda connection: connection.execute(statement) and None)

    def job(self, job_id: str) -> Mapping[str, Any] | None:
        """A job with its spec and result, None when there is none of that id."""
        with self._engine.connect() as connection:
            row = connection.execute(select(job).where(job.c.id == job_id)).mappings().one_or_none()
        if row is None:
            return None
        return {**row, "spec": json.loads(row["spec"]), "result": json.loads(row["result"]) if row["result"] else None}

    async def give_up_lost_jobs(self) -> int:
        """End the jobs that a killed daemon left running; how many there were."""
        lost = update(job).where(job.c.state == "running").values(state="lost", ended_at=_now())
        return await self._writer.write(lambda connection: connection.execute(lost).rowcount)


def _begin_epoch(path: Path) -> int:
    """Create what is missing and count this start. Fences must never repeat: this one commit waits for the disk."""
    engine = _engine(path, begin="BEGIN IMMEDIATE", synchronous="FULL")
    try:
        with engine.begin() as connection:
            metadata.create_all(connection)
            version = upsert(meta).values(name="schema_version", value=SCHEMA_VERSION)
            connection.execute(version.on_conflict_do_nothing())
            count = upsert(meta).values(name="epoch", value=1)
            connection.execute(count.on_conflict_do_update(index_elements=["name"], set_={"value": meta.c.value + 1}))
            return int(connection.execute(select(meta.c.value).where(meta.c.name == "epoch")).scalar_one())
    finally:
        engine.dispose()


def _engine(path: Path, *, begin: str, synchronous: str = "NORMAL") -> Engine:
    engine = create_engine(f"sqlite:///{path}")
    pragmas = (
        "journal_mode = WAL", f"synchronous = {synchronous}", "foreign_keys = ON", f"busy_timeout = {BUSY_TIMEOUT_MS}",
    )  # fmt: skip

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver's own comes too late
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _check(connection: Connection, path: Path) -> None:
    problem = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if problem != "ok":
        raise _unusable(path, str(problem))
    tables = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE name = 'meta'").all()
    if not tables:
        return
    version = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar_one_or_none()
    if version is not None and version != SCHEMA_VERSION:
        raise DatabaseUnusableError(
            f"{path} has schema version {version}; this farm knows {SCHEMA_VERSION}",
            hint="start the farm release that wrote it, or move the file away to begin anew",
        )


def _unusable(path: Path, evidence: str) -> DatabaseUnusableError:
    return DatabaseUnusableError(
        f"the database {path} is damaged or is no database",
        hint=f"restore a backup of it, or begin anew: mv {path} {path}.damaged (adopted phones must be adopted again)",
        evidence=evidence,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat()
