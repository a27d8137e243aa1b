"""`farm store check|backup|prune`: the same for a served database, and for one whose state folder the caller locks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, func, select
from sqlalchemy import text as sql
from sqlalchemy.exc import DatabaseError

from farm.common.errors import Code, HostError, UserError
from farm.common.files import checked_file, publish
from farm.store import schema
from farm.store.columns import StoredValueError
from farm.store.database import size_of
from farm.store.engine import sqlite_engine, without_limits
from farm.store.files import backup_name, copy_database, give_to_owner
from farm.store.leases import read_reservations
from farm.store.opening import READ_AT_START, damage_error, open_error, version_of
from farm.store.retention import Pruned, Retention
from farm.store.server_opening import StoreRole, open_server
from farm.store.store import Store

MAX_FINDINGS = 20  # one damaged page can break thousands of rows

# Rules that no CHECK can express. Each counts the rows that break it.
_RULES: Mapping[str, str] = {
    "running attempts whose lease has ended": (
        "SELECT count(*) FROM attempt JOIN lease ON lease.id = attempt.lease "
        "WHERE attempt.ended_at IS NULL AND attempt.pooled = 0 AND lease.ended_at IS NOT NULL"
    ),
    "running attempts of jobs that are not running": (
        "SELECT count(*) FROM attempt JOIN job ON job.id = attempt.job "
        "WHERE attempt.ended_at IS NULL AND job.state <> 'running'"
    ),
    "attempts under another lease's fence": (
        "SELECT count(*) FROM attempt JOIN lease ON lease.id = attempt.lease WHERE lease.fence <> attempt.fence"
    ),
}


@dataclass(frozen=True, slots=True)
class StoreCheckReport:
    """The findings of a check."""

    findings: tuple[str, ...]  # one line each; empty: the database is sound
    rows: Mapping[str, int]  # by table
    size_bytes: int
    oldest: datetime | None  # submission of the oldest job kept

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ok": not self.findings,
            "findings": list(self.findings),
            "rows": dict(self.rows),
            "size_bytes": self.size_bytes,
            "oldest": self.oldest.isoformat() if self.oldest else None,
        }


def check(engine: Engine) -> StoreCheckReport:
    """Look at everything: minutes for a database of many GB. For a thread; others read and write meanwhile."""
    findings: list[str] = []
    rows: dict[str, int] = {}
    oldest = None
    size_bytes = 0
    with engine.connect() as connection, contextlib.ExitStack() as stack:
        try:
            if connection.dialect.name == "sqlite":
                findings += _of_sqlite(connection)
            else:
                stack.enter_context(without_limits(connection))
            size_bytes = size_of(connection)
            for table in schema.metadata.sorted_tables:
                rows[table.name] = connection.execute(select(func.count()).select_from(table)).scalar_one()
            for rule, count in _RULES.items():
                if broken := connection.execute(sql(count)).scalar_one():
                    findings.append(f"{broken} {rule}")
            findings += read_reservations(connection)[1]
            first = select(schema.job.c.submitted_at).order_by(schema.job.c.seq).limit(1)
            oldest = connection.execute(first).scalar_one_or_none()
            for live in READ_AT_START:
                connection.execute(live).all()
        except DatabaseError as error:
            findings.append(str(error.orig))
        except StoredValueError as error:
            findings.append(error.with_row(connection))
        except (ValueError, OverflowError) as error:
            findings.append(f"a value cannot be read: {error}")
    return StoreCheckReport(tuple(findings[:MAX_FINDINGS]), rows, size_bytes, oldest)


def damage_of(engine: Engine, most_bytes: int) -> str:
    """The first damage in the pages of a SQLite database, one line; "" for none, a larger database, or a server.

    Seconds for a hundred MB. For a thread; others read and write meanwhile.
    """
    try:
        with engine.connect() as connection:
            if connection.dialect.name != "sqlite" or size_of(connection) > most_bytes:
                return ""
            found = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
    except DatabaseError as error:
        found = str(error.orig)
    return "" if found == "ok" else found


def _of_sqlite(connection: Connection) -> list[str]:
    lines = connection.exec_driver_sql(f"PRAGMA integrity_check({MAX_FINDINGS})").scalars().all()
    findings = [] if lines == ["ok"] else [str(line) for line in lines]
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(MAX_FINDINGS)
    return findings + [f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there" for row in broken]


DUMP_HINT = "pg_dump, pg_dumpall --roles-only and pg_restore --create: docs/many-hosts.md"


def check_database(where: Path | str) -> StoreCheckReport:
    """Look at everything in a database that no daemon serves.

    Raises:
        HostError: it is so damaged that it cannot be opened, or it is of another farm release.
    """
    if isinstance(where, str):
        server = open_server(where, StoreRole.HEAD)
        try:
            return check(server.reading)
        finally:
            server.close()
    engine = sqlite_engine(there(where))
    try:
        with engine.connect() as connection:
            version = version_of(connection, where)
        if version != schema.SCHEMA_VERSION:
            raise UserError(f"{where} is of an earlier farm release", hint="farm serve brings it up to date")
        return check(engine)
    except DatabaseError as error:
        raise open_error(where, error) from error
    except ValueError as error:
        raise damage_error(where, str(error)) from error
    finally:
        engine.dispose()


def back_up(where: Path | str) -> Path:
    """Copy a database; returns the copy, beside it.

    Raises:
        UserError: it is on a server, or there is none.
        HostError: it cannot be read, or there is no room.
    """
    if isinstance(where, str):
        raise UserError("farm does not copy databases on a server", hint=DUMP_HINT)
    to = backup_name(there(where))
    copy_database(where, to)
    give_to_owner(to, to.parent)
    return to


def restore(copy: Path, path: Path) -> Path | None:
    """Put a copy in the place of a database that no daemon serves, whole or not at all.

    Returns:
        Where the database of before is; None: there was none.

    Raises:
        UserError: it is no farm's database, or is damaged.
        HostError: it cannot be read, is of a newer farm, or there is no room.
    """
    part, aside = path.with_name(f"{path.name}.restored"), None
    part.unlink(missing_ok=True)
    copy_database(checked_file(copy), part)
    try:
        _check_copy(part, copy)
        give_to_owner(part, path.parent)
        if path.exists():
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as before:
                before.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            aside = path.with_name(f"{path.name}.replaced-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
            os.link(path, aside)  # at each moment there is a database: without one a start makes a new one
        for log in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + log).rename(f"{aside or path.name + '.replaced'}{log}")
        publish(part, path)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}", hint="run it as root, or as farm's user") from error
    finally:
        part.unlink(missing_ok=True)
    return aside


def _check_copy(part: Path, name: Path) -> None:
    """Refuse a copy that no daemon could serve. The start brings an earlier release's up to date."""
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(part), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            if version_of(connection, name) is None:
                raise UserError(f"{name} is an empty database", hint="name a file that `farm store backup` made")
            if findings := _of_sqlite(connection):
                raise UserError(f"{name} is damaged: {findings[0]}", hint="name an older backup")
    except DatabaseError as error:
        raise UserError(f"{name} is no database of farm", hint="name a backup", evidence=str(error.orig)) from error


def prune_database(
    where: Path | str, *, keep_days: float, max_mb: float, dry_run: bool, remove_logs: Callable[[Sequence[str]], None]
) -> Pruned:
    """Remove rows that are older than the configuration keeps."""
    if isinstance(where, Path):
        there(where)
    store = Store.open(where)

    async def prune() -> Pruned:
        retention = Retention(store.database, keep_days=keep_days, max_mb=max_mb, remove_logs=remove_logs)
        return retention.would_prune() if dry_run else await retention.prune()

    try:
        return asyncio.run(prune())
    finally:
        store.close()


def there(path: Path) -> Path:
    """The path of a SQLite database.

    Raises:
        UserError: there is none.
    """
    if not path.exists():
        raise UserError(
            f"there is no {path}", Code.NO_DATABASE, hint="farm serve makes it; --state-dir names another folder"
        )
    return path
