"""The reserve: disk space for the last writes on a full disk."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

# Ends of the attempts and leases that run when the disk fills up: a dozen results of at most 1 MiB each, and the
# database's own overhead.
RESERVE_BYTES = 16 << 20

log = logging.getLogger(__name__)


class ReserveFile:
    """Disk space kept aside beside the database: it pays for the last writes when the disk is full."""

    def __init__(self, path: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes

    @property
    def whole(self) -> bool:
        """Whether it is there."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_size == self._size_bytes
        return False

    def allocate(self) -> None:
        """Set the space aside, or log why that cannot be done here.

        Raises:
            OSError: the disk is full.
        """
        if self.whole:
            return
        try:
            if self._path.exists() and not self._path.is_file():
                self._path.unlink()  # opening a fifo waits forever
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._size_bytes)
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.release()
                raise
            log.warning("farm has no reserve for a full disk: %s: %s", self._path, error.strerror)

    def release(self) -> bool:
        """Give the space up; whether there was any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
