"""The gate half of the TVM server: opens a phone for the holder of a current match key, and copies the session's bytes.

The phone's server gets neither the client's match key nor its `-timeout` (a fractional one aborts the C++ server,
any one costs 50 ms per session). The gate keeps the time itself and cuts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol

from farm.common.errors import Code, FarmError, PhoneError, ProtocolError
from farm.model.sessions import (
    MatchKeyBusyError,
    NoSuchMatchKeyError,
    Peer,
    SessionEnd,
    SessionOutcome,
    UpstreamSession,
)
from farm.tvm_server.connection import quick_ack, set_options
from farm.tvm_server.gate.relay import Relay
from farm.tvm_server.wire import (
    ClientHello,
    ClientHelloParser,
    ServerHello,
    ServerHelloParser,
    SessionCode,
    encode_client_hello,
    encode_server_hello,
)

HANDSHAKE_CHUNK_BYTES = 8192  # more than both hellos together

log = logging.getLogger(__name__)


class Route(Protocol):
    """Decides which client reaches which phone (farm.leasing)."""

    async def open(self, match_key: str, peer: Peer, timeout_s: float, cut: Callable[[str], None]) -> UpstreamSession:
        """The phone's side of the session that `match_key` allows. `cut(reason)` ends the session from outside.

        Raises:
            NoSuchMatchKeyError: no current lease has this key.
            MatchKeyBusyError: its lease has a session already.
            FarmError: the phone cannot be reached within `timeout_s`.
        """


@dataclass(frozen=True, slots=True)
class GateLimits:
    """How long the gate waits."""

    handshake_s: float = 10.0  # for the client's hello
    open_s: float = 30.0  # for the phone: one that recovers for a job, an adb server that is being restarted
    # For its server, once connected. It takes milliseconds, or a second while the last session's memory is freed; a
    # server that hangs is found by nothing else, and the phone is lost for all until then.
    answer_s: float = 5.0
    idle_s: float = 600.0  # a session without a byte


class Gate:
    """All sessions of one TVM server."""

    def __init__(self, route: Route, limits: GateLimits) -> None:
        self.route = route
        self.limits = limits
        self._sessions: dict[asyncio.Task[None], _RelayedSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def last_phone_byte_at(self) -> float:
        """When a phone last sent bytes in an open session, in the loop's time; 0 never."""
        return max((session.last_phone_byte_at for session in self._sessions.values()), default=0.0)

    def serve(self, sock: socket.socket, peer: Peer, first: bytes, closed: Callable[[], None]) -> None:
        """Take over a connection whose first bytes are `first`; `closed` is called when it has ended."""
        session = _RelayedSession(self, sock, peer)
        task = asyncio.get_running_loop().create_task(session.run(first), name=f"session from {peer}")
        self._sessions[task] = session

        def done(task: asyncio.Task[None]) -> None:
            del self._sessions[task]
            closed()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a session from %s failed inside the gate", peer, exc_info=error)

        task.add_done_callback(done)

    async def close(self) -> None:
        """Cut every session and wait until each has been reported."""
        for session in tuple(self._sessions.values()):
            session.cut("the gate is stopping")
        await asyncio.gather(*self._sessions, return_exceptions=True)


class _RelayedSession:
    """One client connection from its first byte to its end."""

    def __init__(self, gate: Gate, client: socket.socket, peer: Peer) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate = gate
        self._client = client
        self._peer = peer
        self._relay: Relay | None = None
        self._upstream: UpstreamSession | None = None
        self._greeting: asyncio.Task[None] | None = None  # while the client's hello is not complete
        # Set when the session must not open any more: the client left, or it was cut.
        self._interrupted: asyncio.Future[SessionEnd] = self._loop.create_future()

    @property
    def last_phone_byte_at(self) -> float:
        """When the phone last sent bytes, in the loop's time; 0 never."""
        return self._relay.last_phone_byte_at if self._relay is not None else 0.0

    def cut(self, reason: str) -> None:
        """End the session from outside, whatever its stage."""
        if self._greeting is not None:
            self._greeting.cancel()
        elif self._relay is not None:
            self._relay.cut(SessionOutcome.CUT, reason)
        else:
            self._interrupt(SessionOutcome.CUT, reason)

    async def run(self, first: bytes) -> None:
        """Serve the connection to its end; the client's socket is closed on return."""
        self._greeting = asyncio.current_task()
        with contextlib.closing(self._client):
            try:
                hello, rest = await self._hello(first)
            except (ProtocolError, OSError) as error:  # TimeoutError is an OSError
                log.info("no session for %s: %s", self._peer, str(error) or "no complete hello in time")
                return
            self._greeting = None
            await self._open_and_copy(hello, rest)

    async def _hello(self, first: bytes) -> tuple[ClientHello, bytes]:
        parser = ClientHelloParser()
        parser.receive_data(first)
        async with asyncio.timeout(self._gate.limits.handshake_s):
            while (hello := parser.next_event()) is None:
                data = await self._loop.sock_recv(self._client, HANDSHAKE_CHUNK_BYTES)
                if not data:
                    raise ProtocolError("it left before its hello was complete")
                if self._client.family in (socket.AF_INET, socket.AF_INET6):  # else it leads to another host
                    quick_ack(self._client)
                parser.receive_data(data)
        return hello, parser.trailing_data()

    async def _open_and_copy(self, hello: ClientHello, rest: bytes) -> None:
        opened_at = self._loop.time()
        end = SessionEnd(SessionOutcome.CUT, detail="the gate was stopped")
        try:
            opened = await self._unless_interrupted(self._open_phone(hello))
            if isinstance(opened, SessionEnd):
                end = opened
                return
            phone, first_down = opened
            assert self._upstream is not None
            relay = Relay(self._client, phone, idle_s=self._gate.limits.idle_s, timeout_s=hello.timeout_s)
            self._relay = relay
            opened_at = self._loop.time()
            self._upstream.opened()
            self._send(ServerHello(SessionCode.SUCCESS, f"server:{self._upstream.key}"))
            outcome, detail = await relay.run(rest, first_down)
            end = SessionEnd(outcome, relay.bytes_up, relay.bytes_down, self._loop.time() - opened_at, detail)
        except MatchKeyBusyError as error:
            end = SessionEnd(SessionOutcome.NOT_OPENED, seconds=self._loop.time() - opened_at, detail=str(error))
            self._send(ServerHello(SessionCode.DUPLICATE))
        except NoSuchMatchKeyError:
            self._send(ServerHello(SessionCode.MISMATCH))
        except (FarmError, OSError) as error:
            reason = str(error) or f"the phone could not be reached within {self._gate.limits.open_s:g} s"
            end = SessionEnd(SessionOutcome.NOT_OPENED, seconds=self._loop.time() - opened_at, detail=reason)
            log.warning("no session for %s: %s", self._peer, reason)
            # Stock clients take this for "no such server" and ask the tracker again.
            self._send(ServerHello(SessionCode.MISMATCH))
        finally:
            if self._upstream is not None:
                self._upstream.ended(end)

    async def _open_phone(self, hello: ClientHello) -> tuple[socket.socket, bytes]:
        """Find the phone and make the handshake with its server."""
        limits = self._gate.limits
        self._upstream = await self._gate.route.open(hello.match_key, self._peer, limits.open_s, self.cut)
        async with asyncio.timeout(limits.open_s):
            stream = await self._upstream.dial(limits.open_s)
        # The gate of another host opens the phone only now.
        answer_s = limits.answer_s + (limits.open_s if self._upstream.elsewhere else 0.0)
        try:
            async with asyncio.timeout(answer_s):
                return stream.sock, await self._greet(stream.sock, stream.server_secret)
        except TimeoutError as error:
            stream.sock.close()
            raise PhoneError(
                f"the phone's RPC server did not answer within {answer_s:g} s",
                Code.SERVER_SILENT,
                hint="it is checked and replaced",
            ) from error
        except BaseException:
            stream.sock.close()
            raise

    async def _greet(self, phone: socket.socket, secret: str) -> bytes:
        set_options(phone)
        over_tcp = phone.family in (socket.AF_INET, socket.AF_INET6)
        await self._loop.sock_sendall(phone, encode_client_hello(secret))
        parser = ServerHelloParser()
        while (answer := parser.next_event()) is None:
            data = await self._loop.sock_recv(phone, HANDSHAKE_CHUNK_BYTES)
            if not data:
                raise PhoneError(
                    "the phone's RPC server closed the connection during the handshake", Code.SERVER_REFUSED
                )
            if over_tcp:
                quick_ack(phone)
            parser.receive_data(data)
        assert self._upstream is not None
        if answer.code is SessionCode.DUPLICATE and self._upstream.elsewhere:
            raise MatchKeyBusyError("a session is open under this lease, through its phone's host")
        if answer.code is not SessionCode.SUCCESS:
            raise PhoneError(
                f"the phone's RPC server refused the farm's key ({answer.code.name.lower()})", Code.SERVER_REFUSED
            )
        return parser.trailing_data()

    async def _unless_interrupted(
        self, opening: Coroutine[object, None, tuple[socket.socket, bytes]]
    ) -> tuple[socket.socket, bytes] | SessionEnd:
        """Open the phone, unless the client leaves or the session is cut first: then how it ended."""
        task = self._loop.create_task(opening)
        self._loop.add_reader(self._client.fileno(), self._client_readable)
        try:
            await asyncio.wait((task, self._interrupted), return_when=asyncio.FIRST_COMPLETED)
            if not self._interrupted.done():
                return task.result()
            await _cancelled(task)
            return self._interrupted.result()
        except asyncio.CancelledError:
            await _cancelled(task)
            raise
        finally:
            self._loop.remove_reader(self._client.fileno())

    def _client_readable(self) -> None:
        """The client does something before it was answered: it left, or it talks ahead."""
        try:
            data = self._client.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._interrupt(SessionOutcome.ABANDONED, f"the client left: {error.strerror}")
            return
        if data:
            self._loop.remove_reader(self._client.fileno())  # whatever follows is read once the session is open
        else:
            self._interrupt(SessionOutcome.ABANDONED, "the client left before the phone's server had answered")

    def _interrupt(self, outcome: SessionOutcome, reason: str) -> None:
        if not self._interrupted.done():
            self._interrupted.set_result(SessionEnd(outcome, detail=reason))

    def _send(self, hello: ServerHello) -> None:
        """Answer the client. A fresh connection has room for it; a client that is gone shows when it is read."""
        with contextlib.suppress(OSError):
            self._client.send(encode_server_hello(hello))


async def _cancelled(task: asyncio.Task[tuple[socket.socket, bytes]]) -> None:
    """End `task`; a phone that it had opened meanwhile is closed."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None:
        task.result()[0].close()
