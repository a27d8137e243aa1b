"""Copying a session's bytes between client and phone: readiness callbacks on raw sockets, no transports in between.

A chunk is sent on at once; what the other side does not take pauses this side's reader. So memory per session is at
most one chunk in each direction, and a slow phone slows the client through TCP itself.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from farm.model.sessions import SessionOutcome
from farm.tvm_server.connection import quick_ack

CHUNK_BYTES = 256 << 10  # one recv; larger ones gain nothing over adb's 256 KiB maximum payload
PAUSED_CHECK_S = 1.0  # how often a side that is not read is checked for having left
LAST_BYTES_S = 5.0  # when one side has ended: how long the other may take for the bytes already read
# TVM's goodbye: a packet of 4 bytes that holds the code kShutdown (rpc_protocol.h; unchanged since 2020).
GOODBYE = struct.pack("<Qi", 4, 1)

_TCP_ESTABLISHED = 1  # tcp_info.tcpi_state, linux/tcp.h

_buffer = memoryview(bytearray(CHUNK_BYTES))  # one for all sessions: it is emptied before the callback returns


class Relay:
    """One session between two connected, non-blocking sockets, which it closes when the session ends."""

    def __init__(self, client: socket.socket, phone: socket.socket, *, idle_s: float, timeout_s: float = 0.0) -> None:
        """Prepare; nothing is read before `run`.

        Args:
            client: the TVM client's socket.
            phone: the stream to the phone's server.
            idle_s: end the session when no byte went either way for this long.
            timeout_s: end it after this long in any case; 0 is never.
        """
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._timeout_s = timeout_s
        self._up = _Direction(self, client, phone, upward=True)
        self._down = _Direction(self, phone, client, upward=False)
        self._finished: asyncio.Future[tuple[SessionOutcome, str]] = self._loop.create_future()
        self._ending: tuple[SessionOutcome, str] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.last_byte_at = self._loop.time()
        self.last_phone_byte_at = 0.0  # when the phone last sent bytes, in the loop's time
        self.outstanding = False  # the client sent something that the phone has not answered

    @property
    def bytes_up(self) -> int:
        """Bytes from client to phone."""
        return self._up.total

    @property
    def bytes_down(self) -> int:
        """Bytes from phone to client."""
        return self._down.total

    async def run(self, first_up: bytes = b"", first_down: bytes = b"") -> tuple[SessionOutcome, str]:
        """Copy until either side, a limit or `cut` ends the session; both sockets are closed on return."""
        if self._ending is None:
            self._up.start(first_up)
            if self._ending is None:
                self._down.start(first_down)
        if self._ending is None:
            self._timers.append(self._loop.call_later(self._idle_s, self._check_idle))
            if self._timeout_s:
                reason = f"longer than its session_timeout of {self._timeout_s:g} s"
                self._timers.append(self._loop.call_later(self._timeout_s, self.cut, SessionOutcome.TIMED_OUT, reason))
        else:
            self._finish()
        try:
            return await self._finished
        finally:
            self._finish()

    def cut(self, outcome: SessionOutcome, reason: str) -> None:
        """End the session now; bytes under way are dropped. Harmless when repeated."""
        if self._ending is None:
            self._ending = (outcome, reason)
            self._finish()

    def side_ended(self, direction: _Direction, error: OSError | None) -> None:
        """A socket was closed or failed: deliver the bytes read from it, then end."""
        if self._ending is not None:
            return
        if direction is self._up:
            self._ending = self._client_left(error)
        # after the goodbye, the phone may be the first to close
        elif error is None and self._up.tail.endswith(GOODBYE):
            self._ending = (SessionOutcome.CLOSED, "")
        else:
            self._ending = (
                SessionOutcome.PHONE_CLOSED,
                f"the phone's side ended: {error.strerror if error else 'closed'}",
            )
        for each in (self._up, self._down):
            each.stop_reading()
        if direction.sending:
            self._timers.append(self._loop.call_later(LAST_BYTES_S, self._finish))
        else:
            self._finish()

    def paused(self, direction: _Direction) -> None:
        """The sink is full and the source unread: a reset would go unnoticed, so the kernel is asked.

        A FIN behind unread bytes cannot be seen at all; the session's timeout and idle limit bound that.
        """
        direction.check_again(None)
        if self._ending is None and direction.sending:
            if direction.source_has_left():
                self.side_ended(direction, None)
                self._finish()
            else:
                direction.check_again(self._loop.call_later(PAUSED_CHECK_S, self.paused, direction))

    def sink_failed(self, direction: _Direction, error: OSError) -> None:
        """A socket cannot be written any more: its owner is gone."""
        self.side_ended(self._down if direction is self._up else self._up, error)
        self._finish()

    def sent_all(self, direction: _Direction) -> None:
        """A paused direction has delivered everything."""
        if self._ending is None:
            direction.read()
        else:
            self._finish()

    def _client_left(self, error: OSError | None) -> tuple[SessionOutcome, str]:
        if self._up.tail.endswith(GOODBYE):
            return SessionOutcome.CLOSED, ""
        if self.outstanding:
            how = f": {error.strerror}" if error else ""
            return SessionOutcome.VANISHED, f"the client left while the phone worked for it{how}"
        return SessionOutcome.CLOSED, "the client left without a goodbye"

    def _check_idle(self) -> None:
        left_s = self.last_byte_at + self._idle_s - self._loop.time()
        if left_s <= 0:
            self.cut(SessionOutcome.IDLE, f"no byte for {self._idle_s:g} s")
        else:
            self._timers.append(self._loop.call_later(left_s, self._check_idle))

    def _finish(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for direction in (self._up, self._down):
            direction.close()
        if not self._finished.done():
            self._finished.set_result(self._ending or (SessionOutcome.CUT, "the gate was stopped"))


class _Direction:
    """One way: from `source` to `sink`."""

    __slots__ = (
        "_check", "_loop", "_quick", "_relay", "_sink_fd", "_source_fd", "_unsent", "_up", "sending", "sink", "source",
        "tail", "total",
    )  # fmt: skip

    def __init__(self, relay: Relay, source: socket.socket, sink: socket.socket, *, upward: bool) -> None:
        self._relay = relay
        self._loop = asyncio.get_running_loop()
        self._quick = source.family in (socket.AF_INET, socket.AF_INET6)
        self._up = upward
        self._unsent = memoryview(b"")
        self._check: asyncio.TimerHandle | None = None
        self.source = source
        self.sink = sink
        self._source_fd = source.fileno()  # for the loop: it would format a socket into an exception at each add_reader
        self._sink_fd = sink.fileno()
        self.sending = False  # bytes wait for the sink; the source is not read
        self.tail = b""  # the last bytes seen on the way up: a goodbye or not
        self.total = 0

    def start(self, first: bytes) -> None:
        """Pass `first` on, then whatever comes."""
        self.read()
        if first:
            self._pass_on(memoryview(first))

    def read(self) -> None:
        """Listen to the source."""
        self._loop.add_reader(self._source_fd, self._readable)

    def stop_reading(self) -> None:
        """Do not listen to the source."""
        self._loop.remove_reader(self._source_fd)

    def close(self) -> None:
        """Close the source; the other direction closes the sink."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        if self.source.fileno() < 0:
            return
        self._loop.remove_reader(self._source_fd)
        self._loop.remove_writer(self._source_fd)
        self.source.close()

    def check_again(self, timer: asyncio.TimerHandle | None) -> None:
        """Remember the timer of the next look."""
        self._check = timer

    def source_has_left(self) -> bool:
        """Whether the source's owner has closed it, unread bytes or not."""
        if not self._quick:
            return False  # a unix socket: its end is seen when it is read again
        return self.source.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _TCP_ESTABLISHED

    def _readable(self) -> None:
        source = self.source
        try:
            count = source.recv_into(_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._relay.side_ended(self, error)
            return
        if not count:
            self._relay.side_ended(self, None)
            return
        if self._quick:
            quick_ack(source)
        self._pass_on(_buffer[:count])

    def _pass_on(self, chunk: memoryview) -> None:
        relay = self._relay
        count = len(chunk)
        self.total += count
        relay.last_byte_at = self._loop.time()
        relay.outstanding = self._up
        if not self._up:
            relay.last_phone_byte_at = relay.last_byte_at
        else:
            size = len(GOODBYE)
            self.tail = bytes(chunk[-size:]) if count >= size else (self.tail + bytes(chunk))[-size:]
        try:
            sent = self.sink.send(chunk)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            relay.sink_failed(self, error)
            return
        if sent < count:
            self._unsent = memoryview(bytes(chunk[sent:]))
            self.sending = True
            self.stop_reading()
            self._loop.add_writer(self._sink_fd, self._writable)
            if self._check is None:
                self._check = self._loop.call_later(PAUSED_CHECK_S, relay.paused, self)

    def _writable(self) -> None:
        try:
            sent = self.sink.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._relay.sink_failed(self, error)
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self.sending = False
            self._loop.remove_writer(self._sink_fd)
            self._relay.sent_all(self)
