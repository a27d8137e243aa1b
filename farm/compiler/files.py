"""Caches on disk, and .tar archives.

A cache entry has one maker at a time, and is deleted when nothing used it for a week. An archive of unknown origin may
hold plain files only, and never more bytes than the archive itself has.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from farm.common.files import publish

UNUSED_S = 7 * 24 * 3600.0  # an entry that was not used for a week is deleted


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file against other processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed by the kernel however this process ends
        yield


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a path to write a new version of a file to; after the block it replaces `path` at once and for good."""
    partial = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
    yield partial
    publish(partial, path)


def used_at_s(path: Path) -> float:
    """When a path was written or touched last, seconds since the epoch."""
    return path.stat().st_mtime


def newest_inside_s(folder: Path) -> float:
    """When anything directly in a folder, or it, was written or touched last, seconds since the epoch."""
    return max(used_at_s(path) for path in (folder, *folder.iterdir()))


def drop_unused(paths: Iterable[Path], used_at_s: Callable[[Path], float] = used_at_s, lock: str = "") -> None:
    """Delete the files and folders that were not used for a week.

    `lock`: the name of the file that the user of a folder has locked; a folder in use stays, however old.
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


_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


class TarError(ValueError):
    """The archive is damaged, cut short, or has something else than plain files; the message is a clause."""


def tar_members(data: bytes, *, skip_folders: bool = False) -> Iterator[tuple[str, bytes]]:
    """Name and content of each member, in the archive's order. Names may be anything: never write to them.

    A sparse member says that it has gigabytes and is a few hundred bytes; here a member's size is what it takes in the
    archive, so all contents together are smaller than `data`. `skip_folders`: as `tar cf` puts before their files.

    Raises:
        TarError: the archive is damaged; members before the damage were yielded.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if skip_folders and member.type == tarfile.DIRTYPE:
                    continue
                if member.type not in _PLAIN or member.issparse():
                    raise TarError(f"its member {member.name[:80]!r} is no plain file")
                if not 0 <= member.size <= len(data) - member.offset_data:
                    raise TarError(f"its member {member.name[:80]!r} is cut short")
                yield member.name, data[member.offset_data : member.offset_data + member.size]
    except TarError:
        raise
    except (tarfile.TarError, EOFError, OverflowError, ValueError, RecursionError, MemoryError) as error:
        raise TarError(f"it is damaged, or cut short ({str(error)[:200] or type(error).__name__})") from error


def tar_archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """An archive of files with these names and contents: the same files, the same bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(content), 0o644
            archive.addfile(about, io.BytesIO(content))
    return made.getvalue()
