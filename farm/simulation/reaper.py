"""Collects children that ended: the phone's shells, and (as pid 1 of a namespace) whatever they left behind."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Reaper:
    """Waits for every child of this process and tells who asked. One per process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched: dict[int, Callable[[int], None]] = {}
        loop.add_signal_handler(signal.SIGCHLD, self._collect)

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call `ended(exit code)` when the child ends; a signal n counts as 128 + n, as adbd reports it."""
        self._watched[pid] = ended

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Signal a watched child; does nothing once it ended (its pid may be another's by then)."""
        if pid in self._watched:
            os.kill(pid, number)

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._watched.pop(pid, None)
            if ended is not None:
                code = os.waitstatus_to_exitcode(status)
                ended(code if code >= 0 else 128 - code)
