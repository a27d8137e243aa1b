"""The tracker half of the TVM server: every message of TVM's tracker protocol over one asyncio loop.

Requests go to a `TrackerBackend` (the farm's own phones) and, where the policy allows, to servers that registered
themselves. A connection is served by callbacks on its raw socket: one recv, one answer in one send, the ACK at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from farm.common.errors import FarmError, NotAllowedError, ProtocolError, UserError
from farm.common.limiter import Limiter
from farm.common.peers import address_of
from farm.config import ExternalConfig
from farm.model.sessions import FleetSummary, Peer
from farm.tvm_server import wire
from farm.tvm_server.connection import MESSAGES_PER_TURN, ClientConnection, ConnectionLimits
from farm.tvm_server.external_rules import Admission, Offer, OfferRegistry, Registration, RegistrationRefused
from farm.tvm_server.listener import refusal_log
from farm.tvm_server.wire import TrackerCode

log = logging.getLogger(__name__)


class TrackerBackend(Protocol):
    """The farm's own phones, as the tracker sees them (farm.leasing)."""

    async def request(self, key: str, user: str, priority: int, peer: Peer) -> str:
        """Wait for a phone that answers to `key` and return a match key for the gate. Cancelled when the client goes.

        Raises:
            UserError: no phone can ever answer to `key`.
        """

    def admit(self, peer: Peer) -> Awaitable[None] | None:
        """An awaitable that checks whether a client may use the port; None: it may.

        Raises:
            NotAllowedError: when awaited: it may not.
        """

    def direct_address(self, match_key: str, peer: Peer) -> tuple[str, int] | None:
        """The TVM port of another host where this client opens its session; None: here."""

    def serves(self, key: str) -> bool:
        """Whether `key` is an alias of a farm device."""

    def summary(self) -> FleetSummary:
        """Rows of the farm's own keys and devices."""

    def refresh(self) -> asyncio.Future[Any] | None:
        """Done when `summary` is at most a second old; None: it is."""


@dataclass(slots=True, eq=False)
class WaitingClient:
    """One unanswered REQUEST."""

    connection: TrackerConnection
    message: wire.TrackerRequest
    order: tuple[int, int]  # priority (negated), arrival
    task: asyncio.Task[None] | None = None  # asks the backend; None once the backend has refused
    queued: bool = False  # waits for external servers too

    def __lt__(self, other: WaitingClient) -> bool:
        return self.order < other.order


class Tracker:
    """All tracker connections of one TVM server."""

    def __init__(
        self,
        backend: TrackerBackend,
        *,
        advertised: Callable[[str, str, int], tuple[str, int]],
        policy: ExternalConfig,
        limits: ConnectionLimits,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.backend = backend
        self.limits = limits
        self.admission = Admission(policy)
        self.registry = OfferRegistry(self._loop.time, limits.silent_s)
        self._advertised = advertised
        self.held: Limiter[ClientConnection] = Limiter(limits.held_bytes)
        self._connections: set[TrackerConnection] = set()
        # Who waits for a summary, by where they find the gate.
        self._askers: dict[tuple[str, int], list[TrackerConnection]] = {}
        self._queues: dict[str, list[WaitingClient]] = {}  # waiting for external servers, by key, in order
        self._refused_by_backend: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        # Unanswered REQUESTs, by connection.
        self._requests: Limiter[ClientConnection] = Limiter(limits.waiting, limits.waiting_per_connection)
        self._arrivals = 0
        self._log_refused = refusal_log()

    @property
    def waiting(self) -> int:
        """Unanswered REQUESTs of all connections."""
        return self._requests.taken

    def serve(self, sock: socket.socket, peer: Peer, first: bytes, closed: Callable[[], None]) -> None:
        """Take over a connection whose first bytes are `first`; `closed` is called when it has ended."""
        connection = TrackerConnection(self, sock, peer, closed)
        self._connections.add(connection)
        if (admission := self.backend.admit(peer)) is None:
            connection.start(first)
        else:
            task = self._loop.create_task(self._admit(admission, connection, first), name=f"admission of {peer.user}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _admit(self, admission: Awaitable[None], connection: TrackerConnection, first: bytes) -> None:
        try:
            await admission
        except NotAllowedError as error:
            self._log_refused(connection.peer.user, error.message)
            connection.refusal = str(error)
        if not connection.closed:
            connection.start(first)

    async def close(self) -> None:
        """End every connection and every waiting request."""
        for connection in tuple(self._connections):
            connection.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self, connection: TrackerConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)

    def address_for(self, connection: TrackerConnection) -> tuple[str, int]:
        """Where this client finds the gate: where it found us, unless configured otherwise."""
        address, port = connection.local
        return self._advertised(connection.peer.address, address, port)

    def summary(self, address: str, port: int) -> dict[str, object]:
        """The answer to SUMMARY, with the farm's phones at `address`, `port`."""
        own = self.backend.summary()
        free, pending = self.registry.free(), Counter(self._refused_by_backend)
        for row in own.keys:
            free[row.key] += row.free
            pending[row.key] += row.pending
        servers: list[dict[str, object]] = [
            {"key": f"server:{row.key}", "addr": [address, port], "device": row.device} for row in own.servers
        ]
        external = [
            {"key": f"server:{key}", "addr": [host, server_port]} for key, host, server_port in self.registry.servers()
        ]
        keys = {row.key for row in own.keys} | {key for key, _, _ in self.registry.servers()} | set(free) | set(pending)
        queues = {key: {"free": free[key], "pending": pending[key]} for key in sorted(keys)}
        return {"queue_info": queues, "server_info": servers + external}

    def ask_summary(self, connection: TrackerConnection) -> None:
        """Answer in the next turn of the loop.

        A summary takes time that grows with the farm. So it is made once a turn at most, for all who have asked
        by then, and is never older than the question.
        """
        if not self._askers:
            if (fresh := self.backend.refresh()) is None:
                self._loop.call_soon(self._answer_summaries)
            else:
                fresh.add_done_callback(lambda _: self._answer_summaries())
        self._askers.setdefault(self.address_for(connection), []).append(connection)

    def _answer_summaries(self) -> None:
        place, connections = next(iter(self._askers.items()))
        del self._askers[place]
        if self._askers:
            self._loop.call_soon(self._answer_summaries)
        encoded = wire.encode_json([TrackerCode.SUCCESS, self.summary(*place)])
        for connection in connections:
            connection.answer_summary(encoded)

    # --- requests -------------------------------------------------------------------------------------------------

    def request(self, connection: TrackerConnection, message: wire.TrackerRequest) -> None:
        """Answer now, or remember the client until there is an answer."""
        external = wire.is_key(message.key) and self.admission.may_serve(
            message.key, farm_key=self.backend.serves(message.key)
        )
        if external and not self._queues.get(message.key) and (offer := self.registry.take(message.key)) is not None:
            connection.answer_offer(offer)
            return
        if not self._requests.fits(connection):
            connection.answer([TrackerCode.FAIL, "too many requests are waiting"])
            return
        self._arrivals += 1
        waiting = WaitingClient(connection, message, (-message.priority, self._arrivals))
        connection.waiting.add(waiting)
        self._requests.take(connection)
        if external:
            waiting.queued = True
            insort(self._queues.setdefault(message.key, []), waiting)
        task = self._loop.create_task(self._ask_backend(waiting), name=f"request {message.key}")
        waiting.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def withdraw(self, waiting: WaitingClient) -> None:
        """The client is gone."""
        if waiting.task is not None:
            waiting.task.cancel()
        self._settle(waiting)

    def hand_out(self, key: str) -> None:
        """A server has offered itself: give it to the first client that waits."""
        queue = self._queues.get(key, [])
        passed = 0
        while passed < len(queue):
            waiting = queue[passed]
            if waiting.task is not None and waiting.task.done():
                passed += 1  # a farm phone was granted in this very turn of the loop
                continue
            taken = self.registry.take(key)
            if taken is None:
                return
            if waiting.task is not None:
                waiting.task.cancel()
            self._settle(waiting)
            waiting.connection.answer_offer(taken)
            passed = 0  # an answer may close connections, whose requests then leave the queue

    async def _ask_backend(self, waiting: WaitingClient) -> None:
        connection, message = waiting.connection, waiting.message
        user = connection.peer.user or connection.peer.address
        try:
            match_key = await self.backend.request(message.key, user, message.priority, connection.peer)
        except UserError as error:
            if not waiting.queued:
                self._settle(waiting)
                connection.answer([TrackerCode.FAIL, str(error)])
                return
            # No farm phone will ever answer to this key, but a server of that name may register.
            waiting.task = None
            self._refused_by_backend[message.key] += 1
            return
        except FarmError as error:
            self._settle(waiting)
            connection.answer([TrackerCode.FAIL, str(error)])
            return
        except Exception:
            self._settle(waiting)
            connection.answer([TrackerCode.FAIL, "the farm failed; its log says why"])
            log.exception("a request for %r failed", message.key)
            return
        self._settle(waiting)
        address, port = self.backend.direct_address(match_key, connection.peer) or self.address_for(connection)
        connection.answer([TrackerCode.SUCCESS, [address, port, match_key]])

    def _settle(self, waiting: WaitingClient) -> None:
        """The request waits no longer, for whatever reason. Harmless when repeated."""
        if waiting not in waiting.connection.waiting:
            return
        waiting.connection.waiting.discard(waiting)
        self._requests.give_back(waiting.connection)
        key = waiting.message.key
        if waiting.task is None:
            self._refused_by_backend[key] -= 1
            if not self._refused_by_backend[key]:
                del self._refused_by_backend[key]
        if waiting.queued:
            queue = self._queues[key]
            del queue[bisect_left(queue, waiting)]
            if not queue:
                del self._queues[key]


class TrackerConnection(ClientConnection):
    """One tracker client or self-registering server."""

    def __init__(self, tracker: Tracker, sock: socket.socket, peer: Peer, closed: Callable[[], None]) -> None:
        super().__init__(sock, peer, tracker.limits, tracker.held, closed)
        self._tracker = tracker
        self._parser = wire.TrackerParser()
        self._invalid = 0
        self._asked_summary = False
        self._registration: Registration | None = None
        self.local = address_of(sock.getsockname())
        self.waiting: set[WaitingClient] = set()
        self.refusal = ""  # why no message of this client is carried out; "": they are

    def answer(self, value: object) -> None:
        """Send one JSON reply in one write."""
        self.send(wire.encode_json(value))

    def answer_offer(self, offer: Offer) -> None:
        """Hand out an external server."""
        self.answer([TrackerCode.SUCCESS, [offer.address, offer.port, offer.match_key]])

    def answer_summary(self, encoded: bytes) -> None:
        """The summary that was asked for; the messages after it have their turn."""
        self._asked_summary = False
        self.send(encoded)
        self.proceed()

    @property
    def unhandled_bytes(self) -> int:
        """The bytes received after the last message."""
        return self._parser.held_bytes

    @property
    def full(self) -> bool:
        """Whether no further message should be handled now: answers keep the order of their questions."""
        return self._asked_summary or super().full

    @property
    def may_idle(self) -> bool:
        """Waiting clients and registered servers may be silent forever; TCP keepalive detects that they are gone."""
        return bool(self.waiting) or self._registration is not None

    def received(self, data: memoryview) -> int:
        """Handle the received messages, as far as there is room for answers; these leave in one write."""
        messages = 0
        self._parser.receive_data(data)
        if self._registration is not None:
            for key in self._tracker.registry.renew(self._registration):
                self._tracker.hand_out(key)
        with self.gathered():
            try:
                while (
                    messages < MESSAGES_PER_TURN and not self.full and (event := self._parser.next_event()) is not None
                ):
                    messages += 1
                    self._handle(event)
            except ProtocolError as error:
                log.info("tracker connection from %s closed: %s", self.peer, error)
                self.close()
        return messages

    def on_close(self) -> None:
        """Nothing of this connection may stay behind."""
        for waiting in tuple(self.waiting):
            self._tracker.withdraw(waiting)
        if self._registration is not None:
            self._tracker.registry.drop(self._registration)
            self._registration = None
        self._tracker.forget(self)

    def _handle(self, event: wire.TrackerEvent) -> None:
        match event:
            case wire.TrackerHello():
                self.send(wire.encode_magic())
            case TrackerCode.PING:
                self.answer(TrackerCode.SUCCESS)
            case _ if self.refusal:
                self._refuse(_code_of(event), self.refusal)
            case wire.TrackerRequest():
                self._tracker.request(self, event)
            case wire.Put() | wire.UpdateInfo():
                self._register(event)
            case TrackerCode.SUMMARY:
                self._asked_summary = True
                self._tracker.ask_summary(self)
            case TrackerCode.GET_PENDING_MATCHKEYS:
                pending = [] if self._registration is None else self._tracker.registry.pending(self._registration)
                self.answer(pending)
            case TrackerCode.STOP:
                log.info("%s asked the tracker to stop; it does not", self.peer)
                self.answer(TrackerCode.FAIL)
            case wire.Invalid(code, reason):
                self._refuse(code, reason)

    def _register(self, event: wire.Put | wire.UpdateInfo) -> None:
        tracker = self._tracker
        announced = event.custom_address if isinstance(event, wire.Put) else event.address
        try:
            tracker.admission.check(self.peer.address, event.key, announced, farm_key=tracker.backend.serves(event.key))
            if self._registration is None:
                self._registration = tracker.registry.register()
            address = announced or self.peer.address
            if isinstance(event, wire.UpdateInfo):
                self._registration.servers = {event.key: (address, event.port)}
                self.answer(TrackerCode.SUCCESS)
                return
            tracker.registry.put(self._registration, Offer(event.key, address, event.port, event.match_key))
            self.answer(TrackerCode.SUCCESS)
            tracker.hand_out(event.key)
        except RegistrationRefused as refusal:
            level = logging.DEBUG if self._invalid else logging.WARNING  # the first is news
            log.log(level, "the server %s was refused: %s", self.peer, refusal)
            self.answer(TrackerCode.FAIL)
            self._count_refusal()

    def _refuse(self, code: TrackerCode | None, reason: str) -> None:
        """Answer as the sender expects an answer; give up on one that sends nothing else."""
        log.info("a message from %s was refused: %s", self.peer, reason)
        self.answer(TrackerCode.FAIL if code in _BARE_ANSWERS else [TrackerCode.FAIL, reason])
        self._count_refusal()

    def _count_refusal(self) -> None:
        self._invalid += 1
        if self._invalid >= self.limits.invalid_messages:
            self.close()


def _code_of(event: wire.TrackerEvent) -> TrackerCode | None:
    match event:
        case wire.Put():
            return TrackerCode.PUT
        case wire.UpdateInfo():
            return TrackerCode.UPDATE_INFO
        case TrackerCode():
            return event
    return None


# Servers read these answers with std::stoi: a list would end them.
_BARE_ANSWERS = frozenset({TrackerCode.PING, TrackerCode.STOP, TrackerCode.PUT, TrackerCode.UPDATE_INFO})
