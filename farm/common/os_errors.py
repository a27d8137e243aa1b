"""Errors of the operating system that a host is responsible for, by errno, with a remedy for its operator."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farm.common.errors import HostError

PROBE_BYTES = 1 << 20
MIN_FREE_BYTES = 16 << 20  # more than a candidate with all that is made on the way to it
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


def lacking(folder: Path) -> int:
    """The errno of a folder in which nothing can be built now; 0: it has room.

    A compiler or a linker that ran out of room crashes or says so in words of its own, so this checks the disk itself.
    """
    try:
        if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
            return errno.ENOSPC
        with tempfile.TemporaryFile(dir=folder) as probe:  # quotas, and names that have run out
            os.posix_fallocate(probe.fileno(), 0, PROBE_BYTES)
    except OSError as error:
        return host_errno(error)
    return 0
