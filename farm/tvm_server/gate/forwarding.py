"""Connections and questions that the gate forwards to the daemon, and holds while the daemon is away.

`FdHandoff`: tracker connections travel to the daemon with their descriptors and are served there. `RemoteRoute`: match
keys are sent to the daemon, which answers with the phone; a granted session stays here until a daemon has noted its
end. Clients that find no daemon wait, within limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from farm.common.errors import FarmError, HostError, PhoneError
from farm.common.limiter import Limiter
from farm.model.sessions import (
    MatchKeyBusyError,
    NoSuchMatchKeyError,
    OrphanedSession,
    Peer,
    PhoneStream,
    SessionEnd,
    SessionOutcome,
    UpstreamSession,
)
from farm.tvm_server.gate import messages as m
from farm.tvm_server.gate.link import GateLink
from farm.tvm_server.gate.messages import Signal
from farm.tvm_server.listener import refusal_log, user_limiter

ANSWER_S = 10.0  # beyond the time that the daemon may take for an answer: it hangs
MAX_WAITING = 1024  # tracker connections, and as many clients that want a session, while no daemon is there

_LEFT = "the client left while it was opened"
_REFUSALS: dict[str, type[FarmError]] = {"unknown": NoSuchMatchKeyError, "busy": MatchKeyBusyError}

log = logging.getLogger(__name__)


def _why_not_wait(waiting: Limiter[str], user: str) -> str:
    """Why `user` may not wait for an absent daemon; "" when there is room."""
    if not waiting.total_fits(user):
        return f"the farm's daemon is away, and {waiting.total} wait for it already"
    if not waiting.key_fits(user):
        return f"the farm's daemon is away, and {waiting.per_key} of {user} wait for it already"
    return ""


class DaemonAwayError(HostError):
    """The farm's daemon is not there."""

    code = "daemon_away"


@dataclass(slots=True, eq=False)
class _TrackerClient:
    sock: socket.socket
    peer: Peer
    first: bytes
    closed: Callable[[], None]
    taken: bool = False  # the daemon that is there serves it
    timer: asyncio.TimerHandle | None = None


class FdHandoff:
    """Every tracker connection of the gate until it has ended: handed to the daemon, or waiting for one."""

    def __init__(self, wait_s: float, next_number: Callable[[], int]) -> None:
        """`wait_s`: how long a client waits for a daemon. Must be called on the loop."""
        self._loop = asyncio.get_running_loop()
        self._wait_s = wait_s
        self._next_number = next_number
        self._link: GateLink | None = None
        self._all: dict[int, _TrackerClient] = {}
        self._waiting = user_limiter(MAX_WAITING)
        self._log_refused = refusal_log()

    @property
    def waiting(self) -> int:
        """How many clients no daemon has taken yet."""
        return self._waiting.taken

    def serve(self, sock: socket.socket, peer: Peer, first: bytes, closed: Callable[[], None]) -> None:
        """Take over a connection whose first bytes are `first`; `closed` is called when it has ended."""
        n, reason = self._next_number(), _why_not_wait(self._waiting, peer.user)
        client = self._all[n] = _TrackerClient(sock, peer, first, closed)
        self._waiting.take(peer.user)
        self._loop.add_reader(sock, self._readable, n, client)
        late = f"the farm's daemon did not come back within {self._wait_s:g} s"
        client.timer = self._loop.call_later(self._wait_s, self._end, n, late)
        if self._link is not None:
            self._offer(n, client)
        elif reason:
            self._end(n, reason)

    def daemon_ready(self, link: GateLink) -> None:
        """A daemon is there: it gets every waiting client."""
        self._link = link
        waiting = [(n, client) for n, client in self._all.items() if not client.taken]
        if waiting:
            log.info("%d tracker clients that waited are handed to the daemon", len(waiting))
        for n, client in waiting:
            self._offer(n, client)

    def daemon_disconnected(self) -> None:
        """Clients that it served are gone with it; the others wait for the next daemon."""
        self._link = None
        for n, client in tuple(self._all.items()):
            if client.taken:
                self._end(n)

    def taken(self, n: int) -> None:
        """The daemon serves it now."""
        client = self._all.get(n)
        if client is not None and not client.taken:
            self._stop_waiting(client)
            client.taken = True
            client.sock.close()

    def ended(self, n: int) -> None:
        """The daemon has closed its copy."""
        if n in self._all:
            self._end(n)

    def close(self) -> None:
        """Close every connection that is here."""
        for n in tuple(self._all):
            self._end(n)

    def _stop_waiting(self, client: _TrackerClient) -> None:
        if not client.taken:
            self._waiting.give_back(client.peer.user)
            self._loop.remove_reader(client.sock)
            if client.timer is not None:
                client.timer.cancel()

    def _offer(self, n: int, client: _TrackerClient) -> None:
        assert self._link is not None
        try:
            self._link.send(m.ClientHandoff(n, client.peer, m.pack(client.first)), client.sock)
        except OSError as error:  # no descriptor left for the copy that goes along
            self._end(n, f"it cannot be handed to the daemon: {error.strerror}")

    def _readable(self, n: int, client: _TrackerClient) -> None:
        """The client sends ahead, which the daemon will read; or it has left."""
        try:
            left = not client.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            left = True
        if left:
            self._end(n)
        else:
            self._loop.remove_reader(client.sock)

    def _end(self, n: int, reason: str = "") -> None:
        client = self._all.pop(n)
        self._stop_waiting(client)
        client.sock.close()
        if reason:
            self._log_refused(client.peer.user, f"sent away: {reason}")
        client.closed()


@dataclass(slots=True, eq=False)
class _GrantedSession:
    """A client's session, from the question about its match key until a daemon has noted its end."""

    n: int
    peer: Peer
    cut: Callable[[str], None]
    answer: asyncio.Future[Any] | None = None  # while the daemon is asked: SessionGranted, then PhoneStream
    granted: m.SessionGranted | None = None
    secret: str = field(default="", repr=False)
    opened_at: float = 0.0  # in the loop's time; 0: not yet
    reported: bool = False  # a daemon knows that it was opened
    end: SessionEnd | None = None


class RemoteRoute:
    """A Route (farm.tvm_server.gate.gate) over the link to the daemon that is there."""

    def __init__(self, wait_s: float) -> None:
        """`wait_s`: how long a client that wants a session waits for a daemon. Must be called on the loop."""
        self._loop = asyncio.get_running_loop()
        self._wait_s = wait_s
        self._link: GateLink | None = None
        self._ready = asyncio.Event()  # the daemon has adopted the kept sessions
        self._sessions: dict[int, _GrantedSession] = {}
        self._count = 0
        self.all_noted = asyncio.Event()  # no granted session is left whose end a daemon should note
        self.all_noted.set()
        self._waiting = user_limiter(MAX_WAITING)  # clients that want a session and find no daemon

    @property
    def waiting(self) -> int:
        """How many clients want a session and wait for a daemon."""
        return self._waiting.taken

    @property
    def open_sessions(self) -> int:
        """Granted and not ended."""
        return sum(session.granted is not None and session.end is None for session in self._sessions.values())

    def forget_ended(self) -> None:
        """Another farm's daemon comes: no daemon needs the ends of these sessions."""
        for n in [n for n, session in self._sessions.items() if session.end is not None]:
            self._forget(n)

    def next_number(self) -> int:
        """A number that no other connection of this gate has."""
        self._count += 1
        return self._count

    # --- the Route ------------------------------------------------------------------------------------------------

    async def open(self, match_key: str, peer: Peer, timeout_s: float, cut: Callable[[str], None]) -> UpstreamSession:
        """See `gate.gate.Route`; a daemon that goes before it has answered is asked again when it is back.

        Raises:
            DaemonAwayError: no daemon came in time, or too many wait for one.
        """
        deadline = self._loop.time() + self._wait_s
        while True:
            link = await self._daemon(peer.user, deadline)
            n = self.next_number()
            session = self._sessions[n] = _GrantedSession(n, peer, cut)
            try:
                async with asyncio.timeout(timeout_s + ANSWER_S):
                    session.granted = await self._ask(link, session, m.OpenSession(n, match_key, peer, timeout_s))
            except DaemonAwayError:
                continue
            except (TimeoutError, asyncio.CancelledError) as error:
                link.send(m.SessionEnded(n, SessionEnd(SessionOutcome.ABANDONED, detail=_LEFT)))
                if isinstance(error, TimeoutError):
                    raise PhoneError("the farm's daemon does not answer") from error
                raise
            finally:
                if session.granted is None:
                    del self._sessions[n]
            self.all_noted.clear()
            return self._upstream(session, session.granted)

    def _upstream(self, session: _GrantedSession, granted: m.SessionGranted) -> UpstreamSession:
        return UpstreamSession(
            granted.device,
            granted.session,
            granted.key,
            lambda limit_s: self._dial(session, limit_s),
            lambda: self._opened(session),
            lambda end: self._ended(session, end),
            granted.fence,
            elsewhere=granted.elsewhere,
        )

    async def _daemon(self, user: str, deadline: float) -> GateLink:
        if not self._ready.is_set():
            if reason := _why_not_wait(self._waiting, user):
                raise DaemonAwayError(reason)
            self._waiting.take(user)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._ready.wait()
            except TimeoutError as error:
                raise DaemonAwayError(f"the farm's daemon did not come back within {self._wait_s:g} s") from error
            finally:
                self._waiting.give_back(user)
        if self._link is None:  # gone again since
            return await self._daemon(user, deadline)
        return self._link

    async def _ask(self, link: GateLink, session: _GrantedSession, question: m.OpenSession | m.DialPhone) -> Any:
        """The daemon's answer; raises its refusal, or DaemonAwayError when it goes before it has answered."""
        answer = session.answer = self._loop.create_future()
        link.send(question)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                late = answer.result()
                if isinstance(late, PhoneStream):
                    late.sock.close()
            raise
        finally:
            session.answer = None

    async def _dial(self, session: _GrantedSession, limit_s: float) -> PhoneStream:
        if self._link is None:
            raise DaemonAwayError("the farm's daemon went before it had dialled the phone")
        stream: PhoneStream = await self._ask(self._link, session, m.DialPhone(session.n, limit_s))
        session.secret = stream.server_secret
        return stream

    def _opened(self, session: _GrantedSession) -> None:
        session.opened_at = self._loop.time()
        if self._link is not None:
            session.reported = True
            self._link.send(m.Notice(Signal.SESSION_OPENED, session.n))

    def _ended(self, session: _GrantedSession, end: SessionEnd) -> None:
        session.end = replace(end, seconds=max(0.0, end.seconds), detail=m.clip(end.detail))
        if self._link is not None:
            self._link.send(m.SessionEnded(session.n, session.end))

    # --- the daemon -----------------------------------------------------------------------------------------------

    def daemon_connected(self, link: GateLink) -> None:
        """Send a daemon the kept sessions; `daemon_ready` follows when it has adopted them."""
        self._link = link
        for session in self._sessions.values():
            if (granted := session.granted) is None:
                continue
            seconds = self._loop.time() - session.opened_at if session.opened_at else 0.0
            orphan = OrphanedSession(
                granted.session, granted.fence, granted.device, granted.key, session.peer, seconds, session.secret
            )
            link.send(m.KeptSession(session.n, orphan, session.reported or not session.opened_at))
            session.reported = bool(session.opened_at)
            if session.end is not None:
                link.send(m.SessionEnded(session.n, session.end))
        link.send(m.Notice(Signal.ALL_KEPT))

    def daemon_ready(self) -> None:
        """It has adopted the kept sessions: waiting clients are served."""
        self._ready.set()

    def daemon_disconnected(self) -> None:
        """Its open questions are asked again of the next one."""
        self._link = None
        self._ready.clear()
        for n in self._sessions:
            self._answer(n, DaemonAwayError("the farm's daemon went before it had answered"))

    def on_message(self, message: m.Message, carried: socket.socket | None) -> None:
        """An answer or an order of the daemon; an answer that is not needed any more is dropped."""
        match message:
            case m.SessionGranted(n=n):
                self._answer(n, message)
            case m.SessionRefused(n=n, code=code, message=text):
                self._answer(n, _REFUSALS.get(code, PhoneError)(text))
            case m.PhoneDialled(n=n, secret=secret):
                if carried is None:
                    self._answer(n, HostError("the phone's descriptor was lost: has the gate too few?"))
                else:
                    carried.setblocking(False)
                    if not self._answer(n, PhoneStream(carried, secret)):
                        carried.close()
            case m.Notice(Signal.END_NOTED, n):
                self._forget(n)
            case m.CutSession(n=n, reason=reason):
                if (session := self._sessions.get(n)) is not None:
                    with contextlib.suppress(asyncio.InvalidStateError):
                        session.cut(reason)
            case _:
                log.error("the daemon sent a message that it should not: %s", type(message).__name__)

    def _answer(self, n: int, answer: m.SessionGranted | PhoneStream | FarmError) -> bool:
        """Whether the answer is awaited still."""
        session = self._sessions.get(n)
        if session is None or session.answer is None or session.answer.done():
            return False
        if isinstance(answer, FarmError):
            session.answer.set_exception(answer)
        else:
            session.answer.set_result(answer)
        return True

    def _forget(self, n: int) -> None:
        self._sessions.pop(n, None)
        if all(session.granted is None for session in self._sessions.values()):
            self.all_noted.set()
