"""People and processes at the other end of a socket, as the kernel knows them, and users' names."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import pwd
import socket
import struct
from typing import NamedTuple

from farm.common.tasks import SharedCall

NAME_CACHE_S = 60.0  # a renamed user counts after a minute

_UCRED = struct.Struct("iII")  # struct ucred (unix(7))
_SOCK_DIAG_BY_FAMILY = 20  # linux/sock_diag.h
_NLM_F_REQUEST = 1  # linux/netlink.h
_NETLINK_SOCK_DIAG = 4
_NLMSG_HEADER = struct.Struct("=IHHII")  # length, type, flags, seq, pid
_DIAG_REQUEST = struct.Struct("=BBBBI2s2s16s16sIII")  # linux/inet_diag.h: inet_diag_req_v2
_DIAG_ANSWER = struct.Struct("=BBBB48s12sII")  # inet_diag_msg: family, state, .., sockid, .., uid, inode
_ESTABLISHED = 1  # include/net/tcp_states.h
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF


class PeerProcess(NamedTuple):
    """The process at the other end of a unix socket, as it was when it connected or began to listen."""

    pid: int
    uid: int
    gid: int


def peer_process(sock: socket.socket) -> PeerProcess:
    """The peer, as the kernel names it.

    Raises:
        OSError: it has ended.
    """
    return PeerProcess(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def user_name(uid: int) -> str:
    """The login name of `uid`, or `uid-N` when it has none: the same at every listener. A name service may hang."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def name_at(user: str, host: str) -> str:
    """A user's name in a lab whose hosts have users of their own: alice@lab3; without a host the name itself."""
    return f"{user}@{host}" if host and user else user


class UserNames:
    """Login names by uid, asked for in a thread: a name service that hangs delays only the user to be named."""

    def __init__(self) -> None:
        self._shared_lookup = SharedCall(self._look_up, keep_s=NAME_CACHE_S)
        self._names: dict[int, str] = {}

    def known(self, uid: int) -> str | None:
        """The last name found, which is looked up again after a minute; None before the first answer."""
        self._shared_lookup(uid)
        return self._names.get(uid)

    async def __call__(self, uid: int) -> str:
        """The login name, or `uid-N`."""
        known = self.known(uid)
        return await self._shared_lookup(uid) if known is None else known

    async def _look_up(self, uid: int) -> str:
        name = self._names[uid] = await asyncio.to_thread(user_name, uid)
        return name


def address_of(name: tuple[object, ...]) -> tuple[str, int]:
    """(address, port) of a socket name; an IPv4 peer of an IPv6 socket is given as IPv4."""
    address, port = str(name[0]).partition("%")[0], name[1]
    if not isinstance(port, int):
        raise TypeError(f"not an internet address: {name!r}")
    mapped = ipaddress.ip_address(address)
    if isinstance(mapped, ipaddress.IPv6Address) and mapped.ipv4_mapped is not None:
        address = str(mapped.ipv4_mapped)
    return address, port


def shut_down(sock: socket.socket) -> None:
    """End a connection, from any thread. The users of its socket then close it."""
    with contextlib.suppress(OSError):  # it has ended
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # an SSLSocket's own would drop what another thread uses


class SocketOwner(NamedTuple):
    """The process that holds the other end of a connection within this host."""

    uid: int
    inode: int  # of the socket, as /proc/PID/fd names it


def owner_of(sock: socket.socket) -> SocketOwner | None:
    """The owner of the other end, if that is on this host and the kernel reports it; None otherwise.

    An end that is closing has no owner: the kernel reports a socket that no process has any more as root's.

    Raises:
        OSError: the connection is already gone.
    """
    address, port = address_of(sock.getpeername())
    local_address, local_port = address_of(sock.getsockname())
    if address != local_address and not ipaddress.ip_address(address).is_loopback:
        return None
    return _owner(address, port, local_address, local_port)


def _owner(address: str, port: int, local_address: str, local_port: int) -> SocketOwner | None:
    """The owner of the peer's socket, as the kernel says (0.02 ms; /proc/net/tcp would be read whole)."""
    source, target = ipaddress.ip_address(address), ipaddress.ip_address(local_address)
    family = socket.AF_INET if source.version == 4 else socket.AF_INET6
    request = _DIAG_REQUEST.pack(
        family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE,
        port.to_bytes(2, "big"), local_port.to_bytes(2, "big"), source.packed, target.packed, 0, _NO_COOKIE, _NO_COOKIE,
    )  # fmt: skip
    header = _NLMSG_HEADER.pack(_NLMSG_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as netlink:
            netlink.setblocking(False)  # the kernel has answered before send returns
            netlink.send(header + request)
            answer = netlink.recv(4096)
    except OSError:
        return None  # no netlink in this sandbox, or no descriptor left: the address has to do
    if len(answer) < _NLMSG_HEADER.size + _DIAG_ANSWER.size:
        return None
    if _NLMSG_HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    _, state, _, _, _, _, uid, inode = _DIAG_ANSWER.unpack_from(answer, _NLMSG_HEADER.size)
    return SocketOwner(uid, inode) if state == _ESTABLISHED and inode else None
