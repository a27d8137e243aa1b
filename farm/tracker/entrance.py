"""The way in: accepts connections and tells the tracker's from the gate's by their first int32 (DESIGN D1)."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from collections.abc import Callable
from functools import partial

from farm.core.sessions import Peer
from farm.tracker.connection import Limits
from farm.tracker.handshake import SESSION_MAGIC
from farm.tracker.listener import Listener, bind
from farm.tracker.places import Places
from farm.tracker.sockets import OtherEnd, UserNames, other_end, quick_ack, tune
from farm.tracker.wire import TRACKER_MAGIC

_MAGIC = struct.Struct("<i")
RESERVED_FILES = 256  # descriptors that the door leaves to the rest of the daemon: adb streams, the store, shells
FEWEST_CONNECTIONS = 16  # even where that leaves nothing
MOST_NAMED = 3  # users in a line for people
FIRST_BYTES = 4096  # what the first recv may take; whatever it holds goes on to the tracker or the gate

# Takes over a connection: the socket, who is at its other end, what was read of it, and whom to tell of its end.
Takes = Callable[[socket.socket, Peer, bytes, Callable[[], None]], None]

log = logging.getLogger(__name__)


class Entrance:
    """One listening port, and its connections until they are known."""

    def __init__(
        self, limits: Limits, *, tracker: Takes, session: Takes, told: Callable[[str], None] = lambda _: None
    ) -> None:
        """`tracker` and `session` get what begins like one; they call back when it has ended.

        `told` hears `problem` whenever it changes.
        """
        self._limits = limits
        self._tracker = tracker
        self._session = session
        self._listener = Listener(self._accepted)
        self._names = UserNames()
        self._nameless: dict[int, list[tuple[socket.socket, OtherEnd]]] = {}  # by uid, while its name is asked for
        self._naming: set[asyncio.Task[None]] = set()
        self._sniffers: set[_Sniffer] = set()
        self._places = Places(limits.connections)  # connections that have not ended
        self._told = told
        self._greedy: dict[str, None] = {}  # users who asked for more than their share

    @property
    def port(self) -> int:
        """The port clients connect to; 0 before it listens."""
        return self._listener.port

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return len(self._places)

    @property
    def problem(self) -> str:
        """Who is sent away because of too many connections; "" when nobody is."""
        if not self._greedy:
            return ""
        users = ", ".join([*self._greedy][:MOST_NAMED]) + (" and others" if len(self._greedy) > MOST_NAMED else "")
        return f"{users}: more than {self._places.share} connections at once to the TVM port; further ones are closed"

    def start(self, address: str, port: int) -> None:
        """Listen; port 0 lets the kernel choose.

        Raises:
            PortTakenError: somebody else listens there.
            HostError: the address cannot be bound.
        """
        self.take(bind(address, port))

    def take(self, listener: socket.socket) -> None:
        """Accept from a socket that listens already."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Half of them, because a session needs a second one for its phone.
        affordable = max(FEWEST_CONNECTIONS, (files - RESERVED_FILES) // 2)
        self._places = Places(min(self._limits.connections, affordable))
        self._listener.take(listener)

    def stop(self) -> None:
        """Stop listening, and give up who has not said what it is."""
        self._listener.stop()
        for task in tuple(self._naming):
            task.cancel()
        for waiting in self._nameless.values():
            for sock, _ in waiting:
                sock.close()
        self._nameless.clear()
        for sniffer in tuple(self._sniffers):
            sniffer.close()

    def _accepted(self, sock: socket.socket) -> None:
        try:
            tune(sock)
            end = other_end(sock)
        except OSError:  # it left while it waited in the queue
            sock.close()
            return
        uid = end.uid
        name = end.address if uid is None else self._names.known(uid)
        if name is not None and uid not in self._nameless:
            self._enter(sock, Peer(end.address, end.port, name))
        elif uid is not None:
            self._wait(sock, end, uid)

    def _wait(self, sock: socket.socket, end: OtherEnd, uid: int) -> None:
        """Until the user's name is known; then in the order in which they came."""
        if uid not in self._nameless:
            self._nameless[uid] = []
            task = asyncio.create_task(self._name(uid), name=f"name of uid {uid}")
            self._naming.add(task)
            task.add_done_callback(self._naming.discard)
        if len(self._nameless[uid]) < self._places.share:
            self._nameless[uid].append((sock, end))
        else:
            sock.close()

    async def _name(self, uid: int) -> None:
        name = await self._names(uid)
        for sock, end in self._nameless.pop(uid):
            self._enter(sock, Peer(end.address, end.port, name))

    def _enter(self, sock: socket.socket, peer: Peer) -> None:
        if self._places.used_up(peer.user):
            sock.close()
            if peer.user not in self._greedy:
                self._greedy[peer.user] = None
                log.warning("%s", self.problem)
                self._told(self.problem)
            return
        self._places.take(peer.user)
        if self._places.full:
            self._listener.hold()
        self._sniffers.add(_Sniffer(sock, peer, self._limits.handshake_s, self._sniffed))

    def _sniffed(self, sniffer: _Sniffer, first: bytes) -> None:
        """A connection's first bytes are known (fewer than four: it gave up)."""
        self._sniffers.discard(sniffer)
        closed = partial(self._closed, sniffer.peer.user)
        magic = _MAGIC.unpack_from(first)[0] if len(first) >= _MAGIC.size else None
        match magic:
            case _ if magic == TRACKER_MAGIC:
                self._tracker(sniffer.sock, sniffer.peer, first, closed)
            case _ if magic == SESSION_MAGIC:
                self._session(sniffer.sock, sniffer.peer, first, closed)
            case _:
                if magic is not None:
                    log.info("%s is no TVM client: it began with %s", sniffer.peer, first[:8].hex(" "))
                sniffer.sock.close()
                closed()

    def _closed(self, user: str) -> None:
        self._places.leave(user)
        if user in self._greedy and not self._places.used_up(user):
            del self._greedy[user]
            self._told(self.problem)
        if not self._places.full:
            self._listener.release()


class _Sniffer:
    """Reads a connection until its first int32 is there, for a limited time."""

    def __init__(
        self, sock: socket.socket, peer: Peer, limit_s: float, sniffed: Callable[[_Sniffer, bytes], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.sock = sock
        self.peer = peer
        self._first = b""
        self._sniffed = sniffed
        self._timer = self._loop.call_later(limit_s, self.close)
        self._loop.add_reader(sock, self._readable)

    def close(self) -> None:
        """Give the connection up."""
        self._end(b"")

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
        self._timer.cancel()
        self._loop.remove_reader(self.sock)
        self._sniffed(self, first)
