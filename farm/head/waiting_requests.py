"""The requests without a lease: how many wait for what, in which order, and why each of them waits."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar

from farm.common.selector import Selector, natural
from farm.head.allocator.allocator import Allocator
from farm.head.messages import AttemptClaim
from farm.head.model import Explanation, WaitingRequest
from farm.head.reports import SEARCHED, explain, explain_waiting, summarise, why
from farm.head.write_queue import LeaseWrite
from farm.model.device import DeviceState
from farm.model.requests import Lease, LeaseClass, LeaseRequest
from farm.model.sessions import FleetSummary
from farm.store.mailbox import Letter

LOOKED_AT = 1000  # oldest requests, for how long each class waits: a team's queue may have 100,000
QUEUES_CHECKED = 100  # of users' like requests: for metrics, several times a minute

T = TypeVar("T")


class JobRequester(ABC):
    """What asks for devices for jobs. `job` is a job's id; no method may block."""

    @abstractmethod
    def granted(self, job: str, lease: Lease, *, claimed: bool) -> None:
        """The job's lease is armed. `claimed`: its host has committed the claim with that."""

    @abstractmethod
    def claim(self, job: str, lease: Lease) -> AttemptClaim | None:
        """What a host apart commits when it arms the lease, which is granted now."""

    @abstractmethod
    def grant_cancelled(self, job: str, avoid: frozenset[str]) -> bool:
        """The job's lease was granted and not armed; whether its request, which excludes `avoid`, waits again."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request without a lease."""

    id: str
    request: LeaseRequest
    since: float  # monotonic
    requester: JobRequester | None = None  # asked at the head; None: it comes from a host
    place_s: float | None = None  # the time of its job's place among its user's (monotonic); None: `since`
    grant: PendingGrant | None = None


@dataclass(slots=True, eq=False)
class PendingGrant:
    """A lease that was granted and is not armed."""

    pending: PendingRequest
    lease: Lease
    granted_at: datetime
    letter: Letter | None = None  # to a host apart, stored with it
    entry: LeaseWrite | None = None
    cancelled: str = ""  # why it will not be armed
    pause: asyncio.TimerHandle | None = None  # the store has refused it: until it is undone


class WaitingRequests:
    """Every request without a held lease, and the answers about them."""

    def __init__(self, allocator: Allocator, clock: Callable[[], float]) -> None:
        """`allocator`: it has the requests in order. `clock`: monotonic seconds."""
        self.allocator = allocator
        self._clock = clock
        self._requests: dict[str, PendingRequest] = {}
        self._wanted: Counter[tuple[str, Selector, str]] = Counter()  # requests that wait, by key, selector and device
        self.depth: Counter[LeaseClass] = Counter()  # the same by class

    def views(self) -> tuple[DeviceState, ...]:
        """Every device, by name."""
        return tuple(sorted(self.allocator.devices.values(), key=lambda view: natural(view.name)))

    def host_of(self, device: str) -> str:
        """The host of a device; "" if the device is unknown, or its host is the only one."""
        state = self.allocator.devices.get(device)
        return "" if state is None else state.host

    def waiting(self, limit: int | None = None) -> tuple[WaitingRequest, ...]:
        """Requests without a device, in the order they would be served; the foremost `limit` of them."""
        now = self._clock()
        return tuple(
            WaitingRequest(request_id, request, now - pending.since)
            for request_id, request in self.allocator.waiting(limit)
            if (pending := self._requests.get(request_id)) is not None
        )

    def longest_s(self) -> Mapping[LeaseClass, float]:
        """For how long the oldest request of each class waits; looks at the `LOOKED_AT` oldest."""
        now, found = self._clock(), dict[LeaseClass, float]()
        for pending in islice(self._requests.values(), LOOKED_AT):
            if pending.grant is None:
                found.setdefault(pending.request.lease_class, now - pending.since)
                if len(found) == len(self.depth):
                    break
        return found

    def waiting_request(self, request_id: str) -> WaitingRequest | None:
        """The request, if it still waits; None once its lease is being written."""
        pending = self._requests.get(request_id)
        if pending is None or pending.grant is not None:
            return None
        return WaitingRequest(pending.id, pending.request, self._clock() - pending.since)

    def overlooked(self) -> int:
        """How many waiting requests nothing keeps from an idle device, among those that wait longest: a bug's trace.

        A quota, a reservation, heat, a drained host or a store that cannot be written is no such bug.
        """
        return self.allocator.overlooked(QUEUES_CHECKED)

    def summary(self) -> FleetSummary:
        """The tracker's rows: a server per (device in service, alias), free and waiting per key."""
        pending: Counter[str] = Counter()
        for (key, selector, device), count in self._wanted.items():
            pending[key or str(selector) or device] += count
        return summarise(self.allocator.devices.values(), self.allocator.held, pending)

    def explain(self, subject: str, made_now: LeaseRequest) -> Explanation:
        """Why requests for `subject` (a device name, a TVM key or a selector) wait, and what `made_now` would get.

        Args:
            subject: what is asked about.
            made_now: a request of the user who asks.

        Raises:
            UserError: `subject` is no selector.
        """
        wanted: Counter[tuple[Selector, str]] = Counter()
        for (_, selector, device), count in self._wanted.items():
            wanted[selector, device] += count
        return explain(self.allocator, subject, made_now, self.waiting(SEARCHED), wanted, self._clock())

    def explain_request(self, request_id: str) -> Explanation | None:
        """Why this request waits; None: it does not."""
        waiting = self.waiting_request(request_id)
        return explain_waiting(self.allocator, waiting, self._clock()) if waiting else None

    def why(self, request_ids: Iterable[str]) -> Mapping[str, str]:
        """The obstacle of each of these requests, in one short sentence; empty when it does not wait."""
        return why(self.allocator, {each: self.waiting_request(each) for each in request_ids}, self._clock())

    def _count(self, pending: PendingRequest) -> None:
        request = pending.request
        self._wanted[request.key, request.selector, request.device] += 1
        self.depth[request.lease_class] += 1

    def _uncount(self, pending: PendingRequest) -> None:
        request = pending.request
        _take_one(self._wanted, (request.key, request.selector, request.device))
        _take_one(self.depth, request.lease_class)


def _take_one(counter: Counter[T], name: T) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
