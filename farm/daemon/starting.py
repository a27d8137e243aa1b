"""A starting daemon waits for its database, and reports that to the service manager and, by a note, to `farm status`.

The note is a file in the runtime folder. Its lock shows that the daemon lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from farm.common.systemd import Notifier
from farm.common.tasks import at_most
from farm.control.address import START_NOTE
from farm.store.server_opening import DatabaseAwayError

TRY_AGAIN_S = 1.0
NOTE_MODE = 0o644  # the runtime folder says who may come to it

T = TypeVar("T")
log = logging.getLogger("farm")


class StopRequestedError(Exception):
    """The daemon was asked to end while it started. Never leaves the daemon."""


class Start:
    """The start of one daemon."""

    def __init__(self, notifier: Notifier, stop: asyncio.Event) -> None:
        """`stop` is set when the daemon is to end."""
        self._notifier = notifier
        self._stop = stop

    async def open_database(self, open_it: Callable[[], T], runtime_dir: Path) -> T:
        """Open a database on a server, in a thread, as soon as it is there.

        Raises:
            StopRequestedError: the daemon is to end first.
            HostError: it is there, and cannot be used.
        """
        with _Note(runtime_dir / START_NOTE) as note:
            while not self._stop.is_set():
                try:
                    with self._notifier.extending():  # it may be of an earlier release: it is brought up to date
                        return await asyncio.to_thread(open_it)
                except DatabaseAwayError as error:
                    if note.write(f"waits for its database: {error.message}"):
                        log.warning("%s (%s)", note.text, error.hint)
                    self._notifier.status(note.text)
                async with at_most(TRY_AGAIN_S):
                    await self._stop.wait()
        raise StopRequestedError


class _Note:
    """The note of a daemon that waits: a file from the first text to the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)

    def write(self, text: str) -> bool:
        """Write a text, as far as that is possible; returns whether it is new."""
        if text == self.text:
            return False
        self.text = text
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, NOTE_MODE)
                os.fchmod(self._file, NOTE_MODE)
                fcntl.flock(self._file, fcntl.LOCK_EX)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)
        return True
