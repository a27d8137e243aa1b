"""The allocator's rules as plainly as they can be said, slow and without an index: the oracle of its tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

from farm.head.allocator.model import AllocatorPolicy
from farm.head.allocator.reservations import Reservation
from farm.head.allocator.state import RETURNING
from farm.head.config import UserConfig
from farm.model.device import DeviceView, Life, Service
from farm.model.requests import LeaseClass, LeaseRequest

NEARLY = 1e-6  # turns closer than that are told apart by rounding alone

QueueKey = tuple[object, ...]


def queue_of(request: LeaseRequest) -> QueueKey:
    meant = (request.selector, request.device, request.avoid, request.only)
    return (
        request.user,
        request.priority,
        meant,
        request.worker,
        request.lease_class,
        request.quiet_hub,
        request.personal,
    )


def means(request: LeaseRequest, view: DeviceView) -> bool:
    return (
        request.device in ("", view.name)
        and view.name not in request.avoid
        and (request.only is None or view.name in request.only)
        and request.selector.matches(view.labels, view.aliases)
    )


def largest_matching(suits: Mapping[str, Collection[str]]) -> int:
    """How many of the keys can have one of their values each, all different. Tries everything."""
    if not suits:
        return 0
    first, *others = sorted(suits)
    rest = {name: suits[name] for name in others}
    best = largest_matching(rest)
    for taken in suits[first]:
        without = {name: [each for each in values if each != taken] for name, values in rest.items()}
        best = max(best, 1 + largest_matching(without))
        if best == len(suits):
            break
    return best


@dataclass
class Lease:
    id: str
    request: LeaseRequest
    since_s: float
    look_s: float = 0.0  # a tune lease is looked at then: whether others should have its phone
    asked: bool = False


@dataclass
class Model:
    """What there is, and who would be served now."""

    policy: AllocatorPolicy
    now_s: float = 0.0
    paused: bool = False
    default: UserConfig = field(default_factory=UserConfig)
    shares: dict[str, UserConfig] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    views: dict[str, DeviceView] = field(default_factory=dict)
    waiting: dict[str, LeaseRequest] = field(default_factory=dict)  # by arrival
    arrival: dict[str, int] = field(default_factory=dict)
    held: dict[str, Lease] = field(default_factory=dict)
    queues: dict[QueueKey, tuple[int, float]] = field(default_factory=dict)  # number of its last turn, and when it was
    past: list[tuple[str, float, float]] = field(default_factory=list)  # leases that ended: user, from, to
    cleaned: dict[str, tuple[str, float]] = field(default_factory=dict)  # devices after a lease: its user, its end
    turns: int = 0
    told_s: dict[str, float] = field(default_factory=dict)  # when each view came
    chosen: set[QueueKey] = field(default_factory=set)  # queues that are being served
    ending: str = ""  # a device whose lease is thought to end
    ends: Lease | None = None  # that lease
    kept: dict[str, tuple[QueueKey, float]] = field(default_factory=dict)  # devices kept cool: for whom, until when
    # the turn in which a queue claimed, its end
    claimed: dict[QueueKey, tuple[int, float]] = field(default_factory=dict)
    slots: dict[str, Lease] = field(default_factory=dict)  # worker slots that are kept without a lease

    # --- what happens ---

    def came(self, request_id: str, request: LeaseRequest) -> None:
        self.waiting[request_id] = request
        self.arrival[request_id] = len(self.arrival)
        if queue_of(request) not in self.queues:
            self._turn(queue_of(request))

    def left(self, request_id: str) -> None:
        queue = queue_of(self.waiting.pop(request_id))
        if all(queue_of(other) != queue for other in self.waiting.values()):
            del self.queues[queue]

    def granted(self, request_id: str, device: str) -> None:
        request = self.waiting[request_id]
        self._turn(queue_of(request))
        self.left(request_id)
        self.begins(device, request_id, request)

    def begins(self, device: str, request_id: str, request: LeaseRequest) -> None:
        if device in self.cleaned:
            user, since_s = self.cleaned.pop(device)
            self.past.append((user, since_s, self.cleaned_until_s(since_s)))
        self.held[device] = Lease(request_id, request, self.now_s, self.now_s + self.policy.min_slice_s)

    def ended(self, device: str) -> None:
        lease = self.held.pop(device)
        self.past.append((lease.request.user, lease.since_s, self.now_s))
        if device in self.views and self.views[device].life in RETURNING:
            self.cleaned[device] = lease.request.user, self.now_s

    def cleaning_ends(self, device: str) -> None:
        """What its last holder costs is over once it is ready again, or lost; or it is somebody else's."""
        if device in self.cleaned and (device not in self.views or self.views[device].life not in RETURNING):
            user, since_s = self.cleaned.pop(device)
            self.past.append((user, since_s, self.cleaned_until_s(since_s)))

    def cleaned_until_s(self, since_s: float) -> float:
        return min(self.now_s, since_s + self.policy.cleaning_counts_s)

    def keeps_slot(self, device: str, slot: str) -> None:
        lease = self.held[device]
        if lease.request.worker:
            self.slots[slot] = Lease(lease.id, lease.request, lease.since_s)
            lease.request = replace(lease.request, worker=False)

    def _turn(self, queue: QueueKey) -> None:
        self.turns += 1
        self.queues[queue] = (self.turns, self.now_s)

    # --- what follows ---

    def free(self) -> list[str]:
        return [name for name, view in self.views.items() if view.leasable and name not in self.held]

    def share(self, user: str) -> UserConfig:
        return self.shares.get(user, self.default)

    def reserved(self, request: LeaseRequest, device: str) -> bool:
        """Whether a reservation keeps the device from the request now."""
        lasts_s = self.policy.reservation_guard_s if request.longest_s is None else request.longest_s
        mine = [each for each in self.reservations if each.covers(self.views[device])]
        for each in mine:
            begins_s = max(self.now_s, each.starts_s)
            ends_s = min(self.now_s + lasts_s, each.ends_s)
            if request.user in each.users or each.ends_s <= self.now_s:
                continue
            if each.starts_s > self.now_s and ends_s <= begins_s:
                continue
            if not any(
                one.starts_s <= begins_s < one.ends_s and ends_s <= one.ends_s
                for one in mine
                if request.user in one.users
            ):
                return True
        return False

    def suits(self, request: LeaseRequest, devices: Iterable[str]) -> list[str]:
        return [
            name
            for name in devices
            if means(request, self.views[name])
            and request.lease_class not in self.views[name].closed
            and not (request.quiet_hub and self.loud(name))
            and not self.hushed(request, name)
            and not self.kept_from(request, name)
            and not self.reserved(request, name)
        ]

    def loud(self, device: str) -> bool:
        """Whether another device on its hub is leased; one that is about to be given back still is."""
        place = self.views[device].place
        leased = {*self.held, self.ending} - {device}
        return place is not None and any(
            name in leased and view.place is not None and view.place.hub == place.hub
            for name, view in self.views.items()
        )

    def hushed(self, request: LeaseRequest, device: str) -> bool:
        """Whether another user has a device on the same hub and needs that quiet."""
        place = self.views[device].place
        leases = {**self.held, **({self.ending: self.ends} if self.ends else {})}
        return place is not None and any(
            lease.request.quiet_hub and lease.request.user != request.user
            for name, lease in leases.items()
            if name != device and name in self.views and (view := self.views[name]).place is not None
            if view.place.hub == place.hub
        )

    def kept_from(self, request: LeaseRequest, device: str) -> bool:
        """Whether the device is kept cool for others; not for those in `chosen`, who are served already."""
        queue, _ = self.kept.get(device, (None, 0.0))
        if queue in (None, queue_of(request)) or queue in self.chosen:
            return False
        if request.personal and request.lease_class is not LeaseClass.TUNE:
            return False
        ours, theirs = self.queues.get(queue_of(request)), self.queues[queue]
        return not (ours is not None and ours < theirs and self.starves(queue_of(request)))

    def starves(self, queue: QueueKey) -> bool:
        return queue in self.queues and self.queues[queue][1] <= self.now_s - self.policy.starved_s

    def keep_cool(self) -> None:
        """Which devices are kept for queues that starve."""
        if self.paused:
            return
        self.claimed = {
            queue: claim
            for queue, claim in self.claimed.items()
            if self.starves(queue) and self.queues[queue][0] == claim[0]
        }
        self.kept = {
            device: (queue, until_s)
            for device, (queue, until_s) in self.kept.items()
            if queue in self.claimed and until_s > self.now_s and device in self.soon(queue)
        }
        for queue in sorted(self.queues, key=lambda queue: self.queues[queue]):
            turn, claim = self.queues[queue][0], self.claimed.get(queue)
            if not self.starves(queue) or any(queue == other for other, _ in self.kept.values()):
                continue
            if claim and claim[1] <= self.now_s < claim[1] + self.policy.starved_s:
                continue
            request = self.first(queue)
            cls, soon = request.lease_class, self.soon(queue)
            if not self.may_hold_more(request.user) or any(cls not in self.views[each].closed for each in soon):
                continue
            warm = [each for each in soon if self.views[each].closed[cls].heat and each not in self.kept]
            if warm:
                until_s = claim[1] if claim and self.now_s < claim[1] else self.now_s + self.policy.cooling_hold_s
                self.claimed[queue] = (turn, until_s)
                self.kept[min(warm, key=lambda name: (self.opens_at_s(name, cls), name))] = (queue, until_s)

    def first(self, queue: QueueKey) -> LeaseRequest:
        return next(request for request in self.waiting.values() if queue_of(request) == queue)

    def soon(self, queue: QueueKey) -> list[str]:
        """Devices in service that the queue's first request may have; free, or a tune lease has them."""
        request = self.first(queue)
        return [
            name
            for name, view in self.views.items()
            if means(request, view) and view.adopted and view.life is Life.READY and view.service is Service.IN
            if name not in self.held or self.held[name].request.lease_class is LeaseClass.TUNE
            if not self.reserved(request, name)
        ]

    def opens_at_s(self, device: str, lease_class: LeaseClass) -> float:
        opens_in_s = self.views[device].closed[lease_class].opens_in_s
        return inf if opens_in_s is None else self.told_s[device] + opens_in_s

    def usage_s(self, user: str) -> float:
        """The integral of 2 ** (-age / half-life) over all that the user held."""
        half_life_s = self.policy.usage_half_life_s
        rate = 0.6931471805599453 / half_life_s

        def weight(at_s: float) -> float:
            return float(2.0 ** ((at_s - self.now_s) / half_life_s))

        leases = [*self.past, *((each.request.user, each.since_s, self.now_s) for each in self.held.values())]
        leases += [(name, since_s, self.cleaned_until_s(since_s)) for name, since_s in self.cleaned.values()]
        return sum((weight(end_s) - weight(begin_s)) / rate for name, begin_s, end_s in leases if name == user)

    def turn(self, user: str, more: int = 0) -> float:
        held = sum(lease.request.user == user for lease in self.held.values()) + more
        return (self.usage_s(user) + held * self.policy.held_counts_s) / self.share(user).weight

    def who_is_served(self) -> tuple[list[str], bool]:
        """Request ids in the order of their turns, and whether rounding might decide otherwise."""
        chosen: list[str] = []
        waiting = dict(self.waiting)
        queues, turns = dict(self.queues), self.turns
        close = False
        free = self.free()
        while not self.paused:
            more = Counter(self.waiting[name].user for name in chosen)
            turn = {user: self.turn(user, more[user]) for user in {each.user for each in waiting.values()}}
            ordered_turns = sorted(turn.values())
            close |= any(0 < b - a < NEARLY * (1 + b) for a, b in pairwise(ordered_turns))
            for name in sorted(waiting, key=lambda name: self._place(name, waiting, queues, turn)):
                if self._possible(name, chosen, free):
                    break
            else:
                break
            chosen.append(name)
            turns += 1
            queue = queue_of(waiting.pop(name))
            queues[queue] = (turns, self.now_s)
            self.chosen.add(queue)
        self.chosen = set()
        return chosen, close

    def looked_at(self) -> list[str]:
        """Devices of tune leases whose time it is to be looked at; the next time is a slice later."""
        due = [name for name in self.tuning() if self.held[name].look_s <= self.now_s]
        for name in due:
            self.held[name].look_s = self.now_s + self.policy.min_slice_s
        return due

    def may_hold_more(self, user: str) -> bool:
        """Whether the user's quota has room."""
        limit = self.share(user).devices
        return not limit or sum(lease.request.user == user for lease in self.held.values()) < limit

    def tuning(self) -> list[str]:
        """Devices of tune leases that were not asked to yield."""
        return [n for n, each in self.held.items() if each.request.lease_class is LeaseClass.TUNE and not each.asked]

    def entitled(self, device: str) -> tuple[list[str], bool]:
        """Who waits, would be served if the lease on `device` ended, and then goes before the holder's next request.

        Served with its phone, or with its worker slot; not with a phone that is free now and beyond the user's quota.
        Also whether rounding might decide otherwise.
        """
        lease = self.held[device]
        full = len(self.slots) + sum(each.request.worker for each in self.held.values()) >= self.policy.workers
        self.ended(device)
        self.ending, self.ends = device, lease
        holder, close, found = lease.request, False, []
        free = self.free()
        for name, request in self.waiting.items():
            with_phone = device in free and bool(self.suits(request, [device]))
            with_slot = full and holder.worker and request.worker
            if not (with_phone or with_slot) or not self._possible(name, [], free):
                continue
            before, near = self._before(request, holder, self.turn(holder.user))
            close |= near
            if before:
                found.append(name)
        self.past.pop()
        self.cleaned.pop(device, None)
        self.ending, self.ends = "", None
        self.held[device] = lease
        return found, close

    def entitled_to_slot(self, name: str) -> tuple[list[str], bool]:
        """Who waits, would be served if this worker slot came free, and goes before its keeper's next request."""
        slot = self.slots.pop(name)
        keeper, close, found = slot.request, False, []
        free = self.free()
        has_phone = any(lease.request.user == keeper.user for lease in self.held.values())
        for each, request in self.waiting.items():
            if not request.worker or not self._possible(each, [], free):
                continue
            before, near = self._before(request, keeper, self.turn(keeper.user, -1 if has_phone else 0))
            close |= near
            if before:
                found.append(each)
        self.slots[name] = slot
        return found, close

    def _before(self, request: LeaseRequest, kept: LeaseRequest, theirs: float) -> tuple[bool, bool]:
        """Whether a request goes before the next one of `kept`'s user; and whether rounding might decide otherwise."""
        if self.queues[queue_of(request)][1] <= self.now_s - self.policy.starved_s:
            return True, False
        if request.priority != kept.priority:
            return request.priority > kept.priority, False
        if request.user == kept.user:
            return request.lease_class is not LeaseClass.TUNE, False
        ours = self.turn(request.user)
        return ours < theirs, abs(ours - theirs) < NEARLY * (1 + ours)

    def _place(
        self,
        name: str,
        waiting: Mapping[str, LeaseRequest],
        queues: Mapping[QueueKey, tuple[int, float]],
        turn: Mapping[str, float],
    ) -> tuple[float, ...]:
        request = waiting[name]
        number, since_s = queues[queue_of(request)]
        if since_s <= self.now_s - self.policy.starved_s:
            return (0, number, self.arrival[name])
        queue_begins = min(self.arrival[i] for i, each in waiting.items() if queue_of(each) == queue_of(request))
        claim = (request.user, request.priority)
        oldest = min(self.arrival[i] for i, each in waiting.items() if (each.user, each.priority) == claim)
        return (1, -request.priority, turn[request.user], oldest, queue_begins, self.arrival[name])

    def _possible(self, name: str, chosen: list[str], free: list[str]) -> bool:
        requests = [self.waiting[each] for each in (*chosen, name)]
        asking = requests[-1]
        having = [lease.request for lease in self.held.values()] + requests[:-1]
        limit = self.share(asking.user).devices
        if limit and sum(each.user == asking.user for each in having) >= limit:
            return False
        if asking.worker and sum(each.worker for each in having) + len(self.slots) >= self.policy.workers:
            return False
        suits = {each: self.suits(self.waiting[each], free) for each in (*chosen, name)}
        return largest_matching(suits) == len(suits)
