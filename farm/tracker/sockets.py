"""Socket options and who is at the other end: what both halves of the TVM door need from Linux."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
from typing import NamedTuple

from farm.core.shared_look import SharedLook
from farm.peers import user_name

# A peer that vanished without a FIN (power loss, pulled cable) is noticed after 30 + 3 * 10 s.
KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
# To the adb server's unix socket. TCP grows its buffers by itself, a unix socket stays at 208 KiB: less than one of our
# chunks, so every chunk was sent in two and adb's packets stayed small (uploads lost 3 to 5 %). Linux caps it at
# net.core.wmem_max.
UNIX_BUFFER_BYTES = 4 << 20
UNACKED_LIMIT_MS = 60_000  # data that a peer does not acknowledge for this long: the peer is gone

NAME_CACHE_S = 60.0  # a renamed user counts after a minute

_SOCK_DIAG_BY_FAMILY = 20  # linux/sock_diag.h
_NLM_F_REQUEST = 1  # linux/netlink.h
_NETLINK_SOCK_DIAG = 4
_NLMSG_HEADER = struct.Struct("=IHHII")  # length, type, flags, seq, pid
_DIAG_REQUEST = struct.Struct("=BBBBI2s2s16s16sIII")  # linux/inet_diag.h: inet_diag_req_v2
_DIAG_ANSWER = struct.Struct("=BBBB48s12sII")  # inet_diag_msg: family, state, .., sockid, .., uid, inode
_ESTABLISHED = 1  # include/net/tcp_states.h
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF


def tune(sock: socket.socket) -> None:
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
    by 40 ms unless this is set again after every recv (FACTS-tvm §1: 88 ms per exchange become 0.03 ms).
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def address_of(name: tuple[object, ...]) -> tuple[str, int]:
    """(address, port) of a socket name; an IPv4 peer of an IPv6 socket is given as IPv4."""
    address, port = str(name[0]).partition("%")[0], name[1]
    if not isinstance(port, int):
        raise TypeError(f"not an internet address: {name!r}")
    mapped = ipaddress.ip_address(address)
    if isinstance(mapped, ipaddress.IPv6Address) and mapped.ipv4_mapped is not None:
        address = str(mapped.ipv4_mapped)
    return address, port


class UserNames:
    """Login names by uid. They are asked for in a thread: a name service that hangs holds up whom it has to name."""

    def __init__(self) -> None:
        self._look = SharedLook(self._learn, keep_s=NAME_CACHE_S)
        self._names: dict[int, str] = {}

    def known(self, uid: int) -> str | None:
        """The name as it was told last; asked for anew when that is a minute ago. None: nobody has asked yet."""
        self._look(uid)
        return self._names.get(uid)

    async def __call__(self, uid: int) -> str:
        """The login name, or `uid-N`."""
        known = self.known(uid)
        return await self._look(uid) if known is None else known

    async def _learn(self, uid: int) -> str:
        name = self._names[uid] = await asyncio.to_thread(user_name, uid)
        return name


class OtherEnd(NamedTuple):
    """Of a connection."""

    address: str
    port: int
    uid: int | None  # of a process of this host, which is known by it (DESIGN D11); None: known by the address


def other_end(sock: socket.socket) -> OtherEnd:
    """Who is there.

    Raises:
        OSError: the connection is already gone.
    """
    address, port = address_of(sock.getpeername())
    owner = owner_of(sock)
    return OtherEnd(address, port, owner.uid if owner else None)


class Owner(NamedTuple):
    """Of the other end of a connection within this host."""

    uid: int
    inode: int  # of the socket, as /proc/PID/fd names it


def owner_of(sock: socket.socket) -> Owner | None:
    """Who of this host holds the other end open; None for one elsewhere or not to be known.

    An end that is closing is nobody's: a socket that no process has any more is reported as root's.

    Raises:
        OSError: the connection is already gone.
    """
    address, port = address_of(sock.getpeername())
    local_address, local_port = address_of(sock.getsockname())
    if address != local_address and not ipaddress.ip_address(address).is_loopback:
        return None
    return _owner(address, port, local_address, local_port)


def _owner(address: str, port: int, local_address: str, local_port: int) -> Owner | None:
    """Who owns the peer's socket, asked from the kernel (0.02 ms; /proc/net/tcp would be read whole)."""
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
    return Owner(uid, inode) if state == _ESTABLISHED and inode else None


class DescriptorReserve:
    """One descriptor kept so that a process without any can still turn a client away instead of leaving it hanging."""

    def __init__(self) -> None:
        self._fd: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def shed(self, listener: socket.socket) -> bool:
        """Accept one connection with the reserve and close it at once. False: nobody waits, or the reserve is lost."""
        self.close()
        try:
            connection, _ = listener.accept()
        except OSError:
            return False
        else:
            connection.close()
            return True
        finally:
            self.restore()

    def restore(self) -> None:
        """Take the descriptor back, if there is one to be had."""
        if self._fd is None:
            try:
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._fd = None

    def close(self) -> None:
        """Give the descriptor up."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
