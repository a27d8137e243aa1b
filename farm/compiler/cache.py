"""Folders of what was made once and may be made again: one maker at a time, and what nobody wants is deleted."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

UNUSED_S = 7 * 24 * 3600.0  # what nobody wanted for a week is deleted


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out of what a lock file stands for."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed by the kernel however this process ends
        yield


def sha256_of(path: Path) -> str:
    """The hash of a file: what was made is whole as long as it has the one that was noted then."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def used_at_s(path: Path) -> float:
    """When a path was written or touched last, seconds since the epoch."""
    return path.stat().st_mtime


def newest_inside_s(folder: Path) -> float:
    """When anything directly in a folder, or it, was written or touched last, seconds since the epoch."""
    return max(used_at_s(path) for path in (folder, *folder.iterdir()))


def drop_unused(paths: Iterable[Path], used_at_s: Callable[[Path], float] = used_at_s, lock: str = "") -> None:
    """Delete those files and folders that nobody wanted for a week.

    `lock`: the file in a folder that whoever uses the folder has locked; one that is in use stays, however old.
    """
    oldest_s = time.time() - UNUSED_S
    for path in paths:
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:  # another process was faster, or is in there
            if used_at_s(path) >= oldest_s:
                continue
            if lock and (path / lock).is_file():
                file = held.enter_context((path / lock).open())
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
