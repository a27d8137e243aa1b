"""Accepted sockets travelling from the lab process into a phone (SCM_RIGHTS)."""

from __future__ import annotations

import socket


class ConnectionSource:
    """The phone's end: connections arrive one by one, each as a descriptor with one byte."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def fileno(self) -> int:
        """Readable when a connection waits, or the lab is gone."""
        return self._channel.fileno()

    def receive(self) -> socket.socket | None:
        """The next connection; waits for it if the channel blocks. None when the lab is gone.

        Raises:
            BlockingIOError: nothing waits (non-blocking channels).
        """
        data, descriptors, _flags, _address = socket.recv_fds(self._channel, 1, 1)
        if not data or not descriptors:
            return None
        return socket.socket(fileno=descriptors[0])

    def setblocking(self, blocking: bool) -> None:
        """Whether `receive` waits."""
        self._channel.setblocking(blocking)


class ConnectionSender:
    """The lab's end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def send(self, connection: socket.socket) -> None:
        """Hand a connection over; the caller's copy may be closed afterwards.

        Raises:
            OSError: the phone is gone.
        """
        socket.send_fds(self._channel, [b"c"], [connection.fileno()])

    def close(self) -> None:
        """No more connections."""
        self._channel.close()


def connection_channel() -> tuple[ConnectionSender, ConnectionSource]:
    """Both ends, to be shared out by a fork."""
    lab, phone = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return ConnectionSender(lab), ConnectionSource(phone)
