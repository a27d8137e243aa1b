"""Connections as callbacks on raw sockets: ACK at once, answers in one send, every wait limited.

`set_options` and `quick_ack` are for all sockets of the TVM server; `ClientConnection` serves one client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from farm.common.limiter import Limiter
from farm.model.sessions import Peer

# A peer that vanished without a FIN (power loss, pulled cable) is noticed after 30 + 3 * 10 s.
KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
# To the adb server's unix socket. TCP grows its buffers by itself, a unix socket stays at 208 KiB: less than one of our
# chunks, so every chunk was sent in two and adb's packets stayed small (uploads lost 3 to 5 %). Linux caps it at
# net.core.wmem_max.
UNIX_BUFFER_BYTES = 4 << 20
UNACKED_LIMIT_MS = 60_000  # data that a peer does not acknowledge for this long: the peer is gone
ANSWERED_BYTES = 16 << 10  # answers that wait for their reader before its further questions are looked at
RECEIVE_BYTES = 16 << 10  # per turn of the loop
# Of one connection per turn of the loop. Stock clients have one message on its way; a hundred clients that send without
# end take turns of some 10 ms with this, and seconds with all that one recv brings.
MESSAGES_PER_TURN = 8
_buffer = memoryview(bytearray(RECEIVE_BYTES))  # one for all: it is emptied before the callback returns

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one client, or of all together."""

    connections: int = 4096  # open at once; more wait in the kernel's queue
    handshake_s: float = 10.0  # from accept to the end of the handshake
    message_s: float = 30.0  # from the first byte of a message to its last; also for reading some of an answer
    idle_s: float = 3600.0  # a tracker client that neither waits nor speaks; notebooks keep theirs for long
    waiting: int = 10_000  # unanswered REQUESTs of all clients
    waiting_per_connection: int = 64  # stock clients have one
    invalid_messages: int = 32  # well-framed nonsense, or refused registrations, before the connection is closed
    # Stock servers ask for their pending match keys every 2 s while they are free. One that is silent for longer than
    # this is frozen or cut off: it is not handed out until it speaks again.
    silent_s: float = 30.0
    held_bytes: int = 32 << 20  # unfinished messages and unread answers of all clients


def set_options(sock: socket.socket) -> None:
    """Make a connection non-blocking, prompt, and aware of a vanished peer (a unix socket: non-blocking and roomy)."""
    sock.setblocking(False)
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_LIMIT_MS)


def quick_ack(sock: socket.socket) -> None:
    """Acknowledge now and for the next segments.

    Stock clients write length and body separately under Nagle: the second write waits for our ACK, which Linux delays
    by 40 ms unless this is set again after every recv (measured: 88 ms per exchange become 0.03 ms).
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class ClientConnection(ABC):
    """Owns a non-blocking socket. Subclasses handle the bytes that arrive."""

    def __init__(
        self,
        sock: socket.socket,
        peer: Peer,
        limits: ConnectionLimits,
        held: Limiter[ClientConnection],
        closed: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()  # for the loop: it would format a socket into an exception at each add_reader
        self.peer = peer
        self.limits = limits
        self._held = held
        self.closed = False
        self._report_closed = closed
        self._unsent = bytearray()
        self._gathering = False
        self._writing = False
        self._listening = False
        self._last_heard = self._loop.time()
        self._incomplete_since: float | None = None
        self._stalled_since: float | None = None  # when the peer last read something of what waits for it
        self._timer: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def unhandled_bytes(self) -> int:
        """Bytes received and not handled: the beginning of a message, or more than there was room for."""

    @property
    @abstractmethod
    def may_idle(self) -> bool:
        """Whether silence is fine."""

    @abstractmethod
    def received(self, data: memoryview) -> int:
        """Take bytes, whose memory is reused after the call; returns how many messages were handled.

        It stops when `full`, and after `MESSAGES_PER_TURN`. Called again with no bytes for the rest.
        """

    @abstractmethod
    def on_close(self) -> None:
        """Either side has ended the connection. Called once."""

    @property
    def full(self) -> bool:
        """Whether no further message should be handled now."""
        return self.closed or self._writing or len(self._unsent) >= ANSWERED_BYTES

    def start(self, first: bytes) -> None:
        """Begin to serve; `first` was read already."""
        self._listen(True)
        self._arm(self.limits.idle_s)
        if first:
            self._deliver(memoryview(first))

    def send(self, data: bytes) -> None:
        """Send now, or as soon as the peer reads; a peer that never reads is cut off."""
        if self.closed:
            return
        self._unsent += data
        if self._gathering:
            return
        if self._writing:
            self._account()
        else:
            self._flush()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Everything sent inside leaves in one write at the end."""
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            if self._unsent and not self._writing and not self.closed:
                self._flush()

    def close(self) -> None:
        """End the connection. Harmless when repeated."""
        if self.closed:
            return
        if self._unsent and not self._writing:
            self._flush()  # the refusal that explains the close; best effort
        self._close()

    def evict(self) -> None:
        """Close this connection: all together hold too much, and this one most of it."""
        held_bytes = self._held.of(self)
        log.warning("%s: closed, for it held %d bytes of all that clients may hold", self.peer, held_bytes)
        self._close()

    def proceed(self) -> None:
        """Handle the rest of the received bytes if there is room now; other connections first."""
        self._loop.call_soon(self._continue)

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._listen(False)
        self._loop.remove_writer(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        self._sock.close()
        self._unsent.clear()
        self._held.set(self, 0)
        self.on_close()
        self._report_closed()

    def _readable(self) -> None:
        try:
            count = self._sock.recv_into(_buffer)
            if count:
                quick_ack(self._sock)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            log.debug("connection with %s lost: %s", self.peer, error)
            self._close()
            return
        if not count:
            self._close()
            return
        self._deliver(_buffer[:count])

    def _deliver(self, data: memoryview) -> None:
        self._last_heard = self._loop.time()
        messages = self.received(data)
        if self.closed:
            return
        left = self.unhandled_bytes
        more = messages > 0 and left > 0  # perhaps only the beginning of a message: the next turn decides
        self._listen(not more and not self.full)  # what cannot be handled yet stays in the kernel
        if more:
            self.proceed()
        if messages or not left:
            self._incomplete_since = None
        if left and self._incomplete_since is None:
            self._incomplete_since = self._last_heard
            self._arm(self.limits.message_s)
        self._account()

    def _continue(self) -> None:
        if not self.full:
            self._deliver(memoryview(b""))

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._listening:
            self._loop.add_reader(self._fd, self._readable)
        elif self._listening and not wanted:
            self._loop.remove_reader(self._fd)
        self._listening = wanted

    def _account(self) -> None:
        if self.closed:
            return
        self._held.set(self, self.unhandled_bytes + len(self._unsent))
        while self._held.taken > self._held.total:
            self._held.largest.evict()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            log.debug("connection with %s lost: %s", self.peer, error)
            self._close()
            return
        del self._unsent[:sent]
        if self._unsent:
            if sent or self._stalled_since is None:
                self._stalled_since = self._loop.time()
            if not self._writing:
                # A peer that does not read its answers is not read either, so that answers cannot pile up here.
                self._writing = True
                self._listen(False)
                self._loop.add_writer(self._fd, self._flush)
                self._arm(self.limits.message_s)
            self._account()
        elif self._writing:
            self._writing = False
            self._stalled_since = None
            self._loop.remove_writer(self._fd)
            self.proceed()

    def _arm(self, delay_s: float) -> None:
        """Look at the clock no later than in `delay_s`. One timer per connection, moved lazily."""
        when = self._loop.time() + delay_s
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._stalled_since is not None:
            left_s = self._stalled_since + self.limits.message_s - now
            what = "does not read its answers"
        elif self._incomplete_since is not None:
            left_s = self._incomplete_since + self.limits.message_s - now
            what = "has not finished its message"
        elif self.may_idle:
            left_s, what = self.limits.idle_s, ""
        else:
            left_s = self._last_heard + self.limits.idle_s - now
            what = "is idle"
        if left_s <= 0:
            log.info("%s %s: closed", self.peer, what)
            self._close()
        else:
            self._arm(left_s)
