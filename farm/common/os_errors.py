"""Errors of the operating system that a host is responsible for, by errno, with a remedy for its operator."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farm.common.errors import HostError

_ROOM = "free some room there"
_WRITABLE = "it must be writable for the user that runs farm"
_FILES = "raise the limit of open files (ulimit -n), or run less at once"
HINTS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EIO: "the kernel's log (dmesg) says what is wrong with the disk",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: "give this host more memory, or run less at once",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or run less at once",
}


def hint_for(number: int | None) -> str:
    """A hint on repairing the cause of an errno that an operation in a folder had."""
    return HINTS.get(number or 0, "check that folder")


@contextmanager
def name_unreadable_file() -> Iterator[None]:
    """An OSError of the block, which reads files of a person, becomes a HostError that names the file."""
    try:
        yield
    except OSError as error:
        raise HostError(f"cannot read {error.filename}: {error.strerror}", hint=hint_for(error.errno)) from error


def host_errno(error: BaseException) -> int:
    """The errno in HINTS of an error or of its cause; 0: none of the host's."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in HINTS:
            return seen.errno
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return 0


def free_in(folder: Path) -> str:
    """How much room its disk has."""
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.0f} MB free"
    except OSError:
        return "its free room is not known"
