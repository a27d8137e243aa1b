"""`farm store ...` while no daemon serves: straight on the database, whose state folder the caller has locked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy.exc import DatabaseError

from farm.core.errors import UserError
from farm.store.backup import backup_name, copy_database
from farm.store.check import CheckReport, check
from farm.store.engine import sqlite_engine
from farm.store.opening import damaged, unusable, version_of
from farm.store.retention import Pruned, Retention
from farm.store.schema import SCHEMA_VERSION
from farm.store.server import Server
from farm.store.store import Store

DUMP_HINT = "pg_dump --format=custom --file=FILE DATABASE, and pg_restore to go back"


class NoDatabaseError(UserError):
    """There is no database yet."""

    code = "no_database"


def check_database(where: Path | str) -> CheckReport:
    """Look at everything in a database that nobody serves from.

    Raises:
        DatabaseUnusableError: it is so damaged that it cannot be opened, or it is of another farm release.
    """
    if isinstance(where, str):
        server = Server(where)
        try:
            return check(server.engine)
        finally:
            server.close()
    engine = sqlite_engine(_there(where))
    try:
        with engine.connect() as connection:
            version = version_of(connection, where)
        if version != SCHEMA_VERSION:
            raise UserError(f"{where} is of an earlier farm release", hint="farm serve brings it up to date")
        return check(engine)
    except DatabaseError as error:
        raise unusable(where, error) from error
    except ValueError as error:
        raise damaged(where, str(error)) from error
    finally:
        engine.dispose()


def back_up(where: Path | str, to: Path | None) -> Path:
    """Copy a database; returns where the copy is.

    Raises:
        UserError: it is on a server, there is none, or there is a file of that name.
        HostError: it cannot be read, or there is no room.
    """
    if isinstance(where, str):
        raise UserError("farm does not copy databases on a server", hint=DUMP_HINT)
    to = to or backup_name(_there(where))
    copy_database(where, to)
    return to


def prune_database(
    where: Path | str, *, keep_days: float, max_mb: float, dry_run: bool, remove_logs: Callable[[Sequence[str]], None]
) -> Pruned:
    """Remove what is older than the configuration keeps."""
    if isinstance(where, Path):
        _there(where)
    store = Store.open(where)

    async def prune() -> Pruned:
        retention = Retention(store.database, keep_days=keep_days, max_mb=max_mb, remove_logs=remove_logs)
        return retention.would_prune() if dry_run else await retention.prune()

    try:
        return asyncio.run(prune())
    finally:
        store.close()


def _there(path: Path) -> Path:
    if not path.exists():
        raise NoDatabaseError(f"there is no {path}", hint="farm serve makes it; --state-dir names another folder")
    return path
