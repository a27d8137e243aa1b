"""One connection between `farm gate` and the daemon: messages in order, with the descriptors that come with them.

A unix socket of type SOCK_SEQPACKET keeps messages apart and each descriptor with its message, so nothing is framed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections import deque
from collections.abc import Callable

from farm.common.errors import ProtocolError
from farm.tvm_server.gate.messages import CARRIES, MAX_MESSAGE_BYTES, Message, Side, decode, encode, version_of

MESSAGES_PER_TURN = 64  # so that a flood leaves the loop time for its other work
MAX_UNSENT = 65_536  # messages; the other side does not read: it is given up


class GateLink:
    """A connected SEQPACKET socket, from the first message to the loss of the other side."""

    def __init__(
        self,
        sock: socket.socket,
        side: Side,
        received: Callable[[Message, socket.socket | None], None],
        lost: Callable[[str], None],
    ) -> None:
        """Start listening.

        Args:
            sock: owned from now on.
            side: what the other end may say (FROM_DAEMON, FROM_GATE).
            received: gets each message, and owns the descriptor that came with it; None where it was lost on its way.
            lost: called once, with the reason, unless `close` ends it.
        """
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._side = side
        self._received = received
        self._lost = lost
        self._unsent: deque[tuple[bytes, socket.socket | None]] = deque()
        self._ending = False
        self._closed = False
        self.version: int | None = None  # that the first message stated, whether it could be read or not
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def send(self, message: Message, carried: socket.socket | None = None) -> None:
        """Send now, or as soon as there is room; `lost` is never called from in here.

        `carried` goes along as a copy, so that the caller may close it at once.

        Raises:
            OSError: no descriptor is left for that copy; nothing is sent.
        """
        if self._closed:
            return
        data = encode(message)
        self._unsent.append((data, None if carried is None else carried.dup()))
        if len(self._unsent) == 1:
            self._flush()
        elif len(self._unsent) > MAX_UNSENT:
            self._loop.call_soon(self._end, "it does not read its messages")

    def close(self, flush: bool = False) -> None:
        """End it; `lost` is not called. `flush`: first send the bytes that the socket takes at once."""
        if flush and not self._closed:
            self._flush()
        self._shut()

    def _flush(self) -> None:
        while self._unsent:
            data, carried = self._unsent[0]
            try:
                if carried is None:
                    self._sock.send(data)
                else:
                    socket.send_fds(self._sock, [data], [carried.fileno()])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError as error:
                self._loop.call_soon(self._read_last, error.strerror or str(error))
                return
            self._unsent.popleft()
            if carried is not None:
                carried.close()
        self._loop.remove_writer(self._sock)

    def _read_last(self, reason: str) -> None:
        """The other end takes nothing any more; the messages that it sent before (a refusal, say) still count."""
        self._readable()
        self._end(reason)

    def _readable(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if self._closed:
                return
            try:
                data, descriptors, flags, _ = socket.recv_fds(
                    self._sock, MAX_MESSAGE_BYTES, 2, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(error.strerror or str(error))
                return
            carried = [_socket_of(each) for each in descriptors]
            if not data:
                _close_all(carried)
                self._end("it has ended")
                return
            try:
                message = self._read(data, flags, carried)
            except ProtocolError as error:
                _close_all(carried)
                self._end(str(error))
                return
            self._received(message, carried[0] if carried else None)

    def _read(self, data: bytes, flags: int, carried: list[socket.socket | None]) -> Message:
        if self.version is None:
            self.version = version_of(data)
        if flags & socket.MSG_TRUNC:
            raise ProtocolError(f"not a gate message: more than {MAX_MESSAGE_BYTES} bytes")
        message = decode(data, self._side)
        if carried and not isinstance(message, CARRIES):
            raise ProtocolError("a descriptor came with a message that has none")
        if len(carried) > 1:
            raise ProtocolError("more than one descriptor came with a message")
        return message

    def _end(self, reason: str) -> None:
        if not self._closed and not self._ending:
            self._ending = True
            self._lost(reason)  # which may still say why
            self._shut()

    def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        _close_all([carried for _, carried in self._unsent])
        self._unsent.clear()


def trusted(uid: int) -> bool:
    """Whether the other end may be believed: it is of our own user, or root."""
    return uid in (0, os.geteuid())


def _socket_of(descriptor: int) -> socket.socket | None:
    """The descriptor as a socket; whatever else it is, is closed."""
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return socket.socket(fileno=descriptor)
    os.close(descriptor)
    return None


def _close_all(carried: list[socket.socket | None]) -> None:
    for each in carried:
        if each is not None:
            each.close()
