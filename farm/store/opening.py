"""Opening a database: is it one, is it undamaged, is it of this release; then the number of this start.

A SQLite file is checked and created whole. Databases on a server: farm.store.server_opening.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from sqlalchemy import Connection, Engine, create_mock_engine, insert, inspect, select, update
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlalchemy.schema import ExecutableDDLElement

from farm.common.doctor_findings import Diagnosis
from farm.common.errors import Code, HostError
from farm.common.events import EPOCH_SHIFT
from farm.common.files import publish
from farm.store.columns import StoredValueError
from farm.store.engine import close_engine, is_damage, outage_of, sqlite_engine
from farm.store.files import copy_before, newest_backup
from farm.store.jobs import select_jobs
from farm.store.lab_state import adopt_rows
from farm.store.leases import select_leases
from farm.store.reserve import ReserveFile
from farm.store.schema import FIRST_SCHEMA_VERSION, SCHEMA_VERSION, attempt, device, job, lease, meta, metadata
from farm.store.server_rules import ServerFacts
from farm.store.term import Term

# A file of up to this size is checked whole at every start, at 2.4 ms/MB on the reference host. Of a larger one only
# what the start reads is checked, so that it stays fast; `farm store check` looks at everything.
WHOLE_CHECK_BYTES = 64 << 20
MAGIC = b"SQLite format 3\0"  # sqlite.org/fileformat.html
MAX_STARTS = (1 << 53 - EPOCH_SHIFT) - 1  # above the bits of an event's number there are no more
START_TABLES = ("meta", "device", "alias", "selector", "reservation", "toolchain")  # read whole, without history
READ_AT_START = (
    select_jobs().where(job.c.ended_at.is_(None)),
    select_leases().where(lease.c.ended_at.is_(None)),
    select(attempt).where(attempt.c.ended_at.is_(None)),
    select(device),
)

logger = logging.getLogger(__name__)


database_error = partial(HostError, code=Code.DATABASE_UNUSABLE)


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    """A database that may be used, and the number of this start."""

    reading: Engine
    writing: Engine
    epoch: int
    close: Callable[[], None]  # after the last write
    term: Term | None = None  # of a server's database, unless a head apart has it: a file's is this daemon's alone
    notes: tuple[Diagnosis, ...] = ()  # about a server, which stay true until the next start
    facts: ServerFacts | None = None  # of a server


def open_file(path: Path, reserve: ReserveFile, host: str = "") -> OpenDatabase:
    """Open or create a SQLite database, bring it up to this schema, and count this start durably.

    Raises:
        HostError: it is damaged, of another farm release, or cannot be opened.
    """
    if not os.path.lexists(path):  # a link that leads nowhere is no reason to begin again: its disk may not be mounted
        _create(path)
    _check_shape(path)
    log_is_there = path.with_name(f"{path.name}-wal").exists()
    reading = sqlite_engine(path)
    with contextlib.ExitStack() as failed:
        failed.callback(reading.dispose)
        try:
            with reading.connect() as connection:
                version = version_of(connection, path)
                if version == SCHEMA_VERSION:
                    _check_contents(connection, path)
            if version != SCHEMA_VERSION:
                _upgrade(path, version)
            if not log_is_there and _was_serving(reading):
                logger.warning(
                    "%s was not closed by farm and its write-ahead log is not there: unless another program took it "
                    "in, the last changes are lost", path,
                )  # fmt: skip
            epoch = _count_start(path, reserve, host)
        except StoredValueError as error:
            with reading.connect() as connection:
                evidence = error.with_row(connection)
            raise damage_error(path, "", f"is damaged: {evidence}") from error
        except (DatabaseError, sqlite3.Error, ValueError, OverflowError) as error:  # also what cannot be read
            raise open_error(path, error) from error
        failed.pop_all()

    def close() -> None:
        """Note an orderly end; the write-ahead log goes into the file with the last connection."""
        with contextlib.suppress(DatabaseError), reading.begin() as connection:  # else the next start warns
            connection.execute(update(meta).where(meta.c.name == "serving").values(value=0))
        close_engine(reading)

    return OpenDatabase(reading, sqlite_engine(path, begin="BEGIN IMMEDIATE"), epoch, close)


def version_of(connection: Connection, name: Path | str) -> int | None:
    """The schema's version in a database, None in an empty one.

    Raises:
        HostError: it is of a newer farm, of one before the first release, or no farm's.
    """
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    found = None
    if meta.name in tables:
        found = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar_one_or_none()
    if found is None:
        raise database_error(
            f"{name} is a database, but not farm's", hint="name another with [store] url or --state-dir"
        )
    if not isinstance(found, int) or found < 1:
        raise _overwritten(name, f"its schema version is {found!r}")
    if found > SCHEMA_VERSION:
        raise database_error(
            f"{name} has schema version {found}, of a newer farm; this farm knows {SCHEMA_VERSION}",
            hint="start the farm release that wrote it, or restore the backup made before it was brought up to date"
            f"{_newest(name)}",
        )
    if found < FIRST_SCHEMA_VERSION:
        raise database_error(
            f"{name} has schema version {found}, from before farm's first release; this farm knows "
            f"{FIRST_SCHEMA_VERSION} to {SCHEMA_VERSION}",
            hint=f"begin with a new database: {_move_away(name, 'old')} (adopted phones must be adopted again)",
        )
    return found


def create_tables(connection: Connection) -> None:
    """Everything that an empty database needs."""
    for statement in _table_statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
    connection.execute(insert(meta).values([("schema_version", SCHEMA_VERSION), ("epoch", 0), ("serving", 0)]))


@cache
def _table_statements(dialect: str) -> list[str]:
    """`metadata.create_all` as text: to compile it takes longer than to execute it."""
    found: list[ExecutableDDLElement] = []
    engine = create_mock_engine(f"{dialect}://", lambda element, *_: found.append(element))
    metadata.create_all(engine, checkfirst=False)
    return [str(each.compile(dialect=engine.dialect)) for each in found]


def next_epoch(connection: Connection, seen: int = 0) -> int:
    """Count this start; the number must be durable before it is used. It is above `seen`, too.

    Raises:
        HostError: the stored number makes no sense, so fences would repeat.
    """
    before = connection.execute(select(meta.c.value).where(meta.c.name == "epoch")).scalar_one_or_none()
    if not isinstance(before, int) or not 0 <= before < MAX_STARTS:
        raise _overwritten("the database", f"its number of starts is {before!r}")
    number = max(before, seen) + 1
    connection.execute(update(meta).where(meta.c.name == "epoch").values(value=number))
    connection.execute(update(meta).where(meta.c.name == "serving").values(value=1))
    return number


def _overwritten(name: Path | str, evidence: str) -> HostError:
    return database_error(f"{name} was changed by something else: {evidence}", hint="restore a backup of it")


def _check_contents(connection: Connection, path: Path) -> None:
    """Read the rows that the start needs, and everything else in a small file.

    Raises:
        HostError: it is damaged; ValueError and the like where a value cannot be read.
    """
    if path.stat().st_size <= WHOLE_CHECK_BYTES:
        checks = ["PRAGMA quick_check(1)"]
    else:
        checks = [f"PRAGMA quick_check('{table}')" for table in START_TABLES]
    for check in checks:
        found = str(connection.exec_driver_sql(check).scalar())
        if found != "ok":
            raise damage_error(path, found)
    for live in READ_AT_START:
        connection.execute(live).all()


def damage_error(path: Path, evidence: str, problem: str = "is damaged or is no database") -> HostError:
    """The error for a damaged file, with the way back."""
    backup = newest_backup(path)
    if backup is not None:
        hint = f"go back to the newest backup: farm store restore {backup} --state-dir {path.parent}"
    else:
        begin = f"begin again: {_move_away(path, 'damaged')} (adopted phones must be adopted again)"
        hint = f"farm store restore FILE, a backup of it, or {begin}"
    return database_error(f"the database {path} {problem}", hint=hint, evidence=evidence)


def _move_away(name: Path | str, suffix: str) -> str:
    if isinstance(name, str):
        return "give [store] url another, empty database"
    return f"mv {name} {name}.{suffix} && rm -f {name}-wal {name}-shm"


def _create(path: Path) -> None:
    """A new database appears whole or not at all: an empty file is never a database under construction."""
    if (backup := newest_backup(path)) is not None:
        logger.warning("there is no %s; farm begins again (the newest backup is %s)", path, backup)
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        engine = sqlite_engine(part, begin="BEGIN IMMEDIATE", synchronous="FULL", journal="DELETE")
        try:
            with engine.begin() as connection:
                create_tables(connection)
        finally:
            engine.dispose()
        publish(part, path)
    except (DatabaseError, OSError) as error:
        raise open_error(path, error) from error


def _check_shape(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise database_error(
            f"{path} is a link to {path.readlink()}, which is not there",
            hint="is its disk mounted? farm begins again only where there is nothing, not even a link",
        )
    if not path.is_file():
        raise database_error(f"{path} is not a file", hint="the database must be a file; move what is there away")
    try:
        with path.open("rb") as file:
            header = file.read(len(MAGIC))
    except OSError as error:
        raise open_error(path, error) from error
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise database_error(
            f"cannot use the database {path}: it or its folder is read-only",
            hint="is the file system mounted read-only, or does it belong to another user?",
        )
    if header != MAGIC:  # SQLite itself takes a short file for a new one
        raise damage_error(path, "the file is no SQLite database" if header else "the file is empty")


def _upgrade(path: Path, version: int | None) -> None:
    """Migrate an older database, after copying it aside."""
    from farm.store.migrations import migrate

    try:
        backup, made = copy_before(path, f"schema{version or 0}")
    except HostError as error:
        if (outage := outage_of(error)) is None:
            raise
        raise database_error(
            f"cannot use the database {path}: it is of an earlier release and cannot be copied before it is brought up "
            f"to date: {outage.reason}",
            hint=outage.hint, evidence=outage.evidence,
        ) from error  # fmt: skip
    engine = sqlite_engine(path, begin="BEGIN IMMEDIATE", synchronous="FULL", foreign_keys=False)
    try:
        try:
            with engine.begin() as connection:
                if version is None:
                    create_tables(connection)
                else:
                    migrate(connection, version)
        except BaseException as error:
            # A daemon that is started again and again must not pile up copies.
            if made and _is_still(engine, version, path):
                backup.unlink(missing_ok=True)
            if not isinstance(error, (ValueError, LookupError, IntegrityError)):
                raise
            raise database_error(
                f"{path} cannot be brought up to date from schema version {version}; it is as it was",
                hint="continue with the farm release that wrote it, and report this",
                evidence=f"{type(error).__name__}: {error}",
            ) from error
        logger.info("%s: from schema version %s to %d (backup: %s)", path, version, SCHEMA_VERSION, backup)
        _tidy(engine, path, "VACUUM")  # from now on the file can shrink: auto_vacuum begins with one
    finally:
        engine.dispose()


def _is_still(engine: Engine, version: int | None, path: Path) -> bool:
    """Whether the schema is as it was: a commit whose disk reported an error may have happened."""
    with contextlib.suppress(DatabaseError, sqlite3.Error, HostError), engine.connect() as connection:
        return version_of(connection, path) == version
    return False


def _tidy(engine: Engine, path: Path, statement: str) -> None:
    """Execute a statement that only saves space; without room for it the start continues."""
    try:
        with contextlib.closing(engine.raw_connection()) as raw:
            raw.cursor().execute(statement).fetchall()
    except sqlite3.Error as error:
        outage = outage_of(error)
        if outage is None or is_damage(error):
            raise
        logger.warning("%s: %s was left out, which costs only space: %s", path, statement, outage.reason)


def _was_serving(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(select(meta.c.value).where(meta.c.name == "serving")).scalar())


def _count_start(path: Path, reserve: ReserveFile, host: str) -> int:
    """Fences must never repeat: this commit waits for the disk, and leaves the write-ahead log for the file itself."""
    engine = sqlite_engine(path, begin="BEGIN IMMEDIATE", synchronous="FULL")

    def count() -> int:
        with engine.begin() as connection:
            epoch = next_epoch(connection)
            adopt_rows(connection, host)
        return epoch

    try:
        try:
            epoch = count()
        except DatabaseError as error:
            if outage_of(error) is None or not reserve.release():
                raise
            epoch = count()
        _tidy(engine, path, "PRAGMA wal_checkpoint(TRUNCATE)")
        return epoch
    finally:
        engine.dispose()


def open_error(path: Path, error: Exception) -> HostError:
    """The error for a failed start: damage asks for a backup, anything else for the host's administrator."""
    if isinstance(error, OSError):
        return database_error(f"cannot use the database {path}: {error.strerror}", hint="farm doctor")
    outage = outage_of(error)
    if outage is None or is_damage(error):
        return damage_error(path, str(getattr(error, "orig", None) or error))
    return database_error(
        f"cannot use the database {path}: {outage.reason}", hint=outage.hint, evidence=outage.evidence
    )


def _newest(name: Path | str) -> str:
    backup = newest_backup(name) if isinstance(name, Path) else None
    return f" ({backup})" if backup else ""
