"""The gate's route where the daemon is another process: asks it, and outlives it.

What the daemon granted is kept here until a daemon has noted its end. While none is there, who wants a session waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from farm.core.errors import FarmError, HostError, PhoneError
from farm.core.sessions import Leg, MatchKeyBusyError, Peer, PhoneStream, SessionEnd, UnknownMatchKeyError
from farm.tracker import gate_messages as m
from farm.tracker.gate_link import Link
from farm.tracker.places import Places, why_not_wait

ANSWER_S = 10.0  # beyond what the daemon itself may take for an answer: it hangs
MOST_WAITING = 1024  # who wants a session while no daemon is there

log = logging.getLogger(__name__)


class DaemonAwayError(HostError):
    """The farm's daemon is not there."""

    code = "daemon_away"


@dataclass(slots=True, eq=False)
class _Kept:
    """A granted session, until its end is noted."""

    granted: m.Granted
    peer: Peer
    cut: Callable[[str], None]
    stream: asyncio.Future[PhoneStream] | None = None  # while the phone is dialled
    secret: str = field(default="", repr=False)
    opened_at: float = 0.0  # in the loop's time; 0: not yet
    told: bool = False  # a daemon knows that it was opened
    end: m.Ended | None = None


@dataclass(slots=True, eq=False)
class _Asked:
    """A match key that the daemon was asked about."""

    cut: Callable[[str], None]
    answer: asyncio.Future[m.Granted]


class RemoteRoute:
    """A Route (farm.tracker.gate) over the link to whichever daemon is there."""

    def __init__(self, wait_s: float) -> None:
        """`wait_s`: how long who wants a session waits for a daemon. Must be called on the loop."""
        self._loop = asyncio.get_running_loop()
        self._wait_s = wait_s
        self._link: Link | None = None
        self._ready = asyncio.Event()  # the daemon has taken up what was kept
        self._asked: dict[int, _Asked] = {}
        self._kept: dict[int, _Kept] = {}
        self._count = 0
        self.all_noted = asyncio.Event()  # no granted session is left whose end a daemon should note
        self.all_noted.set()
        self._places = Places(MOST_WAITING)  # of those who want a session and find no daemon
        self.bytes_of: Callable[[], Mapping[str, tuple[int, int]]] = dict  # by session: up, down

    @property
    def waiting(self) -> int:
        """How many want a session and find no daemon."""
        return len(self._places)

    @property
    def open_sessions(self) -> int:
        """Granted and not ended."""
        return sum(kept.end is None for kept in self._kept.values())

    def forget_ended(self) -> None:
        """Another farm's daemon comes, and nobody is left to be told of these."""
        self._kept = {n: kept for n, kept in self._kept.items() if kept.end is None}
        self._note()

    def next_number(self) -> int:
        """A number that no other connection of this gate has."""
        self._count += 1
        return self._count

    # --- the Route ------------------------------------------------------------------------------------------------

    async def open(self, match_key: str, peer: Peer, timeout_s: float, cut: Callable[[str], None]) -> Leg:
        """See `farm.tracker.gate.Route`; a daemon that goes before it has answered is asked anew when it is back.

        Raises:
            DaemonAwayError: no daemon came in time, or too many wait for one.
        """
        deadline = self._loop.time() + self._wait_s
        while True:
            link = await self._daemon(peer.user, deadline)
            n = self.next_number()
            asked = self._asked[n] = _Asked(cut, self._loop.create_future())
            link.send(m.Open(n, match_key, peer.address, peer.port, peer.user, timeout_s))
            try:
                async with asyncio.timeout(timeout_s + ANSWER_S):
                    granted = await asked.answer
            except DaemonAwayError:
                continue
            except TimeoutError as error:
                link.send(m.Withdraw(n))
                raise PhoneError("the farm's daemon does not answer") from error
            except BaseException:
                link.send(m.Withdraw(n))
                raise
            finally:
                del self._asked[n]
            return self._granted(_Kept(granted, peer, cut))

    def _granted(self, kept: _Kept) -> Leg:
        granted = kept.granted
        self._kept[granted.n] = kept
        self._note()
        return Leg(
            granted.device,
            granted.session,
            granted.key,
            lambda limit_s: self._dial(kept, limit_s),
            lambda: self._opened(kept),
            lambda end: self._ended(kept, end),
            granted.fence,
        )

    async def _daemon(self, user: str, deadline: float) -> Link:
        if not self._ready.is_set():
            if reason := why_not_wait(self._places, user):
                raise DaemonAwayError(reason)
            self._places.take(user)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._ready.wait()
            except TimeoutError as error:
                raise DaemonAwayError(f"the farm's daemon did not come back within {self._wait_s:g} s") from error
            finally:
                self._places.leave(user)
        if self._link is None:  # gone again since
            return await self._daemon(user, deadline)
        return self._link

    async def _dial(self, kept: _Kept, limit_s: float) -> PhoneStream:
        if self._link is None:
            raise DaemonAwayError("the farm's daemon went before it had dialled the phone")
        kept.stream = self._loop.create_future()
        self._link.send(m.Dial(kept.granted.n, limit_s))
        try:
            stream = await kept.stream
        except asyncio.CancelledError:
            if kept.stream.done() and not kept.stream.cancelled() and kept.stream.exception() is None:
                kept.stream.result().sock.close()
            raise
        finally:
            kept.stream = None
        kept.secret = stream.server_secret
        return stream

    def _opened(self, kept: _Kept) -> None:
        kept.opened_at = self._loop.time()
        if self._link is not None:
            kept.told = True
            self._link.send(m.Opened(kept.granted.n))

    def _ended(self, kept: _Kept, end: SessionEnd) -> None:
        kept.end = m.Ended(
            kept.granted.n, end.outcome.value, end.bytes_up, end.bytes_down, max(0.0, end.seconds), m.clip(end.detail)
        )
        if self._link is not None:
            self._link.send(kept.end)

    # --- the daemon -----------------------------------------------------------------------------------------------

    def daemon_came(self, link: Link) -> None:
        """Tell a daemon what was kept for it; it says when it has taken that up."""
        self._link = link
        bytes_of = self.bytes_of()
        for n, kept in self._kept.items():
            granted, peer = kept.granted, kept.peer
            up, down = bytes_of.get(granted.session, (0, 0))
            seconds = self._loop.time() - kept.opened_at if kept.opened_at else 0.0
            link.send(
                m.Kept(
                    n, granted.session, granted.fence, granted.device, granted.key, kept.secret,
                    peer.address, peer.port, peer.user, seconds, up, down, kept.told or not kept.opened_at,
                )
            )  # fmt: skip
            kept.told = bool(kept.opened_at)
            if kept.end is not None:
                link.send(kept.end)
        link.send(m.AllKept())

    def daemon_ready(self) -> None:
        """It has taken everything up: those who wait are served."""
        self._ready.set()

    def daemon_gone(self) -> None:
        """Whatever it was asked is asked again of the next one."""
        self._link = None
        self._ready.clear()
        away = DaemonAwayError("the farm's daemon went before it had answered")
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(away)
        for kept in self._kept.values():
            if kept.stream is not None and not kept.stream.done():
                kept.stream.set_exception(away)

    def answered(self, message: m.Message, carried: socket.socket | None) -> None:
        """An answer or an order of the daemon; what nobody waits for any more is dropped."""
        match message:
            case m.Granted(n=n):
                if (asked := self._asked.get(n)) is not None and not asked.answer.done():
                    asked.answer.set_result(message)
            case m.Refused(n=n):
                self._refused(message)
            case m.Stream(n=n, secret=secret):
                kept = self._kept.get(n)
                if kept is not None and kept.stream is not None and not kept.stream.done():
                    if carried is None:
                        kept.stream.set_exception(HostError("the phone's descriptor was lost: has the gate too few?"))
                        return
                    carried.setblocking(False)
                    kept.stream.set_result(PhoneStream(carried, secret))
                elif carried is not None:
                    carried.close()
            case m.Noted(n=n):
                self._kept.pop(n, None)
                self._note()
            case m.Cut(n=n, reason=reason):
                entry = self._asked.get(n) or self._kept.get(n)
                if entry is not None:
                    with contextlib.suppress(asyncio.InvalidStateError):
                        entry.cut(reason)
            case _:
                log.error("the daemon said what it should not: %s", m.secretless(message))

    def _note(self) -> None:
        if self._kept:
            self.all_noted.clear()
        else:
            self.all_noted.set()

    def _refused(self, refused: m.Refused) -> None:
        errors: dict[str, type[FarmError]] = {"unknown": UnknownMatchKeyError, "busy": MatchKeyBusyError}
        error = errors.get(refused.code, PhoneError)(refused.message)
        asked, kept = self._asked.get(refused.n), self._kept.get(refused.n)
        if asked is not None and not asked.answer.done():
            asked.answer.set_exception(error)
        elif kept is not None and kept.stream is not None and not kept.stream.done():
            kept.stream.set_exception(error)
