"""Copies of a SQLite database, made while it is in use."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from farm.core.errors import HostError, UserError

PAGES_AT_ONCE = 256  # 1 MiB: between steps the database's own writers go on


def backup_name(path: Path, what: str = "") -> Path:
    """Where a copy of the database goes unless it is told; names sort by time."""
    return path.with_name(f"{path.name}.backup-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{what and '-' + what}")


def newest_backup(path: Path) -> Path | None:
    """The newest copy that farm put beside the database."""
    found = [each for each in path.parent.glob(f"{path.name}.backup-*") if not each.name.endswith(".part")]
    return max(found, default=None)


def copy_database(path: Path, to: Path) -> None:
    """Copy a database as it is at one moment, whoever writes to it meanwhile.

    Raises:
        UserError: there is a file of that name, or the folder cannot be written.
        HostError: the database cannot be read, or the disk is full.
    """
    if to.exists():
        raise UserError(f"{to} is there already", hint="name a file that is not")
    part = to.with_name(f"{to.name}.part")
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target, pages=PAGES_AT_ONCE)
            # A copy is one file, without a write-ahead log beside it.
            target.execute("PRAGMA journal_mode = DELETE")
        part.chmod(0o600)
        part.rename(to)
    except (sqlite3.Error, OSError) as error:
        part.unlink(missing_ok=True)
        if not to.parent.is_dir():
            raise UserError(f"there is no folder {to.parent}", hint="name a file in a folder that is there") from error
        raise HostError(
            f"cannot copy {path} to {to}: {error}", hint="is there room, and may farm write there?"
        ) from error
