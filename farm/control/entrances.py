"""Where a control door is, who may come in, and how it is known who came: a unix socket (the kernel says it).

The other way in, for people elsewhere, is farm.control.curve_entrance.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import zmq
import zmq.asyncio

from farm.control.callers import KeyPeer, Peer
from farm.core.errors import HostError
from farm.peers import peer_process

MAX_SOCKET_PATH_BYTES = 107  # sizeof(sockaddr_un.sun_path) - 1 (unix(7))
TAKEN_PROBE_S = 1.0


class DoorError(HostError):
    """A control socket cannot be opened."""

    code = "door"


class Entrance(Protocol):
    """Where callers come in."""

    @property
    def endpoint(self) -> str:
        """The ZeroMQ address clients connect to."""

    @property
    def name(self) -> str:
        """For people."""

    def open(self, context: zmq.asyncio.Context, door: zmq.asyncio.Socket) -> None:
        """Bind the door's socket.

        Raises:
            DoorError: it cannot be opened.
        """

    @property
    def parts(self) -> Sequence[asyncio.Task[None]]:
        """What must run for the door to let anybody in, besides its receiver."""

    def close(self) -> None:
        """Leave nothing behind. Called before the socket is closed."""

    def owner(self, connection: socket.socket) -> str | None:
        """Whose a connection is, for people; None: it is none of this door.

        Raises:
            OSError: it has ended.
        """

    def sender(self, frame: zmq.Frame) -> Peer | KeyPeer | None:
        """Who sent the message that begins with this frame; None: nobody who may."""


class UnixEntrance:
    """A unix socket of mode 0660."""

    def __init__(self, path: Path, gid: int | None = None) -> None:
        """`path` is in a folder that is there; `gid` is the group that may connect besides the owner."""
        self._path = path
        self._gid = gid
        self.endpoint = f"ipc://{path}"
        self.name = path.name

    def open(self, context: zmq.asyncio.Context, door: zmq.asyncio.Socket) -> None:  # noqa: ARG002 (as the other does)
        """Bind the door's socket.

        Raises:
            DoorError: the path is too long, somebody listens on it, or the folder refuses.
        """
        _check_free(self._path)
        try:
            mask = os.umask(0o117)  # no moment at which others could connect
            try:
                door.bind(self.endpoint)
            finally:
                os.umask(mask)
            self._path.chmod(0o660)
            if self._gid is not None:
                os.chown(self._path, -1, self._gid)
        except (OSError, zmq.ZMQError) as error:
            raise DoorError(
                f"cannot open the control socket {self._path}", hint="is its folder writable?", evidence=str(error)
            ) from error

    @property
    def parts(self) -> Sequence[asyncio.Task[None]]:
        """None."""
        return ()

    def close(self) -> None:
        """Remove the socket's name."""
        self._path.unlink(missing_ok=True)

    def owner(self, connection: socket.socket) -> str | None:
        """The uid that connected.

        Raises:
            OSError: it has ended.
        """
        if connection.family != socket.AF_UNIX or connection.getsockname() != str(self._path):
            return None
        return f"uid {peer_process(connection).uid}"

    def sender(self, frame: zmq.Frame) -> Peer | KeyPeer | None:
        """The sender from libzmq's "Peer-Address" of an ipc socket: `host:uid:gid:pid`."""
        try:
            text = frame.get("Peer-Address")
        except zmq.ZMQError:
            return None
        parts: Sequence[str] = str(text).rsplit(":", 3)[-3:]
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            return None
        uid, gid, pid = map(int, parts)
        return Peer(uid, gid, pid)


def _check_free(path: Path) -> None:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise DoorError(
            f"the control socket's path is longer than {MAX_SOCKET_PATH_BYTES} bytes: {path}",
            hint="choose a shorter runtime folder",
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TAKEN_PROBE_S)
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise DoorError(f"another process listens on {path}", hint="is a farm daemon already running?")
