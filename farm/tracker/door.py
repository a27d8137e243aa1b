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
from farm.tracker.external import Admission, ExternalPolicy, Network
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
        self._entrance: Entrance | None = None

    @property
    def port(self) -> int:
        """The port clients connect to."""
        return 0 if self._entrance is None else self._entrance.port

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
        self._entrance = Entrance(self._policy.limits, tracker=self.tracker.serve, session=self.gate.serve)
        self._entrance.start(self._address, self._wanted_port)
        log.info("TVM clients are served on %s port %d", self._address, self.port)

    async def stop(self) -> None:
        """Stop listening, withdraw what waits and cut every session."""
        if self._entrance is not None:
            self._entrance.stop()
        await self.tracker.close()
        await self.gate.close()

    def use(self, policy: DoorPolicy) -> None:
        """Tell, admit and wait by this from now on; open sessions keep what they began with.

        Raises:
            AdvertiseError: `policy.advertise` cannot be read; nothing has changed.
        """
        self._advertise = tuple(_advertised(network, target) for network, target in policy.advertise.items())
        self._policy = policy
        self.gate.limits = policy.gate
        self.tracker.admission = Admission(policy.external)

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
