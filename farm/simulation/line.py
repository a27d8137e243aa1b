"""The line between the lab and a phone's adbd: whole messages, each with at most one socket (SCM_RIGHTS)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.simulation.machine import Machine

MESSAGE_LIMIT_BYTES = 64 * 1024
CONNECTION_MESSAGE = b"adb"  # goes with every connection

Received = tuple[bytes, socket.socket | None]


class Line:
    """One end of the line. It never blocks."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    def fileno(self) -> int:
        """For an event loop: readable when `receive` has something."""
        return self._end.fileno()

    def receive(self) -> Received | None:
        """The next message and the socket that came along, if any; None when the other end is gone.

        Raises:
            BlockingIOError: nothing is waiting.
            OSError: the other end died with messages of ours unread.
        """
        data, descriptors, _, _ = socket.recv_fds(self._end, MESSAGE_LIMIT_BYTES, 1)
        connection = socket.socket(fileno=descriptors[0]) if descriptors else None
        if not data and connection is None:
            return None
        return data, connection

    def send(self, message: bytes, connection: socket.socket | None = None) -> None:
        """Send a message of 1 byte to 64 KiB; the caller's copy of the socket may be closed afterwards.

        Raises:
            ValueError: the message is empty or too long for the receiver.
            BlockingIOError: the other end does not read.
            OSError: it is gone.
        """
        if not 0 < len(message) <= MESSAGE_LIMIT_BYTES:
            raise ValueError(f"a message of {len(message)} bytes; 1 to {MESSAGE_LIMIT_BYTES} go through")
        if connection is None:
            self._end.send(message)
        else:
            socket.send_fds(self._end, [message], [connection.fileno()])

    def close(self) -> None:
        """Hang up."""
        self._end.close()


class ConnectionSource(Line):
    """The phone's end, given to its adbd; `machine` tells how to run commands there."""

    def __init__(self, end: socket.socket, machine: Machine) -> None:
        super().__init__(end)
        self.machine = machine


def line_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, to be wrapped where they are used."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
