"""Makes a phone slow: its sessions run only a share of the time, by SIGSTOP and SIGCONT every few milliseconds.

The server itself and everything else run on, so that a throttled phone still answers at once. What somebody else
stopped is left alone. `ps` on the phone shows a throttled session stopped (T) now and then.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from farm.simulation.process_tree import is_stopped

if TYPE_CHECKING:
    from collections.abc import Iterable

_RUN_S = 0.003  # one stretch of running
_SHORTEST_STOP_S = 0.001  # an event loop's timers are no better; less is owed until it is more
_LONGEST_STOP_S = 0.05


class Throttle:
    """Of one phone. `close` lets everything run again."""

    def __init__(self) -> None:
        self.share = 1.0  # of the time that sessions run
        self.held = False  # somebody else stops and continues the sessions now
        self._sessions: dict[int, int] = {}  # pid -> pidfd: a number that is another's by now is never signalled
        self._stopped: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._turned_at = 0.0
        self._owed_s = 0.0  # of standing still

    def follow(self, pids: Iterable[int]) -> None:
        """These are the phone's sessions now."""
        wanted = set(pids)
        for pid in self._sessions.keys() - wanted:
            self._forget(pid)
        for pid in wanted - self._sessions.keys():
            try:
                self._sessions[pid] = os.pidfd_open(pid)
            except OSError:
                continue  # it ended
        self._mind()

    def set_share(self, share: float) -> None:
        """Sessions get that share of the time from now on."""
        if share != self.share:
            self.share, self._owed_s = share, 0.0
        self._mind()

    def close(self) -> None:
        """Let everything run and forget it."""
        self._release()
        for pid in tuple(self._sessions):
            self._forget(pid)

    def _mind(self) -> None:
        needed = self.share < 1 and not self.held and bool(self._sessions)
        if needed and self._timer is None:
            self._run_on()
        elif not needed:
            self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._continue()

    def _run_on(self) -> None:
        """A stretch of running begins."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._stopped:
            self._owed_s -= now - self._turned_at
        self._continue()
        self._turned_at = now
        self._timer = loop.call_later(_RUN_S, self._stand_still)

    def _stand_still(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        # Timers come late: what was run too long is stood still longer, and the other way round.
        self._owed_s += (now - self._turned_at) * (1 - self.share) / self.share
        self._turned_at = now
        if self._owed_s < _SHORTEST_STOP_S:
            self._timer = loop.call_later(_RUN_S, self._stand_still)
            return
        for pid, descriptor in self._sessions.items():
            if not is_stopped(pid) and _signal(descriptor, signal.SIGSTOP):
                self._stopped.add(pid)
        self._owed_s = min(self._owed_s, _LONGEST_STOP_S)
        self._timer = loop.call_later(self._owed_s, self._run_on)

    def _continue(self) -> None:
        for pid in self._stopped:
            if pid in self._sessions:
                _signal(self._sessions[pid], signal.SIGCONT)
        self._stopped.clear()

    def _forget(self, pid: int) -> None:
        descriptor = self._sessions.pop(pid)
        if pid in self._stopped:
            self._stopped.discard(pid)
            _signal(descriptor, signal.SIGCONT)
        os.close(descriptor)


def _signal(descriptor: int, number: signal.Signals) -> bool:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False  # it ended
    return True
