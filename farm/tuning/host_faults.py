"""Lacks of a host that keep candidates from being built or records from being stored: no candidate's fault."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from farm.common.errors import HostError
from farm.common.os_errors import free_in, hint_for, host_errno

PROBE_BYTES = 1 << 20
LEAST_FREE_BYTES = 16 << 20  # more than a candidate with all that is made on the way to it


class CannotBuildError(HostError):
    """This host cannot build candidates now."""

    code = "cannot_build"


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
        raise HostError(message, hint=_hint(number)) from error


def cannot_build_error(number: int, folder: Path) -> CannotBuildError:
    """The error of a host on which errno `number` came up when a candidate was built in `folder`."""
    message = f"this host cannot build candidates in {folder} ({free_in(folder)}): {os.strerror(number)}"
    return CannotBuildError(message, hint=_hint(number))


def _hint(number: int) -> str:
    return f"{hint_for(number)}; what was measured is kept, and no candidate counts as failed"
