"""The TVM door: tracker and gate on one TCP port, told apart by a connection's first int32 (DESIGN D1)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.core.errors import UserError
from farm.core.sessions import Peer
from farm.tracker.connection import Limits
from farm.tracker.external import ExternalPolicy, Network
from farm.tracker.gate import Gate, GateLimits, Route
from farm.tracker.handshake import SESSION_MAGIC
from farm.tracker.listener import Listener
from farm.tracker.sockets import identify_peer, quick_ack, tune
from farm.tracker.tracker import Tracker, TrackerBackend
from farm.tracker.wire import TRACKER_MAGIC

_MAGIC = struct.Struct("<i")
RESERVED_FILES = 256  # descriptors that the door leaves to the rest of the daemon: adb streams, the store, shells
FEWEST_CONNECTIONS = 16  # even where that leaves nothing
FIRST_BYTES = 4096  # what the first recv may take; whatever it holds goes on to the tracker or the gate

log = logging.getLogger(__name__)


class AdvertiseError(UserError):
    """An entry of [tvm] advertise cannot be read."""

    code = "config"


@dataclass(frozen=True, slots=True)
class DoorPolicy:
    """Everything about the door that an operator may set."""

    advertise: Mapping[str, str] = field(default_factory=dict)  # client's CIDR -> "address" or "address:port"
    external: ExternalPolicy = field(default_factory=ExternalPolicy)
    limits: Limits = field(default_factory=Limits)
    gate: GateLimits = field(default_factory=GateLimits)


class TvmDoor:
    """One listening port for unmodified TVM clients, and for servers that register themselves."""

    def __init__(
        self, address: str, port: int, backend: TrackerBackend, route: Route, policy: DoorPolicy | None = None
    ) -> None:
        """Prepare; port 0 lets the kernel choose.

        Raises:
            AdvertiseError: `policy.advertise` cannot be read.
        """
        self._address = address
        self._wanted_port = port
        self._backend = backend
        self._policy = policy or DoorPolicy()
        self._advertise = tuple(_advertised(network, target) for network, target in self._policy.advertise.items())
        self._route = route
        self._listener = Listener(self._accepted)
        self._sniffers: set[_Sniffer] = set()
        self._open = 0
        self._most = self._policy.limits.connections

    @property
    def port(self) -> int:
        """The port clients connect to."""
        return self._listener.port

    @property
    def sessions(self) -> int:
        """Connections at the gate."""
        return len(self.gate)

    async def start(self) -> None:
        """Listen.

        Raises:
            PortTakenError: somebody else listens there.
            HostError: the address cannot be bound.
        """
        self.gate = Gate(self._route, self._policy.gate)
        self.tracker = Tracker(
            self._backend,
            advertised=self.advertised,
            policy=self._policy.external,
            limits=self._policy.limits,
        )
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Half of them, because a session needs a second one for its phone.
        affordable = max(FEWEST_CONNECTIONS, (files - RESERVED_FILES) // 2)
        self._most = min(self._policy.limits.connections, affordable)
        self._listener.start(self._address, self._wanted_port)
        log.info("TVM clients are served on %s port %d", self._address, self.port)

    async def stop(self) -> None:
        """Stop listening, withdraw what waits and cut every session."""
        self._listener.stop()
        for sniffer in tuple(self._sniffers):
            sniffer.close()
        await self.tracker.close()
        await self.gate.close()

    def advertised(self, peer: str, address: str, port: int) -> tuple[str, int]:
        """Where a client at `peer`, which reached us at `address` and `port`, is told to find the gate."""
        client = ipaddress.ip_address(peer)
        for network, target, target_port in self._advertise:
            if client in network:
                return target, target_port or port
        return address, port

    def summary(self) -> dict[str, Any]:
        """What a stock client on this host gets from SUMMARY: {"queue_info": ..., "server_info": ...}."""
        return self.tracker.summary("127.0.0.1", self.port)

    def _accepted(self, sock: socket.socket) -> None:
        try:
            tune(sock)
            peer = identify_peer(sock)
        except OSError:  # it left while it waited in the queue
            sock.close()
            return
        self._open += 1
        if self._open >= self._most:
            self._listener.hold()
        self._sniffers.add(_Sniffer(sock, peer, self._policy.limits.handshake_s, self._sniffed))

    def _sniffed(self, sniffer: _Sniffer, first: bytes) -> None:
        """A connection's first bytes are known (fewer than four: it gave up)."""
        self._sniffers.discard(sniffer)
        magic = _MAGIC.unpack_from(first)[0] if len(first) >= _MAGIC.size else None
        match magic:
            case _ if magic == TRACKER_MAGIC:
                self.tracker.serve(sniffer.sock, sniffer.peer, first, self._closed)
            case _ if magic == SESSION_MAGIC:
                self.gate.serve(sniffer.sock, sniffer.peer, first, self._closed)
            case _:
                if magic is not None:
                    log.info("%s is no TVM client: it began with %s", sniffer.peer, first[:8].hex(" "))
                sniffer.sock.close()
                self._closed()

    def _closed(self) -> None:
        self._open -= 1
        if self._open < self._most:
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


def _advertised(network: str, target: str) -> tuple[Network, str, int]:
    """Parse one entry of `advertise`; port 0 means our own."""
    host, port = target, 0
    if target.startswith("[") and "]" in target:
        host, _, rest = target[1:].partition("]")
        port_text = rest.removeprefix(":")
    elif target.count(":") == 1:
        host, _, port_text = target.partition(":")
    else:
        port_text = ""
    try:
        parsed = ipaddress.ip_network(network, strict=False)
        if port_text:
            port = int(port_text)
        if not host or not 0 <= port <= 65535:
            raise ValueError(target)
    except ValueError as error:
        raise AdvertiseError(
            f"[tvm] advertise: {network!r} = {target!r} is not CIDR = address or address:port",
            hint='for example "10.8.0.0/16" = "lab.example.org:9190"',
        ) from error
    return parsed, host, port
