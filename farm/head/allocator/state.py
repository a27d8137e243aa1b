"""The allocator's state, kept consistent: devices, holdings, waiting requests, shares, reservations, slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import inf

from farm.head.allocator.model import AllocatorPolicy, Cleaning, Holding
from farm.head.allocator.reservations import Reservations
from farm.head.allocator.shares import UsageLedger
from farm.head.allocator.waiting import DeviceIndex, Group, QueuedRequest, RequestTerms, UserQueue, UserQueues
from farm.head.messages import SlotWanted, YieldWanted
from farm.model.device import RETURNING, DeviceState, Life
from farm.model.requests import LeaseClass, LeaseRequest


@dataclass(frozen=True, slots=True)
class CoolingClaim:
    """A queue's claim on a warm device, which cools for it and is kept from others (farm.head.allocator.yields)."""

    queue: UserQueue
    until_s: float

    @property
    def owner(self) -> str:
        """For people: "bob's bench"."""
        return f"{self.queue.user or 'another user'}'s {self.queue.group.terms.lease_class.value}"


class AllocatorState:
    """Everything the decisions are made from. It decides nothing itself."""

    def __init__(self, policy: AllocatorPolicy) -> None:
        self.policy = policy
        self.now_s = 0.0
        self.paused = ""
        self.index = DeviceIndex()
        self.queues = UserQueues(policy.starved_s)
        self.ledger = UsageLedger(policy.usage_half_life_s, policy.held_counts_s)
        self.reservations = Reservations(policy.reservation_guard_s)
        self.held: dict[str, Holding] = {}
        self.free: set[str] = set()  # leasable and not held
        # Devices on their way back from a lease: its user, its id, its end.
        self._cleaned_for: dict[str, tuple[str, str, float]] = {}
        self.cleanings: list[Cleaning] = []  # that ended and are not written down
        self.asked: list[YieldWanted | SlotWanted] = []  # of holders, and not sent to them
        self.closed: dict[LeaseClass, set[str]] = {each: set() for each in LeaseClass}  # devices closed to a class
        self.warm: dict[LeaseClass, set[str]] = {each: set() for each in LeaseClass}  # those that refuse for heat
        self.cooling_claims: dict[str, CoolingClaim] = {}  # by device
        self.quiet: set[str] = set()  # devices whose holders need a quiet hub
        self.on_hub: dict[tuple[str, str], set[str]] = {}  # devices by host and hub, as far as their ports are known
        self.closed_at_s: dict[str, float] = {}  # when the device last reported a closed class (monotonic)
        self._holders: set[str] = set()  # request ids
        self._at: Counter[str] = Counter()  # devices by host
        self._workers: Counter[str] = Counter()  # worker slots that are taken, by host
        self._stopped: dict[str, tuple[int, str]] = {}  # by host: how many workers may run for now, and why no more
        self._unassigned = 0  # requests with a worker that are being served and have no device yet
        self.slots: dict[str, Holding] = {}  # worker slots that outlast their leases, by who keeps them

    # --- requests and leases --------------------------------------------------------------------------------------

    def request_added(self, request_id: str, request: LeaseRequest, place_s: float | None) -> QueuedRequest:
        """A request waits from now on. `place_s`: the time of its place among its user's; None: now.

        Raises:
            ValueError: it came before.
        """
        if request_id in self.queues.waiting or request_id in self._holders:
            raise ValueError(f"request {request_id} came twice")
        group = self.index.add(RequestTerms.of(request))
        lasts_s = self.reservations.counts_s(request.longest_s)
        place_s = self.now_s if place_s is None else place_s
        return self.queues.add(request_id, request, group, lasts_s, self.now_s, place_s)

    def request_removed(self, request_id: str) -> None:
        """A request waits no more."""
        waiting = self.queues.waiting.get(request_id)
        if waiting is not None:
            self.queues.remove(waiting)
            self.index.remove(waiting.queue.group)

    def served(self, waiting: QueuedRequest) -> None:
        """A waiting request gets some device: `assign` follows."""
        self.queues.served(waiting, self.now_s)
        self.index.remove(waiting.queue.group)
        self._count(waiting.id, waiting.request)
        self._unassigned += waiting.request.worker

    def assign(self, waiting: QueuedRequest, device: str) -> None:
        """A request that was served has this device."""
        self._unassigned -= waiting.request.worker
        self._hold(device, waiting.id, waiting.request)

    def restore(self, device: str, request_id: str, request: LeaseRequest) -> None:
        """A lease of the time before continues.

        Raises:
            ValueError: the device is held.
        """
        if device in self.held:
            raise ValueError(f"{device} is held by request {self.held[device].request_id}")
        self._count(request_id, request)
        self._hold(device, request_id, request)

    def extend(self, device: str, longest_s: float | None) -> None:
        """The lease on the device ends so long after now at the latest."""
        holding = self.held.get(device)
        if holding is not None:
            self.held[device] = replace(holding, ends_s=None if longest_s is None else self.now_s + longest_s)

    def keep_slot(self, device: str, slot: str) -> None:
        """Part the worker slot of the device's holder, if it has one, from its lease.

        Raises:
            ValueError: there is such a slot.
        """
        if slot in self.slots:
            raise ValueError(f"the worker slot {slot} is kept already")
        holding = self.held.get(device)
        if holding is not None and holding.request.worker:
            self.held[device] = replace(holding, request=replace(holding.request, worker=False))
            self.slots[slot] = replace(holding, asked="")

    def free_slot(self, slot: str) -> None:
        """Give up a kept slot. Harmless when there is none."""
        if (kept := self.slots.pop(slot, None)) is not None:
            self._workers[kept.host] -= 1

    def end(self, device: str, lease: str) -> None:
        """The lease on the device is over; `lease` is its id."""
        holding = self.held.pop(device, None)
        if holding is None:
            return
        self.quiet.discard(device)
        self._holders.discard(holding.request_id)
        self._workers[holding.host] -= holding.request.worker
        self.ledger.give_back(holding.request.user, self.now_s)
        view = self.index.views.get(device)
        if view is not None and view.life in RETURNING:
            self._cleaned_for[device] = holding.request.user, lease, self.now_s
            self.ledger.begin_cleaning(holding.request.user, self.now_s)
        self._update_free(device)

    def end_long_cleanings(self) -> None:
        """No user is charged for more than `policy.cleaning_counts_s` after a lease. The oldest stand first."""
        over = takewhile(self._cleaned_long, tuple(self._cleaned_for))
        for device in over:
            self._end_cleaning(device)

    def _cleaned_long(self, device: str) -> bool:
        return self.now_s - self._cleaned_for[device][2] > self.policy.cleaning_counts_s

    def _end_cleaning(self, device: str) -> None:
        if device not in self._cleaned_for:
            return
        user, lease, since_s = self._cleaned_for.pop(device)
        ended_s = min(self.now_s, since_s + self.policy.cleaning_counts_s)
        self.ledger.end_cleaning(user, ended_s, self.now_s)
        self.cleanings.append(Cleaning(lease, device, ended_s - since_s))

    # --- devices --------------------------------------------------------------------------------------------------

    def device_changed(self, view: DeviceState) -> None:
        """A device appeared, or anything about it is different."""
        self._note_host(view.name, view.host)
        self._note_place(view.name, view)
        self.index.device_changed(view)
        self.reservations.device_changed(view)
        self._note_closed(view.name, view)
        if view.life not in RETURNING:
            self._end_cleaning(view.name)
        self._update_free(view.name)

    def device_forgotten(self, name: str) -> None:
        """A device is no part of the farm any more."""
        self._note_host(name, None)
        self._note_place(name, None)
        self.index.device_forgotten(name)
        self.reservations.device_forgotten(name)
        self._note_closed(name, None)
        self._end_cleaning(name)
        self._update_free(name)

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> AbstractSet[str]:
        """The hosts that have devices; "" is the only one."""
        return self._at.keys() or {""}

    @property
    def spare_slots(self) -> int:
        """How many more workers may run."""
        return sum(max(0, self._most_workers(host) - self._workers[host]) for host in self.hosts)

    def slots_full(self, host: str) -> bool:
        """Whether the host runs as many workers as it may."""
        return self._workers[host] >= self._most_workers(host)

    def stopped(self, host: str) -> str:
        """Why fewer workers than usual may run on the host; "": as many as usual."""
        return self._stopped.get(host, (0, ""))[1]

    def stop_workers(self, host: str, most: int, why: str) -> None:
        """Let at most so many workers run on the host; `why` "": as many as usual."""
        self._stopped.pop(host, None)
        if why:
            self._stopped[host] = most, why

    def _most_workers(self, host: str) -> int:
        return min(self.policy.workers, self._stopped[host][0]) if host in self._stopped else self.policy.workers

    def host_of(self, device: str) -> str:
        """The device's host; "" of one that is not known yet."""
        view = self.index.views.get(device)
        return "" if view is None else view.host

    @property
    def quiet_matters(self) -> bool:
        """Whether a lease or request is for a quiet hub."""
        return bool(self.quiet or self.index.quiet_waiting)

    def with_free_slot(self, groups: set[Group], *, freed: str | None = None) -> set[Group]:
        """Those of `groups` that need no worker slot, or for which a host has one, as `with_slot`."""
        if any(self._has_slot(host, freed) for host in self.hosts):
            return groups
        return {group for group in groups if not group.terms.worker}

    def with_slot(self, group: Group, devices: set[str], *, freed: str | None = None) -> set[str]:
        """Those of `devices` whose host has a worker slot, if the group needs one.

        `freed`: of this host, one more is to come free.
        """
        if not group.terms.worker or all(self._has_slot(host, None) for host in self.hosts):
            return devices
        return {device for device in devices if self._has_slot(self.host_of(device), freed)}

    def _has_slot(self, host: str, freed: str | None) -> bool:
        return self._workers[host] + self._unassigned - (host == freed) < self._most_workers(host)

    def overlooked(self, most: int) -> int:
        """How many requests of the `most` queues that wait longest could have an idle device; 0 unless there is a bug.

        Looks at the devices again, so that it does not repeat what may be wrong in `free`.
        """
        idle = {name for name, view in self.index.views.items() if view.leasable and name not in self.held}
        if self.paused or not idle:
            return 0
        return sum(
            len(queue.requests) for queue in islice(self.queues.longest_first, most) if self._could_have(queue, idle)
        )

    def _could_have(self, queue: UserQueue, idle: set[str]) -> bool:
        if not self.ledger.may_hold_more(queue.user) or not self.with_free_slot({queue.group}):
            return False
        suiting = self.with_slot(queue.group, self.suiting(queue.group, idle))
        return any(self.allowed(waiting, suiting) for waiting in self.worth_trying(queue, suiting))

    def suiting(self, group: Group, devices: AbstractSet[str]) -> set[str]:
        """Those of `devices` that suit the group, are open to its class, and on a quiet hub if it needs one."""
        suiting = group.devices & devices
        if closed := self.closed[group.terms.lease_class]:
            suiting -= closed
        if group.terms.quiet_hub:
            suiting = {device for device in suiting if not self.leased_beside(device)}
        return suiting

    def leased_beside(self, device: str) -> list[str]:
        """Other leased devices on the same hub, sorted."""
        return sorted(self._beside(device) & self.held.keys())

    def quiet_beside(self, device: str, user: str) -> list[str]:
        """Other devices on the same hub whose holders, not `user`, need it quiet, sorted."""
        beside = self._beside(device) & self.quiet if self.quiet else ()
        return sorted(other for other in beside if self.held[other].request.user != user)

    def starves(self, queue: UserQueue) -> bool:
        """Whether the queue goes before all that do not."""
        return self.queues.starves(queue, self.now_s)

    def claim_against(self, device: str, terms: RequestTerms, queue: UserQueue | None) -> CoolingClaim | None:
        """The claim on a device that keeps it from `queue`; None as `queue`: from a request that would begin one."""
        claim = self.cooling_claims.get(device)
        if claim is None or claim.queue is queue or not self.starves(claim.queue):
            return None
        if terms.personal and terms.lease_class is not LeaseClass.TUNE:
            return None
        longer = queue is not None and queue.served_order < claim.queue.served_order and self.starves(queue)
        return None if longer else claim

    def soon(self, device: str) -> bool:
        """Whether the device is in service and not leased without a time limit."""
        if device in self.free:
            return True
        view, holding = self.index.views.get(device), self.held.get(device)
        if view is None or not view.in_service or view.life is not Life.READY:
            return False
        return holding is None or holding.request.lease_class is LeaseClass.TUNE

    def opens_at_s(self, device: str, lease_class: LeaseClass) -> float:
        """About when a device opens to a class that it is closed to, if it stays idle; inf: unknown."""
        opens_in_s = self.index.views[device].closed[lease_class].opens_in_s
        return inf if opens_in_s is None else self.closed_at_s[device] + opens_in_s

    def waiting_groups(self, devices: set[str]) -> set[Group]:
        """Groups with waiting requests that any of the devices suits and is open to."""
        groups = self.index.waiting_groups(devices)
        if not any(self.closed.values()) and not self.index.quiet_waiting:
            return groups
        return {group for group in groups if self.suiting(group, devices)}

    def in_order(self, groups: set[Group], devices: set[str], *, ending: str = "") -> Iterator[UserQueue]:
        """Queues of `groups` whose users may have one more of `devices`, as served now; starved ones come twice.

        `ending` names a held one of the devices, and the order is as if its lease had ended.
        """
        holder = self.held[ending].request.user if ending else None
        may_hold_more = self.ledger.may_hold_more
        open_to = self._open_to(devices) if self.reservations else None

        def may(user: str) -> bool:
            return (open_to is None or user in open_to) and may_hold_more(user, without=user == holder)

        def as_ended(users: Mapping[str, object], now_s: float) -> Mapping[str, float]:
            found = self.ledger.weighted_use(users, now_s)
            if holder in found:
                found[holder] = self.ledger.weighted_use_of(holder, now_s, without=1)
            return found

        return self.queues.in_order(groups, self.now_s, self.ledger.weighted_use if holder is None else as_ended, may)

    def allowed(self, waiting: QueuedRequest, devices: set[str]) -> set[str]:
        """Those of `devices` that no reservation, quiet hub or claim keeps from this request."""
        if self.cooling_claims or self.quiet:
            queue, terms = waiting.queue, waiting.queue.group.terms
            devices = {
                device
                for device in devices
                if not self.claim_against(device, terms, queue) and not self.quiet_beside(device, queue.user)
            }
        return self.unreserved(waiting, devices)

    def unreserved(self, waiting: QueuedRequest, devices: set[str]) -> set[str]:
        """Those of `devices` that no reservation keeps from this request."""
        if not self.reservations:
            return devices
        room_s, user, now_s = self.reservations.room_s, waiting.queue.user, self.now_s
        return {device for device in devices if room_s(device, user, now_s) >= waiting.lasts_s}

    def worth_trying(self, queue: UserQueue, devices: set[str]) -> Iterator[QueuedRequest]:
        """Requests of the queue that may have one of `devices`: the first one, then each that may have more of them."""
        if not self.reservations:
            yield queue.first
            return
        rooms_s = [self.reservations.room_s(device, queue.user, self.now_s) for device in devices]
        most_s, least_s = max(rooms_s, default=-1.0), min(rooms_s, default=-1.0)
        if queue.lasts_s > most_s:
            return
        shortest_s = inf
        for waiting in queue.requests.values():
            if waiting.lasts_s <= most_s and waiting.lasts_s < shortest_s:
                yield waiting
                shortest_s = waiting.lasts_s
                if shortest_s <= least_s:
                    return

    # --- helpers --------------------------------------------------------------------------------------------------

    def _open_to(self, devices: set[str]) -> set[str] | None:
        """The users for whom any of the devices is not reserved to others now; None: all users."""
        users: set[str] = set()
        for device in devices:
            only_for = self.reservations.only_for(device, self.now_s)
            if only_for is None:
                return None
            users |= only_for
        return users

    def _count(self, request_id: str, request: LeaseRequest) -> None:
        self._holders.add(request_id)
        self.ledger.take(request.user, self.now_s)

    def _hold(self, device: str, request_id: str, request: LeaseRequest) -> None:
        self._end_cleaning(device)
        ends_s = None if request.longest_s is None else self.now_s + request.longest_s
        host = self.host_of(device)
        self._workers[host] += request.worker
        self.held[device] = Holding(request_id, request, self.now_s, ends_s, host=host)
        self.free.discard(device)
        if request.quiet_hub:
            self.quiet.add(device)

    def _note_host(self, name: str, host: str | None) -> None:
        before = self.index.views.get(name)
        if before is not None and before.host != host:
            self._at[before.host] -= 1
            self._at += Counter()  # without hosts that have none
        if host is not None and (before is None or before.host != host):
            self._at[host] += 1

    def _note_place(self, name: str, view: DeviceState | None) -> None:
        was, now = _hub_of(self.index.views.get(name)), _hub_of(view)
        if was == now:
            return
        if was is not None:
            self.on_hub[was].discard(name)
        if now is not None:
            self.on_hub.setdefault(now, set()).add(name)

    def _beside(self, device: str) -> set[str]:
        hub = _hub_of(self.index.views.get(device))
        return set() if hub is None else self.on_hub[hub] - {device}

    def _note_closed(self, name: str, view: DeviceState | None) -> None:
        for lease_class in LeaseClass:
            closed = None if view is None else view.closed.get(lease_class)
            for names, there in (
                (self.closed[lease_class], closed is not None),
                (self.warm[lease_class], closed is not None and closed.heat),
            ):
                if there:
                    names.add(name)
                else:
                    names.discard(name)
        if view is not None and view.closed:
            self.closed_at_s[name] = self.now_s
        else:
            self.closed_at_s.pop(name, None)

    def _update_free(self, name: str) -> None:
        view = self.index.views.get(name)
        if view is not None and view.leasable and name not in self.held:
            self.free.add(name)
        else:
            self.free.discard(name)


def _hub_of(view: DeviceState | None) -> tuple[str, str] | None:
    """The device's host and hub, as far as they are known: each host has a hub 1-1."""
    return None if view is None or view.place is None else (view.host, view.place.hub)
