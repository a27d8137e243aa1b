"""The TVM port: accepts connections, and distinguishes the tracker's from the gate's by their first int32.

`Acceptor` accepts for as long as the process lives, whatever happens to its descriptors. `Listener` names the user at
the other end, bounds the connections of each user and of all, and hands a connection on once its first bytes are there.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from farm.common.errors import Code, HostError
from farm.common.limiter import ClientLimiter, ClientPlace, Limiter
from farm.common.peers import UserNames, address_of, owner_of
from farm.model.sessions import Peer
from farm.tvm_server.connection import ConnectionLimits, quick_ack, set_options
from farm.tvm_server.wire import SESSION_MAGIC, TRACKER_MAGIC

ADDRESS_HINT = "[tvm] host must be an address of this host (`ip -br address`); 0.0.0.0 is all of them"
BACKLOG = 4096  # connections the kernel keeps for us; Linux caps it at net.core.somaxconn (4096 by default)
ACCEPTS_PER_WAKE = 8  # 0.3 ms; then the loop serves its sessions, however many clients connect
LEFT_PER_WAKE = 64  # clients that have left already, 0.01 ms each
REST_S = 0.002  # after so many: a port that took clients without end would take a whole core from its sessions
FIRST_PAUSE_S = 0.05  # without descriptors: look again this soon, then twice as late ...
MAX_PAUSE_S = 1.0  # ... up to this
SHED_AFTER_S = 5.0  # clients wait this long for a descriptor before they are turned away

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_MAGIC = struct.Struct("<i")
RESERVED_FILES = 256  # descriptors that are not for clients: copies on their way to the daemon, links, logs
MIN_CONNECTIONS = 16  # even where that leaves nothing
QUIET_S = 60.0  # between two lines about the connections of one user that are closed for one reason
LOOPBACK = "127.0.0.1"
USER_PARTS = 4  # one user has at most a quarter of the connections, and so leaves room for the others
MIN_OF_USER = 16  # of one user, however few there are
MAX_NAMED = 3  # users in a line for people
FIRST_BYTES = 4096  # of the first recv; the tracker or the gate gets them first

# Takes over a connection: the socket, its peer, the bytes read so far, and the callback for its end.
Takes = Callable[[socket.socket, Peer, bytes, Callable[[], None]], None]

log = logging.getLogger(__name__)


def user_limiter(total: int) -> Limiter[str]:
    """Bounds the connections, or places to wait, that users share."""
    return Limiter.shared(total, USER_PARTS, at_least=MIN_OF_USER)


def refusal_log() -> Callable[[str, str], None]:
    """A function that logs whose connection was closed and why: at once, then the number of further ones per QUIET_S.

    To be used on the loop.
    """
    further: dict[tuple[str, str], int] = {}

    def refused(who: str, why: str) -> None:
        if (who, why) in further:
            further[who, why] += 1
        else:
            log.warning("%s: %s", who, why)
            count_from_now(who, why)

    def count_from_now(who: str, why: str) -> None:
        further[who, why] = 0
        asyncio.get_running_loop().call_later(QUIET_S, publish, who, why)

    def publish(who: str, why: str) -> None:
        if count := further.pop((who, why)):
            log.warning("%s: %s (%d more connections in %g s)", who, why, count, QUIET_S)
            count_from_now(who, why)

    return refused


def peer_of(sock: socket.socket) -> tuple[Peer, int | None]:
    """The other end, with its address for a user; and the uid of a process of this host, which is known by that.

    A process of this host whose uid is not known has a loopback address for a user, wherever it connected to.

    Raises:
        OSError: the connection is already gone.
    """
    address, port = address_of(sock.getpeername())
    owner = owner_of(sock)
    is_here = owner is None and address == address_of(sock.getsockname())[0]
    return Peer(address, port, LOOPBACK if is_here else address), owner.uid if owner else None


def address_at(sock: socket.socket) -> str:
    """Set a new connection's options. Returns its client's address; "": the client has left, and it is closed."""
    try:
        set_options(sock)
        return address_of(sock.getpeername())[0]
    except OSError:  # it left while it waited in the queue
        sock.close()
        return ""


def bind(address: str, port: int, hint: str = ADDRESS_HINT) -> socket.socket:
    """A socket that listens on a TCP port; 0 lets the kernel choose. `hint`: for an address that cannot be bound.

    Raises:
        HostError: another program listens there, or the address cannot be bound.
    """
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise HostError(f"cannot listen on {address}: {error.strerror or error}", hint=hint) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # "::" serves IPv4 clients too
        listener.bind(name)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise HostError(
                f"port {port} on {address} is taken",
                Code.PORT_TAKEN,
                hint=f"`ss -ltnp 'sport = :{port}'` names the program; a stock rpc_tracker or a second farm?",
            ) from error
        raise HostError(f"cannot listen on {address} port {port}: {error.strerror}", hint=hint) from error
    return listener


class DescriptorReserve:
    """One descriptor kept so that a process without any can still turn a client away instead of leaving it hanging."""

    def __init__(self) -> None:
        self._fd: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def shed(self, listener: socket.socket) -> bool:
        """Accept one connection with the reserve and close it at once. False: none waits, or the reserve is lost."""
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


class Acceptor:
    """One listening socket. `accepted` gets each connection, blocking as accept() made it, and owns it."""

    def __init__(self, accepted: Callable[[socket.socket], None]) -> None:
        self._accepted = accepted
        self._socket: socket.socket | None = None
        self._reserve: DescriptorReserve | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_PAUSE_S
        self._exhausted_since: float | None = None
        self._held = False

    @property
    def port(self) -> int:
        """The bound port; 0 before `take`."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])

    def take(self, listener: socket.socket) -> None:
        """Accept from a socket that listens already; it is ours from now on. Must be called on the loop."""
        self._loop = asyncio.get_running_loop()
        self._reserve = DescriptorReserve()
        listener.setblocking(False)
        self._socket = listener
        self._loop.add_reader(listener, self._accept)

    def stop(self) -> None:
        """Stop listening. Accepted connections are not touched."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._reserve is not None:
            self._reserve.close()
            self._reserve = None

    def hold(self) -> None:
        """Accept no connection until `release`: new connections wait in the kernel's queue."""
        if not self._held and self._socket is not None:
            self._held = True
            self._loop.remove_reader(self._socket)

    def release(self) -> None:
        """End `hold`."""
        if self._held and self._socket is not None:
            self._held = False
            if self._resume is None:
                self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        taken = left = 0
        while taken < ACCEPTS_PER_WAKE and left < LEFT_PER_WAKE:
            if self._socket is None or self._held:
                return
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(error)
                    return
                # Lost while it queued (ECONNABORTED and the network errors of accept(2)): the next one.
                log.debug("a queued connection was lost: %s", error)
                left += 1
                continue
            self._recovered()
            if _has_left(connection):
                connection.close()
                left += 1
            else:
                self._accepted(connection)
                taken += 1
        if self._socket is not None and not self._held:
            self._loop.remove_reader(self._socket)
            self._resume = self._loop.call_later(REST_S, self._resume_now)

    def _pause(self, error: OSError) -> None:
        """Stop looking for a while: the socket stays readable, and a loop that kept looking would spin."""
        assert self._socket is not None
        assert self._reserve is not None
        now = self._loop.time()
        if self._exhausted_since is None:
            self._exhausted_since = now
            log.error("no connection can be accepted: %s; trying again until one can", error.strerror)
        elif now - self._exhausted_since >= SHED_AFTER_S:
            while self._reserve.shed(self._socket):
                pass
        self._loop.remove_reader(self._socket)
        self._resume = self._loop.call_later(self._pause_s, self._resume_now)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def _resume_now(self) -> None:
        self._resume = None
        if self._socket is not None and not self._held:
            self._loop.add_reader(self._socket, self._accept)

    def _recovered(self) -> None:
        if self._exhausted_since is not None:
            log.warning("connections are accepted again after %.1f s", self._loop.time() - self._exhausted_since)
            self._exhausted_since = None
            self._pause_s = FIRST_PAUSE_S
            assert self._reserve is not None
            self._reserve.restore()


def _has_left(connection: socket.socket) -> bool:
    """Whether a client has ended a connection on which it sent nothing: it costs no more than this look."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Listener:
    """One listening port, and its connections until they are known."""

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        tracker: Takes,
        session: Takes,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`tracker` and `session` get the connections that begin like one; they call back when one has ended.

        `on_problem` gets `problem` whenever it changes.
        """
        self._limits = limits
        self._tracker = tracker
        self._session = session
        self._acceptor = Acceptor(self._accepted)
        self._names = UserNames()
        self._nameless: dict[int, list[_Sniffer]] = {}  # by uid, while its name is asked for
        self._naming: set[asyncio.Task[None]] = set()
        self._sniffers: set[_Sniffer] = set()
        self._admission = ClientLimiter(user_limiter(limits.connections))  # connections that have not ended
        self._on_problem = on_problem
        self._over_limit: dict[str, None] = {}  # users who asked for more connections than the limit of one
        self._log_refused = refusal_log()

    @property
    def port(self) -> int:
        """The port clients connect to; 0 before it listens."""
        return self._acceptor.port

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return self._admission.limiter.taken

    @property
    def problem(self) -> str:
        """The users whose connections are closed because they have too many; "" while there are none."""
        if not self._over_limit:
            return ""
        users = ", ".join([*self._over_limit][:MAX_NAMED]) + (
            " and others" if len(self._over_limit) > MAX_NAMED else ""
        )
        return f"{users}: {self._too_many}; further ones are closed"

    @property
    def _too_many(self) -> str:
        return f"more than {self._admission.limiter.per_key} connections at once to the TVM port"

    def take(self, listener: socket.socket) -> None:
        """Accept from a socket that listens already (`bind`)."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Half of them, because a session needs a second one for its phone.
        affordable = max(MIN_CONNECTIONS, (files - RESERVED_FILES) // 2)
        self._admission = ClientLimiter(user_limiter(min(self._limits.connections, affordable)))
        self._acceptor.take(listener)

    def stop(self) -> None:
        """Stop listening, and close the connections that are of no known kind yet."""
        self._acceptor.stop()
        for task in tuple(self._naming):
            task.cancel()
        self._nameless.clear()
        for sniffer in tuple(self._sniffers):
            sniffer.close()

    def _accepted(self, sock: socket.socket) -> None:
        try:
            set_options(sock)
            peer, uid = peer_of(sock)
        except OSError:  # it left while it waited in the queue
            sock.close()
            return
        name = peer.user if uid is None else None if uid in self._nameless else self._names.known(uid)
        sniffer = _Sniffer(sock, peer, self._sniffed)
        sniffer.place = self._admission.count(name or f"uid {uid}", sniffer.cut)
        self._sniffers.add(sniffer)
        if name is not None:
            self._enter(sniffer, name)
        elif not self._admission.make_room(sniffer.place):
            self._refuse(sniffer)
        elif uid is not None:
            self._wait(sniffer, uid)

    def _wait(self, sniffer: _Sniffer, uid: int) -> None:
        """Until the user's name is known; then in the order in which they came."""
        if uid not in self._nameless:
            self._nameless[uid] = []
            task = asyncio.create_task(self._name(uid), name=f"name of uid {uid}")
            self._naming.add(task)
            task.add_done_callback(self._naming.discard)
        self._nameless[uid].append(sniffer)

    async def _name(self, uid: int) -> None:
        name = await self._names(uid)
        for sniffer in self._nameless.pop(uid):
            if not sniffer.place.over:
                self._admission.rename(sniffer.place, name)
                self._enter(sniffer, name)

    def _enter(self, sniffer: _Sniffer, user: str) -> None:
        if not self._admission.make_room(sniffer.place):
            if not self._admission.limiter.key_fits(user, 0):
                self._refuse(sniffer)
                return
            self._admission.mark_silent(sniffer.place)  # the last one: further clients wait in the kernel's queue
            self._acceptor.hold()
        sniffer.begin(user, self._limits.handshake_s)

    def _refuse(self, sniffer: _Sniffer) -> None:
        user = sniffer.place.key
        sniffer.close()
        self._log_refused(user, self._too_many)
        if user not in self._over_limit and not self._admission.limiter.key_fits(user):
            self._over_limit[user] = None
            self._on_problem(self.problem)

    def _sniffed(self, sniffer: _Sniffer, first: bytes) -> None:
        """A connection's first bytes are known (fewer than four: it gave up)."""
        self._sniffers.discard(sniffer)
        closed = partial(self._closed, sniffer.place)
        magic = _MAGIC.unpack_from(first)[0] if len(first) >= _MAGIC.size else None
        match magic:
            case _ if magic == TRACKER_MAGIC:
                self._begin(sniffer, self._tracker, first, closed)
            case _ if magic == SESSION_MAGIC:
                self._begin(sniffer, self._session, first, closed)
            case _:
                if magic is not None:
                    log.debug("%s began with %s", sniffer.peer, first[:8].hex(" "))
                    self._log_refused(sniffer.peer.user, "its connection is no TVM client's")
                sniffer.sock.close()
                closed()

    def _begin(self, sniffer: _Sniffer, takes: Takes, first: bytes, closed: Callable[[], None]) -> None:
        self._admission.mark_active(sniffer.place)
        if self._admission.full:
            self._acceptor.hold()
        takes(sniffer.sock, sniffer.peer, first, closed)

    def _closed(self, place: ClientPlace[str]) -> None:
        self._admission.leave(place)
        if place.key in self._over_limit and self._admission.limiter.key_fits(place.key):
            del self._over_limit[place.key]
            self._on_problem(self.problem)
        if not self._admission.full:
            self._acceptor.release()


class _Sniffer:
    """Reads a connection until its first int32 is there, for a limited time."""

    def __init__(self, sock: socket.socket, peer: Peer, sniffed: Callable[[_Sniffer, bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.sock = sock
        self.peer = peer
        self.place: ClientPlace[str]
        self._first = b""
        self._sniffed = sniffed
        self._timer: asyncio.TimerHandle | None = None  # None before `begin`

    def begin(self, user: str, limit_s: float) -> None:
        """Begin to read; the connection belongs to `user`."""
        self.peer = replace(self.peer, user=user)
        self._timer = self._loop.call_later(limit_s, self.close)
        self._loop.add_reader(self.sock.fileno(), self._readable)

    def close(self) -> None:
        """Give the connection up."""
        self._end(b"")

    def cut(self) -> bool:
        """Give the connection up, unless its first bytes are there by now."""
        if self._timer is not None:
            self._readable()
        if self.sock.fileno() >= 0 and len(self._first) < _MAGIC.size:
            self.close()
        return self.place.over

    def _readable(self) -> None:
        try:
            data = self.sock.recv(FIRST_BYTES)
            if data:
                quick_ack(self.sock)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not data:
            self.close()
            return
        self._first += data
        if len(self._first) >= _MAGIC.size:
            self._end(self._first)

    def _end(self, first: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._loop.remove_reader(self.sock.fileno())
        self._sniffed(self, first)
