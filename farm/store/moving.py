"""Moves the SQLite store of a stopped daemon into an empty PostgreSQL database: all of it, or nothing.

Rows pass as they are stored, without the columns' types: what another release wrote stays as it is. Everything happens
in one transaction of the server, so that a killed move leaves an empty database and is simply repeated. The number
`moved` in `meta` says of which content the database is the copy.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Result, Table, false, func, literal_column, select
from sqlalchemy import text as sql
from sqlalchemy.exc import DatabaseError, OperationalError

from farm.common.errors import Code, HostError, UserError
from farm.store.engine import sqlite_engine, without_limits
from farm.store.files import HEADER_BYTES, copy_before
from farm.store.lab_roles import LabRoles
from farm.store.maintenance import there
from farm.store.opening import damage_error, database_error, open_error, version_of
from farm.store.schema import SCHEMA_VERSION, meta, metadata
from farm.store.server_opening import LOCK, check_server, named_engine, server_error

BATCH = 1000  # rows read at once
MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move."""

    backup: Path  # of the SQLite database
    rows: Mapping[str, int]  # by table
    before: bool  # an earlier call has moved it


def move_to_server(path: Path, url: str, report: Callable[[str, int], None] = lambda *_: None) -> Moved:
    """Copy a SQLite database that no daemon uses into a server's empty one; the file stays as it is.

    Args:
        path: the database.
        url: the server's database.
        report: called with each table and its number of rows, before these are copied.

    Raises:
        UserError: there is no such file, it is of an earlier release, or the server's database is in use.
        HostError: the file is damaged, or the server cannot be used; nothing was moved.
    """
    there(path)
    name, engine = named_engine(url)
    reading = sqlite_engine(path)
    try:
        _check_source(reading, path)
        backup, _ = copy_before(path, "before-postgresql")
        mark = _mark(backup)
        with reading.connect() as source, engine.begin() as target:
            check_server(target, name)
            with without_limits(target):
                target.execute(sql("SET LOCAL idle_in_transaction_session_timeout = 0"))
                target.execute(sql("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
                LabRoles(target).refuse_code()
                if before := _is_moved(target, name, mark):
                    return Moved(backup, _counts(source), before)
                metadata.create_all(target)
                for table in metadata.sorted_tables:
                    _copy(source, target, table, report)
                target.execute(
                    sql("INSERT INTO meta (name, value) VALUES (:name, :mark)"), {"name": MOVED, "mark": mark}
                )
                rows = _compare(source, target)
        return Moved(backup, rows, before=False)
    except sqlite3.Error as error:
        raise open_error(path, error) from error
    except DatabaseError as error:
        if isinstance(error.orig, sqlite3.Error):
            raise open_error(path, error) from error
        raise server_error(name, error) from error
    finally:
        reading.dispose()
        engine.dispose()


def _check_source(reading: Engine, path: Path) -> None:
    with reading.connect() as connection:
        try:
            version = version_of(connection, path)
        except DatabaseError as error:
            raise open_error(path, error) from error
        if version != SCHEMA_VERSION:
            raise UserError(
                f"{path} is of an earlier farm release",
                hint="start and stop `farm serve` once, which brings it up to date",
            )
        found = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
    if found != "ok":
        raise damage_error(path, found)


def _mark(copy: Path) -> int:
    """A number of the content of a copy."""
    with copy.open("rb") as file:
        file.seek(HEADER_BYTES)
        return int.from_bytes(hashlib.file_digest(file, "sha256").digest()[:8]) >> 1


def _is_moved(target: Connection, name: str, mark: int) -> bool:
    """Whether the database has this content already; False when it is empty.

    Raises:
        UserError: it has another content.
        HostError: it is of another release, or not farm's.
    """
    version = version_of(target, name)
    if version is None:
        return False
    if version < SCHEMA_VERSION:
        raise database_error(
            f"{name} has schema version {version}, of an earlier farm; this farm writes {SCHEMA_VERSION}",
            hint="name an empty database",
        )
    if target.execute(select(meta.c.value).where(meta.c.name == MOVED)).scalar() == mark:
        return True
    raise UserError(
        f"{name} has the content of another farm, or of this one from another time; nothing was moved",
        Code.DATABASE_UNUSABLE,
        hint="name an empty database: sudo -u postgres createdb --owner=ROLE --encoding=UTF8 --template=template0 NAME",
    )


def _copy(source: Connection, target: Connection, table: Table, report: Callable[[str, int], None]) -> None:
    names = [f'"{column.name}"' for column in table.columns]
    report(table.name, _count(source, table))
    rows: Result[Any] = source.execute(
        select(*map(literal_column, names)).select_from(table)
    )  # without the columns' types
    driver: Any = target.connection.driver_connection
    from psycopg import Error  # the engine has it

    try:
        with driver.cursor() as cursor, cursor.copy(f'COPY "{table.name}" ({", ".join(names)}) FROM STDIN') as copy:
            while some := rows.fetchmany(BATCH):
                for row in some:
                    copy.write_row(tuple(row))
    except Error as error:  # as the engine reports errors
        raise OperationalError("COPY", None, error) from error
    if (key := table.autoincrement_column) is not None:
        sequence = func.pg_get_serial_sequence(f'"{table.name}"', key.name)
        target.execute(select(func.setval(sequence, func.coalesce(func.max(key), 0) + 1, false())))


def _count(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _counts(connection: Connection) -> dict[str, int]:
    return {table.name: _count(connection, table) for table in metadata.sorted_tables}


def _compare(source: Connection, target: Connection) -> dict[str, int]:
    """The rows of each table.

    Raises:
        HostError: there are not as many on both sides.
    """
    rows, arrived = _counts(source), _counts(target)
    arrived["meta"] -= 1  # the mark
    wrong = [f"{name}: {count} became {arrived[name]}" for name, count in rows.items() if arrived[name] != count]
    if wrong:
        raise HostError(
            "the copy has other numbers of rows; nothing was moved", Code.DATABASE_UNUSABLE, hint="report this",
            evidence="; ".join(wrong),
        )  # fmt: skip
    return rows
