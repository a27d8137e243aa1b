"""Files beside the database: the lock of the state folder, and backups."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from farm.common.errors import Code, HostError, UserError
from farm.common.files import publish, write_durably

PAGES_AT_ONCE = 256  # 1 MiB: between steps the database's own writers continue
HEADER_BYTES = 100  # counters and the journal's mode stand there, and differ between a file and its copy
CHUNK_BYTES = 1 << 20
STARTS = "starts"


# What a daemon opens at its start; farm.db and its reserve have checks of their own.
STATE_FOLDERS = (
    "", "adb", "adb/.android", "artifacts", "artifacts/partial", "bundles", "bundles/names", "bundles/objects",
    "bundles/tmp", "ports-off", "keys", "logs", "work", "work/attempts", "work/cache",
)  # fmt: skip
STATE_FILES = (
    "lock", "starts", "farm.db-wal", "farm.db-shm", "adb/adbkey", "adb/adbkey.pub", "adb/carried.json",
    "adb/server.log", "adb/tunnels.json", "keys/database.pass", "keys/lab.key", "keys/lab.pem", "keys/server.key",
    "work/zygote-*.log",
)  # fmt: skip


def check_paths(state_dir: Path, runtime: Path) -> None:
    """Look at every path that a start opens, before the first is.

    Raises:
        HostError: one is of another type than it must be, or this process may not use it.
    """
    folders = [state_dir / name for name in STATE_FOLDERS]
    files = [path for name in STATE_FILES for path in (state_dir.glob(name) if "*" in name else [state_dir / name])]
    for path in (*folders, runtime):
        if _type(path) not in (None, stat.S_IFDIR):
            option = {
                state_dir: " or choose another with --state-dir",
                runtime: " or choose another with --runtime-dir",
            }
            hint = _move_away(path) + option.get(path, "")
            raise HostError(f"{path} must be a folder, and is a file", hint=hint)
    for path in (*files, *(runtime / name for name in ("adb.sock", "control.sock", "worker.sock"))):
        if _type(path) == stat.S_IFDIR:
            wanted = "socket" if path.parent == runtime else "file"
            raise HostError(f"{path} must be a {wanted}, and is a folder", hint=_move_away(path))
    for path in (*folders, *files):
        if state_dir / "work" in path.parents or (found := _type(path)) is None:
            continue  # the workers' user may own what is in it
        if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if found == stat.S_IFDIR else 0)):
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            raise _unusable(
                path,
                "its file system is mounted read-only"
                if read_only
                else f"uid {os.geteuid()} may not read and write it",
            )


def unusable_paths(state_dir: Path) -> Iterator[Path]:
    """Paths that a start opens and the state folder's owner may not open, such as root's after a restore by hand."""
    owner = state_dir.stat().st_uid
    for name in (*STATE_FOLDERS, *STATE_FILES, "farm.db"):
        for path in state_dir.glob(name) if "*" in name else [state_dir / name]:
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if "work" not in path.parts[-2:] and (owner != found.st_uid or found.st_mode & 0o600 != 0o600):
                    yield path


def give_to_owner(made: Path | int, folder: Path) -> None:
    """Give what root made in the state folder to the folder's owner."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(made, owner.st_uid, owner.st_gid)


def _type(path: Path) -> int | None:
    """The file type bits at a path (`stat.S_IFMT`); None: there is nothing."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _unusable(path: Path, why: str) -> HostError:
    hint = "choose another folder with --state-dir, or run as the user that owns it"
    return HostError(f"cannot use {path}: {why}", hint=hint)


def _move_away(path: Path) -> str:
    return f"move it away, farm makes it again: mv {path} {path}.old"


class StateFolderLock:
    """One daemon per state folder: held from construction to `close`; the kernel releases it with the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            HostError: another process has it (its pid is named), or the folder cannot be written.
        """
        path = folder / "lock"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            give_to_owner(self._file, folder)
        except OSError as error:
            raise HostError(
                f"cannot use the state folder {folder}: {error.strerror}",
                hint="choose another with --state-dir, or run as the user that owns it",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._file, 32).decode(errors="replace").strip()
            os.close(self._file)
            raise HostError(
                f"another daemon (pid {holder or 'unknown'}) uses the state folder {folder}",
                Code.STATE_FOLDER_IN_USE,
                hint=f"stop it (kill {holder}), or start this one with another --state-dir and --runtime-dir",
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let the next daemon in."""
        os.close(self._file)


def read_starts(folder: Path) -> int:
    """The number of the latest start that this host has made with a database on a server; 0: none."""
    try:
        return int((folder / STARTS).read_text())
    except (OSError, ValueError):
        return 0


def write_starts(folder: Path, number: int) -> None:
    """Keep the number: a database that was restored from a backup does not know it."""
    try:
        write_durably(folder / STARTS, f"{number}\n".encode())
    except OSError as error:
        raise HostError(
            f"cannot write {folder / STARTS}: {error.strerror}", hint="is there room, and is the folder farm's own?"
        ) from error


def backup_name(path: Path, what: str = "") -> Path:
    """A free path for a copy of the database, also within the second of another; names sort by time."""
    name = f"{path.name}.backup-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    copies = (path.with_name("-".join(filter(None, (name, str(number or ""), what)))) for number in count())
    return next(copy for copy in copies if not copy.exists())


def newest_backup(path: Path) -> Path | None:
    """The newest copy that farm put beside the database."""
    found = [each for each in path.parent.glob(f"{path.name}.backup-*") if not each.name.endswith(".part")]
    return max(found, default=None)


def copy_before(path: Path, what: str) -> tuple[Path, bool]:
    """Copy an unused database aside; an identical older copy of the same name is enough.

    Otherwise each start that is killed on the way would leave a copy.

    Returns:
        Where the copy is, and whether it was made now.

    Raises:
        UserError, HostError: as `copy_database`.
    """
    for part in path.parent.glob(f"{path.name}.backup-*-{what}.part*"):
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # the log goes into the file, if there is room
    for older in sorted(path.parent.glob(f"{path.name}.backup-*-{what}"), reverse=True):
        with contextlib.suppress(OSError):
            if _is_copy_of(older, path):
                return older, False
    copy = backup_name(path, what)
    copy_database(path, copy)
    return copy, True


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
    """Copy a database as it is at one moment, while others write to it.

    Raises:
        UserError: there is a file of that name, or the folder cannot be written.
        HostError: the database cannot be read, or the disk is full.
    """
    if to.exists():
        raise UserError(f"{to} exists already", hint="name a new file")
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
        publish(part, to)
    except (sqlite3.Error, OSError) as error:
        part.unlink(missing_ok=True)
        if not to.parent.is_dir():
            raise UserError(f"there is no folder {to.parent}", hint="name a file in an existing folder") from error
        raise HostError(
            f"cannot copy {path} to {to}: {error}", hint="is there room, and may farm write there?"
        ) from error
