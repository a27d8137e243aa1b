"""What leasing is asked by others: who has what, who waits and why. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from farm.core.histogram import Histogram
from farm.core.labels import normalise
from farm.core.requests import LeaseClass, LeaseRequest
from farm.core.sessions import FleetSummary
from farm.leasing.grants import Grants
from farm.leasing.holdings import Holdings
from farm.leasing.model import Explanation, Holder, WaitingRequest
from farm.leasing.status import SEARCHED, explain, explain_waiting, shortly, summarise

LINES_LOOKED_AT = 100  # of users' like requests: for metrics, several times a minute


class Questions:
    """The part of `farm.leasing.leases.Leasing` that only answers."""

    def __init__(self, grants: Grants, holdings: Holdings, clock: Callable[[], float]) -> None:
        self._grants = grants
        self._allocator = grants.allocator
        self._holdings = holdings
        self._clock = clock

    # --- leases ---------------------------------------------------------------------------------------------------

    def place_wanted(self, lease_id: str) -> bool:
        """Whether others lack only the worker place that is kept for this lease: its keeper should end soon."""
        place = self._allocator.places.get(lease_id)
        return place is not None and bool(place.asked)

    def yield_wanted(self, lease_id: str) -> bool:
        """Whether others wait for this tune lease's device: its holder should give it back at the next candidate."""
        held = self._holdings.leases.get(lease_id)
        return held is not None and bool(self._allocator.held[held.lease.device].asked)

    def expires_at(self, lease_id: str) -> datetime | None:
        """When the lease's holder gives the device back at the latest, by today's clock; None: nobody knows.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        return self._holdings.expires_at(self._holdings.current(lease_id))

    def holds(self, device: str) -> bool:
        """Whether anybody has the device."""
        return device in self._allocator.held

    def turn(self, device: str) -> str:
        """The request that the device was granted to, which no other lease has; "" when nobody has it."""
        held = self._allocator.held.get(device)
        return held.request_id if held is not None else ""

    def in_session(self, device: str) -> bool:
        """Whether a session is open on the device under somebody's lease, and nobody has ended it."""
        held = self._holdings.by_device.get(device)
        return held is not None and not held.ending and held.session is not None and not held.session.waits

    def holders(self) -> tuple[Holder, ...]:
        """Current leases, by device name."""
        return self._holdings.holders()

    # --- waiting --------------------------------------------------------------------------------------------------

    def waiting(self, limit: int | None = None) -> tuple[WaitingRequest, ...]:
        """Requests without a device, in the order they would be served; the foremost `limit` of them."""
        return self._grants.waiting(limit)

    def behind_s(self) -> float:
        """For how many seconds the allocator has missed a look at the clock; 0 while all is well (for the watchdog)."""
        return self._grants.behind_s()

    @property
    def waiting_count(self) -> int:
        """How many requests have no device."""
        return self._grants.pending.total()

    def depth(self) -> Mapping[LeaseClass, int]:
        """How many requests of each class have no device."""
        return self._grants.depth

    def longest_s(self) -> Mapping[LeaseClass, float]:
        """For how many seconds the oldest waiting request of each class has waited."""
        return self._grants.longest_s()

    def servable(self) -> int:
        """How many waiting requests nothing keeps from an idle device, among those that wait longest: a bug's trace.

        A quota, a reservation, heat, a drained host or a store that cannot be written is no such bug.
        """
        return self._allocator.overlooked(LINES_LOOKED_AT)

    @property
    def decisions(self) -> Histogram:
        """How long the allocator took for each event, in seconds."""
        return self._grants.decisions

    def explain(self, subject: str) -> Explanation:
        """Why requests for `subject` (a device name, a TVM key or a selector) wait, or would.

        Raises:
            UserError: `subject` is no selector.
        """
        foremost = self._grants.waiting(SEARCHED)
        return explain(self._allocator, subject, foremost, self._grants.wanted, self._clock())

    def explain_request(self, request_id: str) -> Explanation | None:
        """Why this request waits; None: it does not."""
        waiting = self._grants.wish(request_id)
        return explain_waiting(self._allocator, waiting, self._clock()) if waiting else None

    def why(self, request_ids: Iterable[str]) -> Mapping[str, str]:
        """What keeps the devices of each of these requests, in one short sentence; empty when it does not wait."""
        now_s = self._clock()
        reasons: dict[LeaseRequest, str] = {}  # a thousand jobs of one user mean the same phones: look at them once
        said = {}
        for request_id in request_ids:
            waiting = self._grants.wish(request_id)
            if waiting is None:
                said[request_id] = ""
                continue
            pooled = waiting.request.only is not None  # such a job holds phones already, and waits for others
            alike = waiting.request if pooled else replace(waiting.request, job="")
            if alike not in reasons:
                reasons[alike] = shortly(self._allocator, alike, now_s)
            said[request_id] = reasons[alike]
        return said

    # --- the tracker's questions ----------------------------------------------------------------------------------

    def serves(self, key: str) -> bool:
        """Whether a farm device answers to `key`."""
        return self._allocator.answers_to(normalise(key))

    def summary(self) -> FleetSummary:
        """The tracker's rows: a server per (device in service, alias), free and waiting per key."""
        return summarise(self._allocator, self._grants.pending)
