"""The TVM door: tracker and gate on one TCP port, told apart by a connection's first int32 (DESIGN D1)."""

from __future__ import annotations

import ipaddress
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.core.errors import UserError
from farm.core.sessions import Survivor
from farm.tracker.connection import Limits
from farm.tracker.entrance import Entrance
from farm.tracker.external import Admission, ExternalPolicy, Network
from farm.tracker.gate import Gate, GateLimits, Route
from farm.tracker.tracker import Tracker, TrackerBackend

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


class Door(ABC):
    """What the rest of the farm sees of the TVM door: its tracker, and where it is."""

    def __init__(self, backend: TrackerBackend, policy: DoorPolicy | None = None) -> None:
        """Prepare.

        Raises:
            AdvertiseError: `policy.advertise` cannot be read.
        """
        self._backend = backend
        self._policy = policy or DoorPolicy()
        self._advertise = tuple(_advertised(network, target) for network, target in self._policy.advertise.items())

    @property
    @abstractmethod
    def port(self) -> int:
        """The port clients connect to."""

    @property
    @abstractmethod
    def host(self) -> str:
        """The address that the port is bound to."""

    @property
    def pid(self) -> int:
        """The process that holds the port; 0 while nobody does."""
        return os.getpid()

    @property
    @abstractmethod
    def sessions(self) -> int:
        """Connections at the gate."""

    @property
    @abstractmethod
    def heard_at(self) -> float:
        """When a phone said something last in a session that is open, in the loop's time; 0 never."""

    @property
    def problem(self) -> str:
        """Why nobody, or some user, can connect no more now; "" when everybody can."""
        return ""

    @property
    def survivors(self) -> tuple[Survivor, ...]:
        """Sessions that outlived an earlier daemon, until `begin`."""
        return ()

    def begin(self) -> None:  # noqa: B027 - nothing to do where nothing is left
        """What an earlier daemon left is taken up: let everybody in."""

    def _make_tracker(self) -> Tracker:
        self.tracker = Tracker(
            self._backend,
            advertised=self.advertised,
            policy=self._policy.external,
            limits=self._policy.limits,
        )
        return self.tracker

    def use(self, policy: DoorPolicy) -> None:
        """Tell, admit and wait by this from now on; open sessions keep what they began with.

        Raises:
            AdvertiseError: `policy.advertise` cannot be read; nothing has changed.
        """
        self._advertise = tuple(_advertised(network, target) for network, target in policy.advertise.items())
        self._policy = policy
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


class TvmDoor(Door):
    """One listening port for unmodified TVM clients, and for servers that register themselves."""

    def __init__(
        self, address: str, port: int, backend: TrackerBackend, route: Route, policy: DoorPolicy | None = None
    ) -> None:
        """Prepare; port 0 lets the kernel choose.

        Raises:
            AdvertiseError: `policy.advertise` cannot be read.
        """
        super().__init__(backend, policy)
        self._address = address
        self._wanted_port = port
        self._route = route
        self.entrance: Entrance | None = None

    @property
    def host(self) -> str:
        """The address that the port is bound to."""
        return self._address

    @property
    def port(self) -> int:
        """The port clients connect to."""
        return 0 if self.entrance is None else self.entrance.port

    @property
    def sessions(self) -> int:
        """Connections at the gate."""
        return len(self.gate)

    @property
    def problem(self) -> str:
        """See `Door.problem`."""
        return "" if self.entrance is None else self.entrance.problem

    @property
    def heard_at(self) -> float:
        """When a phone said something last in a session that is open, in the loop's time; 0 never."""
        return self.gate.heard_at

    async def start(self) -> None:
        """Listen.

        Raises:
            PortTakenError: somebody else listens there.
            HostError: the address cannot be bound.
        """
        self.gate = Gate(self._route, self._policy.gate)
        tracker = self._make_tracker()
        self.entrance = Entrance(self._policy.limits, tracker=tracker.serve, session=self.gate.serve)
        self.entrance.start(self._address, self._wanted_port)
        log.info("TVM clients are served on %s port %d", self._address, self.port)

    async def stop(self) -> None:
        """Stop listening, withdraw what waits and cut every session."""
        if self.entrance is not None:
            self.entrance.stop()
        await self.tracker.close()
        await self.gate.close()

    def use(self, policy: DoorPolicy) -> None:
        """See `Door.use`."""
        super().use(policy)
        self.gate.limits = policy.gate


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
