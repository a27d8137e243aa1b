"""People and processes of this host: who is at the other end of a unix socket, and what a user is called."""

from __future__ import annotations

import pwd
import socket
import struct
from typing import NamedTuple

_UCRED = struct.Struct("iII")  # struct ucred (unix(7))


class PeerProcess(NamedTuple):
    """The process at the other end of a unix socket, as it was when it connected or began to listen."""

    pid: int
    uid: int
    gid: int


def peer_process(sock: socket.socket) -> PeerProcess:
    """Who is there, as the kernel says.

    Raises:
        OSError: it has ended.
    """
    return PeerProcess(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def user_name(uid: int) -> str:
    """The login name of `uid`, or `uid-N` when it has none: the same at every door. A name service may hang."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
