"""Opening a database: is it one, is it sound, is it ours; then this start's number."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, insert, inspect, select, update
from sqlalchemy.exc import DatabaseError, IntegrityError

from farm.core.errors import HostError
from farm.core.events import EPOCH_SHIFT
from farm.store.backup import copy_before, newest_backup
from farm.store.engine import sqlite_engine
from farm.store.reserve import Reserve
from farm.store.rows import select_jobs, select_leases
from farm.store.schema import SCHEMA_VERSION, attempt, device, job, lease, meta, metadata
from farm.store.trouble import PRIMARY_CODE, trouble_of

# A file of up to this size is checked whole at every start, at 2.4 ms/MB on the reference host. Of a larger one only
# what the start reads is checked, so that it stays fast; `farm store check` looks at everything.
WHOLE_CHECK_BYTES = 64 << 20
MAGIC = b"SQLite format 3\0"  # sqlite.org/fileformat.html
MOST_STARTS = (1 << 53 - EPOCH_SHIFT) - 1  # above the bits of an event's number there are no more
START_TABLES = ("meta", "device", "alias", "selector", "reservation", "toolchain")  # read whole, without history

logger = logging.getLogger(__name__)


class DatabaseUnusableError(HostError):
    """The database cannot be used."""

    code = "database"


@dataclass(frozen=True, slots=True)
class Opened:
    """A database that may be used, and the number of this start."""

    reading: Engine
    writing: Engine
    epoch: int


def open_file(path: Path, reserve: Reserve) -> Opened:
    """Open or create a SQLite database, bring it up to this schema, and count this start durably.

    Raises:
        DatabaseUnusableError: it is damaged, of a newer farm, or cannot be opened.
    """
    if not os.path.lexists(path):  # a link that leads nowhere is no reason to begin anew: its disk may not be mounted
        _create(path)
    _check_shape(path)
    log_is_there = path.with_name(f"{path.name}-wal").exists()
    reading = sqlite_engine(path)
    try:
        with reading.connect() as connection:
            version = version_of(connection, path)
            if version == SCHEMA_VERSION:
                check_contents(connection, path)
        if version != SCHEMA_VERSION:
            _bring_up(path, version)
        if not log_is_there and _was_serving(reading):
            logger.warning(
                "%s was not closed by farm and its write-ahead log is not there: unless another program took it in, "
                "the last changes are lost", path,
            )  # fmt: skip
        epoch = _count_start(path, reserve)
    except (DatabaseError, sqlite3.Error, ValueError, OverflowError) as error:  # also texts, JSON, times not to be read
        reading.dispose()
        raise unusable(path, error) from error
    except BaseException:
        reading.dispose()
        raise
    return Opened(reading, sqlite_engine(path, begin="BEGIN IMMEDIATE"), epoch)


def note_end(engine: Engine) -> None:
    """Note an orderly end: the write-ahead log goes into the file with the last connection."""
    with engine.begin() as connection:
        connection.execute(update(meta).where(meta.c.name == "serving").values(value=0))


def version_of(connection: Connection, name: Path | str) -> int | None:
    """The schema's version in a database, None in an empty one.

    Raises:
        DatabaseUnusableError: it is of a newer farm, or no farm's.
    """
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    found = None
    if meta.name in tables:
        found = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar_one_or_none()
    if found is None:
        raise DatabaseUnusableError(
            f"{name} is a database, but not farm's", hint="name another with [store] url or --state-dir"
        )
    if not isinstance(found, int) or found < 1:
        raise _senseless(name, f"its schema version is {found!r}")
    if found > SCHEMA_VERSION:
        raise DatabaseUnusableError(
            f"{name} has schema version {found}, of a newer farm; this farm knows {SCHEMA_VERSION}",
            hint="start the farm release that wrote it, or restore the backup made before it was brought up to date"
            f"{_newest(name)}",
        )
    return found


def create_tables(connection: Connection) -> None:
    """Everything that an empty database needs."""
    metadata.create_all(connection)
    start = {"schema_version": SCHEMA_VERSION, "epoch": 0, "serving": 0}
    connection.execute(insert(meta), [{"name": name, "value": value} for name, value in start.items()])


def next_epoch(connection: Connection) -> int:
    """Count this start; the number must be durable before anything is done with it.

    Raises:
        DatabaseUnusableError: the count is none, so fences would repeat.
    """
    before = connection.execute(select(meta.c.value).where(meta.c.name == "epoch")).scalar_one_or_none()
    if not isinstance(before, int) or not 0 <= before < MOST_STARTS:
        raise _senseless("the database", f"its number of starts is {before!r}")
    connection.execute(update(meta).where(meta.c.name == "epoch").values(value=before + 1))
    connection.execute(update(meta).where(meta.c.name == "serving").values(value=1))
    return before + 1


def _senseless(name: Path | str, said: str) -> DatabaseUnusableError:
    return DatabaseUnusableError(f"{name} was changed by something else: {said}", hint="restore a backup of it")


def check_contents(connection: Connection, path: Path) -> None:
    """Whether what the start needs can be read, and everything else if it is not much.

    Raises:
        DatabaseUnusableError: it is damaged; ValueError and the like where a value cannot be read.
    """
    if path.stat().st_size <= WHOLE_CHECK_BYTES:
        checks = ["PRAGMA quick_check(1)"]
    else:
        checks = [f"PRAGMA quick_check('{table}')" for table in START_TABLES]
    for check in checks:
        said = str(connection.exec_driver_sql(check).scalar())
        if said != "ok":
            raise damaged(path, said)
    for live in (
        select_jobs().where(job.c.ended_at.is_(None)),
        select_leases().where(lease.c.ended_at.is_(None)),
        select(attempt).where(attempt.c.ended_at.is_(None)),
        select(device),
    ):
        connection.execute(live).all()


def damaged(path: Path, evidence: str) -> DatabaseUnusableError:
    """The error for a damaged file, with the way back."""
    backup = newest_backup(path)
    away = f"mv {path} {path}.damaged && rm -f {path}-wal {path}-shm"
    if backup is not None:
        hint = f"go back to the newest backup: {away} && cp {backup} {path}"
    else:
        hint = f"restore a backup of it, or begin anew: {away} (adopted phones must be adopted again)"
    return DatabaseUnusableError(f"the database {path} is damaged or is no database", hint=hint, evidence=evidence)


def _create(path: Path) -> None:
    """A new database appears whole or not at all: an empty file is never one that was just being made."""
    if (backup := newest_backup(path)) is not None:
        logger.warning("there is no %s; farm begins anew (the newest backup is %s)", path, backup)
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        engine = sqlite_engine(part, begin="BEGIN IMMEDIATE", synchronous="FULL", journal="DELETE")
        try:
            with engine.begin() as connection:
                create_tables(connection)
        finally:
            engine.dispose()
        part.rename(path)
    except (DatabaseError, OSError) as error:
        raise unusable(path, error) from error


def _check_shape(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise DatabaseUnusableError(
            f"{path} is a link to {path.readlink()}, which is not there",
            hint="is its disk mounted? farm begins anew only where there is nothing, not even a link",
        )
    if not path.is_file():
        raise DatabaseUnusableError(
            f"{path} is not a file", hint="the database must be a file; move what is there away"
        )
    try:
        with path.open("rb") as file:
            header = file.read(len(MAGIC))
    except OSError as error:
        raise unusable(path, error) from error
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise DatabaseUnusableError(
            f"cannot use the database {path}: it or its folder is read-only",
            hint="is the file system mounted read-only, or does it belong to another user?",
        )
    if header != MAGIC:  # SQLite itself takes a short file for a new one
        raise damaged(path, "the file is no SQLite database" if header else "the file is empty")


def _bring_up(path: Path, version: int | None) -> None:
    """Migrate an older database, after copying it aside."""
    from farm.store.migrate import migrate

    try:
        backup, made = copy_before(path, f"schema{version or 0}")
    except HostError as error:
        if (trouble := trouble_of(error)) is None:
            raise
        raise DatabaseUnusableError(
            f"cannot use the database {path}: it is of an earlier release and cannot be copied before it is brought up "
            f"to date: {trouble.reason}",
            hint=trouble.hint, evidence=trouble.evidence,
        ) from error  # fmt: skip
    engine = sqlite_engine(path, begin="BEGIN IMMEDIATE", synchronous="FULL", foreign_keys=False)
    try:
        try:
            with engine.begin() as connection:
                migrate(connection, version)
        except BaseException as error:
            # A daemon that is started again and again must not pile up copies.
            if made and _is_still(engine, version, path):
                backup.unlink(missing_ok=True)
            if not isinstance(error, (ValueError, LookupError, IntegrityError)):
                raise
            raise DatabaseUnusableError(
                f"{path} cannot be brought up to date from schema version {version}; it is as it was",
                hint="go on with the farm release that wrote it, and report this",
                evidence=f"{type(error).__name__}: {error}",
            ) from error
        logger.info("%s: from schema version %s to %d (backup: %s)", path, version, SCHEMA_VERSION, backup)
        _tidy(engine, path, "VACUUM")  # from now on the file can shrink: auto_vacuum begins with one
    finally:
        engine.dispose()


def _is_still(engine: Engine, version: int | None, path: Path) -> bool:
    """Whether the schema is as it was: of a commit that failed on the disk's word, nobody knows."""
    with contextlib.suppress(DatabaseError, sqlite3.Error, HostError), engine.connect() as connection:
        return version_of(connection, path) == version
    return False


def _tidy(engine: Engine, path: Path, statement: str) -> None:
    """Do what only saves space; without room for it the start goes on."""
    try:
        with contextlib.closing(engine.raw_connection()) as raw:
            raw.cursor().execute(statement).fetchall()
    except sqlite3.Error as error:
        trouble = trouble_of(error)
        if trouble is None or _is_damage(error):
            raise
        logger.warning("%s: %s was left out, which costs only space: %s", path, statement, trouble.reason)


def _was_serving(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(select(meta.c.value).where(meta.c.name == "serving")).scalar())


def _count_start(path: Path, reserve: Reserve) -> int:
    """Fences must never repeat: this commit waits for the disk, and leaves the write-ahead log for the file itself."""
    engine = sqlite_engine(path, begin="BEGIN IMMEDIATE", synchronous="FULL")
    try:
        try:
            with engine.begin() as connection:
                epoch = next_epoch(connection)
        except DatabaseError as error:
            if trouble_of(error) is None or not reserve.spend():
                raise
            with engine.begin() as connection:
                epoch = next_epoch(connection)
        _tidy(engine, path, "PRAGMA wal_checkpoint(TRUNCATE)")
        return epoch
    finally:
        engine.dispose()


def unusable(path: Path, error: Exception) -> DatabaseUnusableError:
    """In words: damage asks for a backup, anything else for the host's administrator."""
    said = str(getattr(error, "orig", None) or error)
    trouble = trouble_of(error)
    if isinstance(error, OSError):
        return DatabaseUnusableError(f"cannot use the database {path}: {error.strerror}", hint="farm doctor")
    if trouble is None or _is_damage(error):
        return damaged(path, said)
    return DatabaseUnusableError(
        f"cannot use the database {path}: {trouble.reason}", hint=trouble.hint, evidence=trouble.evidence
    )


def _is_damage(error: Exception) -> bool:
    code = getattr(getattr(error, "orig", None) or error, "sqlite_errorcode", None)
    return code is not None and code & PRIMARY_CODE in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _newest(name: Path | str) -> str:
    backup = newest_backup(name) if isinstance(name, Path) else None
    return f" ({backup})" if backup else ""
