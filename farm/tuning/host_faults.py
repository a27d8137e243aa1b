"""What a host lacks when a candidate cannot be built, and no candidate is to blame: room, descriptors, memory."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from farm.common.errors import HostError

PROBE_BYTES = 1 << 20
LEAST_FREE_BYTES = 16 << 20  # more than a candidate with all that is made on the way to it

_ROOM = "free some room there"
_FILES = "raise the limit of open files (ulimit -n), or run less at once"
_MEMORY = "give this host more memory, or run less at once"
HINTS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "the disk must be writable",
    errno.EIO: "the kernel's log (dmesg) says what is wrong with the disk",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or run less at once",
}


class CannotBuildError(HostError):
    """This host cannot build candidates now."""

    code = "cannot_build"


def host_errno(error: BaseException) -> int:
    """The errno in HINTS that an error, or what caused it, comes from; 0: the host is not to blame."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in HINTS:
            return seen.errno
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return 0


def lacking(folder: Path) -> int:
    """The errno of a folder in which nothing can be built now; 0: it has room.

    A compiler or a linker that ran out of room crashes or says so in words of its own, so this checks the disk itself.
    """
    try:
        if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
            return errno.ENOSPC
        with tempfile.TemporaryFile(dir=folder) as probe:  # quotas, and names that have run out
            os.posix_fallocate(probe.fileno(), 0, PROBE_BYTES)
    except OSError as error:
        return host_errno(error)
    return 0


@contextlib.contextmanager
def host_errors_reported(folder: Path) -> Iterator[None]:
    """Turn a host's lack of resources while `folder` is written into a HostError with a hint."""
    try:
        yield
    except (OSError, HostError) as error:
        number = host_errno(error)
        if not number or isinstance(error, CannotBuildError):
            raise
        message = f"cannot keep tuning records in {folder} ({free_in(folder)}): {os.strerror(number)}"
        raise HostError(message, hint=hint_for(number)) from error


def cannot_build_error(number: int, folder: Path) -> CannotBuildError:
    """The error of a host on which errno `number` came up when a candidate was built in `folder`."""
    message = f"this host cannot build candidates in {folder} ({free_in(folder)}): {os.strerror(number)}"
    return CannotBuildError(message, hint=hint_for(number))


def hint_for(number: int) -> str:
    """The hint for an errno at the end of a search."""
    return f"{HINTS.get(number, 'check that folder')}; what was measured is kept, and no candidate is blamed"


def free_in(folder: Path) -> str:
    """How much room its disk has."""
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.0f} MB free"
    except OSError:
        return "its free room is not known"
