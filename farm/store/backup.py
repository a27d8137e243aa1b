"""Copies of a SQLite database, made while it is in use."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from farm.core.errors import HostError, UserError

PAGES_AT_ONCE = 256  # 1 MiB: between steps the database's own writers go on
HEADER_BYTES = 100  # counters and the journal's mode stand there, and differ between a file and its copy
CHUNK_BYTES = 1 << 20


def backup_name(path: Path, what: str = "") -> Path:
    """Where a copy of the database goes unless it is told; names sort by time."""
    return path.with_name(f"{path.name}.backup-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{what and '-' + what}")


def newest_backup(path: Path) -> Path | None:
    """The newest copy that farm put beside the database."""
    found = [each for each in path.parent.glob(f"{path.name}.backup-*") if not each.name.endswith(".part")]
    return max(found, default=None)


def copy_before(path: Path, what: str) -> tuple[Path, bool]:
    """Copy a database that nobody writes to aside; an older copy of the same name that is still like it is enough.

    Starts that are killed on the way would otherwise leave one copy each.

    Returns:
        Where the copy is, and whether it was made now.

    Raises:
        UserError, HostError: as `copy_database`.
    """
    for part in path.parent.glob(f"{path.name}.backup-*-{what}.part*"):
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    _into_the_file(path)
    for older in sorted(path.parent.glob(f"{path.name}.backup-*-{what}"), reverse=True):
        with contextlib.suppress(OSError):
            if _is_copy_of(older, path):
                return older, False
    copy = backup_name(path, what)
    copy_database(path, copy)
    return copy, True


def _into_the_file(path: Path) -> None:
    """Write what stands in the write-ahead log into the file, where there is room."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _is_copy_of(copy: Path, path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    if (log.exists() and log.stat().st_size) or copy.stat().st_size != path.stat().st_size:
        return False
    with copy.open("rb") as one, path.open("rb") as other:
        one.seek(HEADER_BYTES)
        other.seek(HEADER_BYTES)
        while chunk := one.read(CHUNK_BYTES):
            if chunk != other.read(CHUNK_BYTES):
                return False
    return True


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
