"""The cable: one socket to an adb server, read and written without copying, slowed down when a fault asks for it."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.common.errors import ProtocolError, UserError
from farm.simulation.packets import pieces

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from farm.simulation.adbd import DeviceConnection, Event
    from farm.simulation.packets import Buffer

_READS_PER_TURN = 4  # then other sockets get their turn; a large payload still arrives in few turns
_BUFFERS_PER_SEND = 64  # far below IOV_MAX; more than one turn ever produces
_PACE_STEP_S = 0.02  # a paced link moves its bytes in portions of this length, so that it flows rather than bursts
_MAX_PORTION_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LinkPace:
    """How slow a link is, in each direction: `bytes_per_s`, and `latency_s` one way."""

    bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0 or self.latency_s < 0:
            raise UserError(
                f"a link cannot move {self.bytes_per_s} bytes/s with {self.latency_s} s of latency",
                hint="give a positive bandwidth and a latency of at least 0",
            )

    @property
    def portion_bytes(self) -> int:
        """How many bytes move at once."""
        return max(1, min(_MAX_PORTION_BYTES, int(self.bytes_per_s * _PACE_STEP_S)))


class PhoneLink:
    """Moves bytes between a connected socket and a `DeviceConnection`; calls back with events and, once, with its end.

    `on_lost(reason)` is called at most once, and not when `close` was called.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        connection: DeviceConnection,
        *,
        on_event: Callable[[Event], None],
        on_lost: Callable[[str], None],
    ) -> None:
        sock.setblocking(False)
        if sock.family in {socket.AF_INET, socket.AF_INET6}:
            # An OKAY that waits for a delayed ACK costs 44 ms (measured).
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = loop
        self._socket = sock
        self._connection = connection
        self._on_event = on_event
        self._on_lost = on_lost
        self._unsent: deque[Buffer] = deque()
        self._in_turn = False
        self._writer_waits = False
        self._inbound: _DelayLine | None = None
        self._outbound: _DelayLine | None = None
        self._resume: asyncio.TimerHandle | None = None
        self.closed = False
        self.deaf = False  # a wedged adbd: what arrives is thrown away, for good
        loop.add_reader(sock, self._on_readable)

    def set_pace(self, pace: LinkPace | None) -> None:
        """Slow the link down, or (None) let everything that was held back through at once."""
        if self.closed:
            return
        # What goes out first: what comes in may be answered past the line.
        held = [line for line in (self._outbound, self._inbound) if line is not None]
        self._inbound = self._outbound = None
        for line in held:
            line.release()
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
            self._loop.add_reader(self._socket, self._on_readable)
        if pace is not None:
            self._inbound = _DelayLine(self._loop, pace, self._take_in)
            self._outbound = _DelayLine(self._loop, pace, self._send)

    def wake(self) -> None:
        """The connection has output: send it, at the end of the running turn if there is one."""
        if not self._in_turn:
            self.flush()

    def flush(self) -> None:
        """Send the connection's output now, as far as the socket takes it."""
        if self.closed:
            return
        output = self._connection.take_output()
        if not output:
            return
        if self._outbound is not None:
            self._outbound.put(b"".join(output))
            return
        self._send(*output)

    def close(self) -> None:
        """Pull the cable. Nothing is called back any more."""
        if self.closed:
            return
        self.closed = True
        for line in (self._inbound, self._outbound):
            if line is not None:
                line.discard()
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    def _on_readable(self) -> None:
        try:
            if self._inbound is not None:
                self._read_paced(self._inbound)
            else:
                self._read()
        except ConnectionResetError as error:
            self._lose(f"connection reset: {error.strerror}")
        except OSError as error:
            self._lose(str(error))
        except ProtocolError as error:
            self._lose(error.message)

    def _read(self) -> None:
        if self.deaf:
            if not self._socket.recv(_MAX_PORTION_BYTES):
                self._lose("the host closed the connection")
            return
        self._in_turn = True
        try:
            for _ in range(_READS_PER_TURN):
                target = self._connection.writable()
                try:
                    count = self._socket.recv_into(target)
                except BlockingIOError:
                    break
                if count == 0:
                    self._lose("the host closed the connection")
                    return
                self._connection.wrote(count)
                if not self._handle_events() or count < len(target):
                    break
        finally:
            self._in_turn = False
        self.flush()

    def _handle_events(self) -> bool:
        """Whether more is to be read."""
        while not self.closed and (event := self._connection.next_event()) is not None:
            self._on_event(event)
        return not (self.closed or self.deaf)

    def _read_paced(self, line: _DelayLine) -> None:
        try:
            data = self._socket.recv(line.pace.portion_bytes)
        except BlockingIOError:
            return
        if not data:
            self._lose("the host closed the connection")
            return
        wait_s = line.put(data)
        self._loop.remove_reader(self._socket)
        self._resume = self._loop.call_later(wait_s, self._resume_reading)

    def _resume_reading(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket, self._on_readable)

    def _take_in(self, data: bytes) -> None:
        if self.closed or self.deaf:
            return
        self._in_turn = True
        try:
            for _ in pieces(data, self._connection):
                if not self._handle_events():  # before the next is read: a stream's end must not be known too early
                    break
        except ProtocolError as error:
            self._lose(error.message)
        finally:
            self._in_turn = False
        self.flush()

    def _send(self, *buffers: Buffer) -> None:
        if self.closed:
            return
        self._unsent.extend(buffers)
        if not self._writer_waits:
            self._push_out()

    def _push_out(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                batch = [unsent[index] for index in range(min(len(unsent), _BUFFERS_PER_SEND))]
                sent = self._socket.sendmsg(batch)
                while sent:
                    first = unsent[0]
                    if sent < len(first):
                        unsent[0] = memoryview(first)[sent:]
                        break
                    sent -= len(first)
                    unsent.popleft()
        except BlockingIOError:
            if not self._writer_waits:
                self._writer_waits = True
                self._loop.add_writer(self._socket, self._push_out)
            return
        except OSError as error:
            # Not from inside a caller's call stack: a service may be half-way through its own work.
            self._loop.call_soon(self._lose, str(error))
            return
        if self._writer_waits:
            self._writer_waits = False
            self._loop.remove_writer(self._socket)

    def _lose(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._on_lost(reason)


class _DelayLine:
    """Holds bytes back until a slow link would have delivered them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pace: LinkPace, deliver: Callable[[bytes], None]) -> None:
        self.pace = pace
        self._loop = loop
        self._deliver = deliver
        self._held: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, data: bytes) -> float:
        """Queue bytes; returns for how many seconds the link is busy with them."""
        now = self._loop.time()
        portion = self.pace.portion_bytes
        for start in range(0, len(data), portion):
            piece = data[start : start + portion]
            self._free_at = max(now, self._free_at) + len(piece) / self.pace.bytes_per_s
            self._held.append((self._free_at + self.pace.latency_s, piece))
        if self._timer is None:
            self._arm()
        return max(0.0, self._free_at - now)

    def release(self) -> None:
        """Deliver everything at once."""
        self.discard_timer()
        while self._held:
            self._deliver(self._held.popleft()[1])

    def discard(self) -> None:
        """Forget everything."""
        self.discard_timer()
        self._held.clear()

    def discard_timer(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._held:
            self._timer = self._loop.call_at(self._held[0][0], self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._held and self._held[0][0] <= now:
            self._deliver(self._held.popleft()[1])
        if self._timer is None:
            self._arm()
