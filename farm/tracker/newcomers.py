"""Tracker connections on their way from the gate to the daemon, which serves them; while it is away they wait here."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from farm.core.sessions import Peer
from farm.tracker import gate_messages as m
from farm.tracker.gate_link import Link
from farm.tracker.places import Places, why_not_wait

MOST_WAITING = 1024

log = logging.getLogger(__name__)


class _Stage(Enum):
    WAITING = auto()  # for a daemon
    OFFERED = auto()  # to the one that is there
    TAKEN = auto()  # it is served there


@dataclass(slots=True, eq=False)
class _Newcomer:
    sock: socket.socket
    peer: Peer
    first: bytes
    closed: Callable[[], None]
    stage: _Stage = _Stage.WAITING
    timer: asyncio.TimerHandle | None = None


class Newcomers:
    """Every tracker connection of the gate until it has ended."""

    def __init__(self, wait_s: float, next_number: Callable[[], int]) -> None:
        """`wait_s`: how long one waits for a daemon. Must be called on the loop."""
        self._loop = asyncio.get_running_loop()
        self._wait_s = wait_s
        self._next_number = next_number
        self._link: Link | None = None
        self._all: dict[int, _Newcomer] = {}
        self._places = Places(MOST_WAITING)

    @property
    def waiting(self) -> int:
        """How many no daemon has taken yet."""
        return len(self._places)

    def serve(self, sock: socket.socket, peer: Peer, first: bytes, closed: Callable[[], None]) -> None:
        """Take over a connection whose first bytes are `first`; `closed` is called when it has ended."""
        n, reason = self._next_number(), why_not_wait(self._places, peer.user)
        one = self._all[n] = _Newcomer(sock, peer, first, closed)
        self._places.take(peer.user)
        self._loop.add_reader(sock, self._stirs, n, one)
        late = f"the farm's daemon did not come back within {self._wait_s:g} s"
        one.timer = self._loop.call_later(self._wait_s, self._end, n, late)
        if self._link is not None:
            self._offer(n, one)
        elif reason:
            self._end(n, reason)

    def daemon_ready(self, link: Link) -> None:
        """A daemon is there: it gets everybody who waits."""
        self._link = link
        waiting = [(n, one) for n, one in self._all.items() if one.stage is _Stage.WAITING]
        if waiting:
            log.info("%d tracker clients that waited are handed to the daemon", len(waiting))
        for n, one in waiting:
            self._offer(n, one)

    def daemon_gone(self) -> None:
        """What it served is gone with it; what it had not taken waits for the next one."""
        self._link = None
        for n, one in tuple(self._all.items()):
            if one.stage is _Stage.TAKEN:
                self._end(n)
            else:
                one.stage = _Stage.WAITING

    def taken(self, n: int) -> None:
        """The daemon serves it now."""
        one = self._all.get(n)
        if one is not None and one.stage is _Stage.OFFERED:
            self._stop_waiting(one)
            one.stage = _Stage.TAKEN
            one.sock.close()

    def left(self, n: int) -> None:
        """The daemon says that it has ended."""
        if n in self._all:
            self._end(n)

    def close(self) -> None:
        """Give everybody up."""
        for n in tuple(self._all):
            self._end(n)

    def _stop_waiting(self, one: _Newcomer) -> None:
        if one.stage is not _Stage.TAKEN:
            self._places.leave(one.peer.user)
            self._loop.remove_reader(one.sock)
            if one.timer is not None:
                one.timer.cancel()

    def _offer(self, n: int, one: _Newcomer) -> None:
        assert self._link is not None
        one.stage = _Stage.OFFERED
        peer = one.peer
        try:
            self._link.send(m.Newcomer(n, peer.address, peer.port, peer.user, m.pack(one.first)), one.sock)
        except OSError as error:  # no descriptor left for the copy that goes along
            self._end(n, f"it cannot be handed to the daemon: {error.strerror}")

    def _stirs(self, n: int, one: _Newcomer) -> None:
        """It talks ahead, which the daemon will read; or it has left."""
        try:
            left = not one.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            left = True
        if left:
            self._end(n)
        else:
            self._loop.remove_reader(one.sock)

    def _end(self, n: int, reason: str = "") -> None:
        one = self._all.pop(n)
        self._stop_waiting(one)
        one.sock.close()
        if reason:
            log.warning("%s is sent away: %s", one.peer, reason)
        one.closed()
