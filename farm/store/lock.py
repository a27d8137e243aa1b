"""One daemon per state folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from farm.core.errors import HostError


class StateFolderInUseError(HostError):
    """Another daemon uses this state folder."""

    code = "state_folder_in_use"


class StateFolderLock:
    """Held from construction to `close`, and by the kernel's word gone with the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            StateFolderInUseError: another process has it; its pid is named.
            HostError: the folder cannot be written.
        """
        path = folder / "lock"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
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
            raise StateFolderInUseError(
                f"another daemon (pid {holder or 'unknown'}) uses the state folder {folder}",
                hint=f"stop it (kill {holder}), or start this one with another --state-dir and --runtime-dir",
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let the next daemon in."""
        os.close(self._file)
