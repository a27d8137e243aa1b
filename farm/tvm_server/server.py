"""The TVM server: tracker and gate on one TCP port, distinguished by a connection's first int32."""

from __future__ import annotations

import logging
import math
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.common.advertised import address_for, parse_advertised
from farm.config import ExternalConfig
from farm.model.sessions import OrphanedSession, Peer
from farm.tvm_server.connection import ConnectionLimits
from farm.tvm_server.external_rules import Admission
from farm.tvm_server.gate.gate import Gate, GateLimits, Route
from farm.tvm_server.listener import Listener
from farm.tvm_server.tracker import Tracker, TrackerBackend

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TvmServerPolicy:
    """Everything about the TVM server that an operator may set."""

    advertise: Mapping[str, str] = field(default_factory=dict)  # client's CIDR -> "address" or "address:port"
    external: ExternalConfig = field(default_factory=ExternalConfig)
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    gate: GateLimits = field(default_factory=GateLimits)


class TvmServer(ABC):
    """The TVM server as the rest of the farm sees it: its tracker, and where it listens."""

    def __init__(self, backend: TrackerBackend, policy: TvmServerPolicy | None = None) -> None:
        """Prepare.

        Raises:
            UserError: `policy.advertise` cannot be read.
        """
        self._backend = backend
        self._policy = policy or TvmServerPolicy()
        self._advertise = parse_advertised(self._policy.advertise, "[tvm] advertise")

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
        """The process that holds the port; 0 while none does."""
        return os.getpid()

    @property
    @abstractmethod
    def sessions(self) -> int:
        """Connections at the gate."""

    @property
    @abstractmethod
    def last_phone_byte_at(self) -> float:
        """When a phone last sent bytes in an open session, in the loop's time; 0 never."""

    @property
    def problem(self) -> str:
        """Why no client, or no client of some user, can connect now; "" when all can."""
        return ""

    @property
    def gone_at(self) -> float:
        """When no process held the port last, in the loop's time; -inf: it was always held."""
        return -math.inf

    @property
    def orphans(self) -> tuple[OrphanedSession, ...]:
        """Sessions that outlived an earlier daemon, until `begin`."""
        return ()

    @abstractmethod
    def serve_elsewhere(self, sock: socket.socket, peer: Peer, first: bytes) -> None:
        """Serve a client of another host over a connection that leads there; `first` was read already.

        Raises:
            HostError: the gate is not there; the connection is closed.
            OSError: no descriptor is left for it.
        """

    def begin(self) -> None:  # noqa: B027 - nothing to do where nothing is left
        """The sessions of an earlier daemon are adopted: accept clients."""

    def _make_tracker(self) -> Tracker:
        self.tracker = Tracker(
            self._backend,
            advertised=self.advertised,
            policy=self._policy.external,
            limits=self._policy.limits,
        )
        return self.tracker

    def use(self, policy: TvmServerPolicy) -> None:
        """Apply this policy from now on; open sessions keep the one that they began with.

        Raises:
            UserError: `policy.advertise` cannot be read; nothing has changed.
        """
        self._advertise = parse_advertised(policy.advertise, "[tvm] advertise")
        self._policy = policy
        self.tracker.admission = Admission(policy.external)

    def advertised(self, peer: str, address: str, port: int) -> tuple[str, int]:
        """Where a client at `peer`, which reached us at `address` and `port`, finds the gate."""
        target, target_port = address_for(peer, self._advertise) or (address, port)
        return target, target_port or port

    def summary(self) -> dict[str, Any]:
        """A stock client's answer to SUMMARY, on this host: {"queue_info": ..., "server_info": ...}."""
        return self.tracker.summary("127.0.0.1", self.port)


class LocalTvmServer(TvmServer):
    """One listening port for unmodified TVM clients, and for servers that register themselves."""

    def __init__(
        self, address: str, port: int, backend: TrackerBackend, route: Route, policy: TvmServerPolicy | None = None
    ) -> None:
        """Prepare; port 0 lets the kernel choose.

        Raises:
            UserError: `policy.advertise` cannot be read.
        """
        super().__init__(backend, policy)
        self._address = address
        self._wanted_port = port
        self._route = route
        self.listener: Listener | None = None

    @property
    def host(self) -> str:
        """The address that the port is bound to."""
        return self._address

    @property
    def port(self) -> int:
        """The port clients connect to."""
        return 0 if self.listener is None else self.listener.port

    @property
    def sessions(self) -> int:
        """Connections at the gate."""
        return len(self.gate)

    @property
    def problem(self) -> str:
        """See `TvmServer.problem`."""
        return "" if self.listener is None else self.listener.problem

    @property
    def last_phone_byte_at(self) -> float:
        """When a phone last sent bytes in an open session, in the loop's time; 0 never."""
        return self.gate.last_phone_byte_at

    async def start(self) -> None:
        """Listen.

        Raises:
            HostError: another program listens there, or the address cannot be bound.
        """
        self.gate = Gate(self._route, self._policy.gate)
        tracker = self._make_tracker()
        self.listener = Listener(self._policy.limits, tracker=tracker.serve, session=self.gate.serve)
        self.listener.start(self._address, self._wanted_port)
        log.info("TVM clients are served on %s port %d", self._address, self.port)

    def serve_elsewhere(self, sock: socket.socket, peer: Peer, first: bytes) -> None:
        """See `TvmServer.serve_elsewhere`."""
        self.gate.serve(sock, peer, first, lambda: None)

    async def stop(self) -> None:
        """Stop listening, withdraw waiting requests and cut every session."""
        if self.listener is not None:
            self.listener.stop()
        await self.tracker.close()
        await self.gate.close()

    def use(self, policy: TvmServerPolicy) -> None:
        """See `TvmServer.use`."""
        super().use(policy)
        self.gate.limits = policy.gate
