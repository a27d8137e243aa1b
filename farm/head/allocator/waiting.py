"""Waiting requests: which devices they mean, and in which order they are served.

Requests that mean the same devices form a group. What a group means is found once, and again only for a device whose
labels change: an event costs as much as the groups and devices it touches. A group lives while a request of it waits
or is among the recent ones; a key that no device answers to is not remembered, so it costs nothing once withdrawn.

A queue has the requests of one user and priority for the same devices. Inside a queue, the first request is served
first; a job that asks again after a failure has the place of its first request. The order of the queues for a device:

1. Starved queues: those that got nothing for `starved_s` (since they began, or were served last), the longest starved
   first. So a queue waits at most `starved_s` and the time that queues need which starve for longer, whatever the
   priorities and shares of others. One user's ten thousand jobs still do not displace another's: this rule serves each
   queue once in `starved_s` only.
2. Higher priority.
3. Users who have had less for their weight (`farm.head.allocator.shares`); when equal, whose first request is older.
4. The older request.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import takewhile
from typing import NamedTuple

from farm.common.selector import Selector
from farm.model.device import DeviceState
from farm.model.requests import LeaseClass, LeaseRequest

REMEMBERED_REQUESTS = 256  # recent ones show which phones are in demand; about what a busy lab sees in a minute
Word = str | tuple[str, str]  # an alias, or a label with its value
WHOLE_REQUEST = 1_000_000_000  # a request's demand, divided among the devices that suit it: integers add up exactly


class RequestTerms(NamedTuple):  # made, hashed and compared for each request, so it is no dataclass
    """The terms of all requests of one group: the devices that suit them, and the conditions of service."""

    selector: Selector
    device: str = ""
    avoid: frozenset[str] = frozenset()
    worker: bool = False  # suits the same devices, but needs a worker slot with them
    only: frozenset[str] | None = None
    lease_class: LeaseClass = LeaseClass.INTERACTIVE  # suits the same devices, but is served by those open to it
    quiet_hub: bool = False  # suits the same devices, but not while others on their hub are leased
    personal: bool = False  # suits the same devices, and also while they are kept cool for others

    @classmethod
    def of(cls, request: LeaseRequest) -> RequestTerms:
        """The part of `request` that says which devices suit it."""
        return cls(
            request.selector,
            request.device,
            request.avoid,
            request.worker,
            request.only,
            request.lease_class,
            request.quiet_hub,
            request.personal,
        )

    def suits(self, view: DeviceState) -> bool:
        """Whether the device is meant."""
        return (
            (not self.device or self.device == view.name)
            and view.name not in self.avoid
            and (self.only is None or view.name in self.only)
            and self.selector.matches(view.labels, view.aliases)
        )


@dataclass(slots=True, eq=False)
class Group:
    """Requests that mean the same devices."""

    terms: RequestTerms
    devices: set[str] = field(default_factory=set)
    recent: int = 0  # how many of the remembered requests were of this group
    waiting: int = 0
    unweighed: int = 0  # requests more, or fewer, than its devices' demand counts yet
    # By priority and user, in the order in which they were served last (or began).
    queues: OrderedDict[tuple[int, str], UserQueue] = field(default_factory=OrderedDict)


class DeviceIndex:
    """Devices, the groups that mean them, and the demand for each."""

    def __init__(self) -> None:
        self.views: dict[str, DeviceState] = {}
        self.quiet_waiting = 0  # requests that need a quiet hub
        self._groups: dict[RequestTerms, Group] = {}
        self._groups_of: dict[str, set[Group]] = {}  # by device
        self._recent: deque[Group] = deque()
        self._demand: dict[str, int] = {}  # without what `_unweighed` adds
        self._unweighed: set[Group] = set()
        self._known_by: dict[Word, set[str]] = {}  # devices
        self._rarity: dict[str, float] = {}  # remembered until any device's aliases change

    def answers_to(self, alias: str) -> bool:
        """Whether any device has this alias."""
        return alias in self._known_by

    def matching(self, terms: RequestTerms) -> frozenset[str]:
        """Names of the devices meant, leasable or not."""
        group = self._groups.get(terms)
        if group is not None:
            return frozenset(group.devices)
        return frozenset(self._meant(terms))

    def waiting_groups(self, devices: set[str]) -> set[Group]:
        """Groups with waiting requests that any of the devices suits."""
        if len(devices) == 1:
            (device,) = devices
            return {group for group in self._groups_of[device] if group.waiting}
        if not devices:
            return set()
        return {group for group in self._groups.values() if group.waiting and not group.devices.isdisjoint(devices)}

    def add(self, terms: RequestTerms) -> Group:
        """A request waits from now on. Returns its group."""
        group = self._groups.get(terms)
        if group is None:
            devices = self._meant(terms)
            group = self._groups[terms] = Group(terms, devices)
            for name in devices:
                self._groups_of[name].add(group)
        group.waiting += 1
        self.quiet_waiting += terms.quiet_hub
        if group.devices:  # an unknown key says nothing about the devices there are, and must cost nothing
            group.recent += 1
            self._recent.append(group)
            self._weigh(group, 2)
            if len(self._recent) > REMEMBERED_REQUESTS:
                self._forget_oldest()
        return group

    def remove(self, group: Group) -> None:
        """A request of the group waits no more."""
        group.waiting -= 1
        self.quiet_waiting -= group.terms.quiet_hub
        self._weigh(group, -1)
        self._drop_if_unused(group)

    def reluctance(self, device: str) -> tuple[int, float, str]:
        """Sorts devices by what giving them away costs others: demand, else how few answer to the same keys."""
        rarity = self._rarity.get(device)
        if rarity is None:
            rarity = sum(1 / len(self._known_by[alias]) for alias in set(self.views[device].aliases))
            self._rarity[device] = rarity
        return self.demand(device), rarity, device

    def demand(self, device: str) -> int:
        """How much waiting and recent requests want this one."""
        if self._unweighed:
            self._weigh_all()
        return self._demand[device]

    def device_changed(self, view: DeviceState) -> None:
        """A device appeared, or anything about it is different."""
        before = self.views.get(view.name)
        self.views[view.name] = view
        if before is not None and before.labels == view.labels and before.aliases == view.aliases:
            return
        self._know(before, view)
        groups = self._groups_of.setdefault(view.name, set())
        self._demand.setdefault(view.name, 0)
        for terms, group in self._groups.items():
            suits = terms.suits(view)
            if suits != (group in groups):
                self._change(group, view.name, suits=suits)

    def device_forgotten(self, name: str) -> None:
        """A device is no part of the farm any more."""
        view = self.views.get(name)
        if view is None:
            return
        self._weigh_all()
        for group in tuple(self._groups_of[name]):
            self._change(group, name, suits=False)
        self._know(view, None)
        del self.views[name], self._groups_of[name], self._demand[name]

    def _change(self, group: Group, device: str, *, suits: bool) -> None:
        weight = group.waiting + group.recent
        self._weigh(group, -weight)
        self._weigh_all()
        if suits:
            group.devices.add(device)
            self._groups_of[device].add(group)
        else:
            group.devices.discard(device)
            self._groups_of[device].discard(group)
        self._weigh(group, weight)

    def _meant(self, terms: RequestTerms) -> set[str]:
        words: tuple[Word, ...] = (*terms.selector.aliases, *terms.selector.labels)
        few = min((self._known_by.get(word, set()) for word in words), key=len, default=self.views.keys())
        return {name for name in few if terms.suits(self.views[name])}

    def _weigh(self, group: Group, requests: int) -> None:
        """So many more requests, waiting or recent, share their demand among the group's devices, once it is asked."""
        if group.devices:
            group.unweighed += requests
            self._unweighed.add(group)

    def _weigh_all(self) -> None:
        demand = self._demand
        for group in self._unweighed:
            part = group.unweighed * (WHOLE_REQUEST // len(group.devices))
            group.unweighed = 0
            for name in group.devices:
                demand[name] += part
        self._unweighed.clear()

    def _forget_oldest(self) -> None:
        oldest = self._recent.popleft()
        oldest.recent -= 1
        self._weigh(oldest, -1)
        self._drop_if_unused(oldest)

    def _drop_if_unused(self, group: Group) -> None:
        if group.waiting or group.recent:
            return
        if group.unweighed:
            self._weigh_all()
        self._unweighed.discard(group)
        for name in group.devices:
            self._groups_of[name].discard(group)
        del self._groups[group.terms]

    def _know(self, before: DeviceState | None, after: DeviceState | None) -> None:
        """A device came, left, or has other labels and aliases."""
        for view in (before,) if before is not None else ():
            for word in _words(view):
                self._known_by[word].discard(view.name)
                if not self._known_by[word]:
                    del self._known_by[word]
        for view in (after,) if after is not None else ():
            for word in _words(view):
                self._known_by.setdefault(word, set()).add(view.name)
        self._rarity.clear()


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """A request without a device."""

    id: str
    request: LeaseRequest
    queue: UserQueue
    place: tuple[float, int]  # time (monotonic) and number: 1 for the first request ever
    lasts_s: float  # how long its lease is taken to last


@dataclass(slots=True, eq=False)
class UserQueue:
    """Requests of one user and priority for the same devices, by arrival."""

    user: str
    priority: int
    group: Group
    served_order: int  # grows with every queue that begins or is served: sorts as `since_s`, without ties
    since_s: float  # when it was last served, or began
    lasts_s: float  # none of its requests was ever taken to last shorter
    requests: OrderedDict[str, QueuedRequest] = field(default_factory=OrderedDict)

    @property
    def first(self) -> QueuedRequest:
        """The request that is served next."""
        return next(iter(self.requests.values()))


@dataclass(slots=True, eq=False)
class _UserRequests:
    """Requests of one user with one priority."""

    queues: dict[Group, UserQueue] = field(default_factory=dict)
    requests: OrderedDict[str, QueuedRequest] = field(default_factory=OrderedDict)


class UserQueues:
    """The queues of all users."""

    def __init__(self, starved_s: float) -> None:
        """Begin empty; `starved_s` is the bound of rule 1."""
        self._starved_s = starved_s
        self._waiting: dict[str, QueuedRequest] = {}
        self._tiers: dict[int, dict[str, _UserRequests]] = {}  # by priority, then user
        self._by_served_order: OrderedDict[UserQueue, None] = OrderedDict()
        self._arrivals = 0
        self._served_order = 0

    @property
    def waiting(self) -> Mapping[str, QueuedRequest]:
        """Every waiting request by id, in order of arrival."""
        return self._waiting

    @property
    def longest_first(self) -> Iterable[UserQueue]:
        """All of them, by how long they have got nothing."""
        return self._by_served_order

    def add(
        self, request_id: str, request: LeaseRequest, group: Group, lasts_s: float, now_s: float, place_s: float
    ) -> QueuedRequest:
        """Add a request to its queue, behind those that wait since `place_s`; its lease is taken to last `lasts_s`."""
        self._arrivals += 1
        own = self._tiers.setdefault(request.priority, {}).setdefault(request.user, _UserRequests())
        queue = own.queues.get(group)
        if queue is None:
            self._served_order += 1
            queue = UserQueue(request.user, request.priority, group, self._served_order, now_s, lasts_s)
            own.queues[group] = queue
            group.queues[request.priority, request.user] = queue
            self._by_served_order[queue] = None
        queue.lasts_s = min(queue.lasts_s, lasts_s)
        waiting = QueuedRequest(request_id, request, queue, (place_s, self._arrivals), lasts_s)
        self._waiting[request_id] = waiting
        _insert(queue.requests, waiting)
        _insert(own.requests, waiting)
        return waiting

    def served(self, waiting: QueuedRequest, now_s: float) -> None:
        """A request got its device: its queue starts to wait again."""
        queue = waiting.queue
        self._served_order += 1
        queue.served_order, queue.since_s = self._served_order, now_s
        self._by_served_order.move_to_end(queue)
        queue.group.queues.move_to_end((queue.priority, queue.user))
        self.remove(waiting)

    def remove(self, waiting: QueuedRequest) -> None:
        """Remove a request."""
        queue = waiting.queue
        tier = self._tiers[queue.priority]
        own = tier[queue.user]
        del self._waiting[waiting.id], queue.requests[waiting.id], own.requests[waiting.id]
        if queue.requests:
            return
        del own.queues[queue.group], self._by_served_order[queue], queue.group.queues[queue.priority, queue.user]
        if not own.queues:
            del tier[queue.user]
            if not tier:
                del self._tiers[queue.priority]

    def starves(self, queue: UserQueue, now_s: float) -> bool:
        """Whether the queue goes before all that do not."""
        return queue.since_s <= now_s - self._starved_s

    def starving(self, now_s: float) -> Iterator[UserQueue]:
        """Starved queues, the longest first."""
        return takewhile(lambda queue: self.starves(queue, now_s), self._by_served_order)

    def by_user(
        self, now_s: float, weighted_use: Callable[[Mapping[str, object], float], Mapping[str, float]]
    ) -> Iterator[tuple[int, str, float, Iterable[QueuedRequest]]]:
        """Priority, user, how much they have had, and their requests by arrival; in the order of rules 2 to 4."""
        for priority in sorted(self._tiers, reverse=True):
            users = self._tiers[priority]
            use = weighted_use(users, now_s)
            for user in sorted(users, key=lambda user: (use[user], _oldest(users[user]))):
                yield priority, user, use[user], users[user].requests.values()

    def in_order(
        self,
        groups: set[Group],
        now_s: float,
        weighted_use: Callable[[Mapping[str, object], float], Mapping[str, float]],
        may: Callable[[str], bool],
    ) -> Iterator[UserQueue]:
        """Queues of `groups` in the order of the rules; a starved one comes twice. Call again after any change.

        Args:
            groups: whose queues.
            now_s: the time.
            weighted_use: how much each of some users has had (`UsageLedger.weighted_use`).
            may: whether a user may have a device at all.
        """
        for queue in self._starved(groups, now_s):
            if may(queue.user):
                yield queue
        for priority in sorted(self._tiers, reverse=True):
            tier = self._tiers[priority].items()
            users = {user: own for user, own in tier if not groups.isdisjoint(own.queues) and may(user)}
            use = weighted_use(users, now_s)
            for user in sorted(users, key=lambda user: (use[user], _oldest(users[user]))):
                own = users[user]
                queues = [own.queues[group] for group in own.queues.keys() & groups]
                queues.sort(key=lambda queue: queue.first.place)
                yield from queues

    def _starved(self, groups: Iterable[Group], now_s: float) -> Iterator[UserQueue]:
        oldest = next(iter(self._by_served_order), None)
        if oldest is None or not self.starves(oldest, now_s):
            return
        fronts = []
        for group in groups:
            rest = iter(group.queues.values())
            queue = next(rest, None)
            if queue is not None and self.starves(queue, now_s):
                fronts.append((queue.served_order, queue, rest))
        heapify(fronts)
        while fronts and self.starves((front := fronts[0])[1], now_s):
            yield front[1]
            following = next(front[2], None)
            if following is None:
                heappop(fronts)
            else:
                heapreplace(fronts, (following.served_order, following, front[2]))


def _words(view: DeviceState) -> set[Word]:
    return {*view.aliases, *view.labels.items()}


def _insert(requests: OrderedDict[str, QueuedRequest], waiting: QueuedRequest) -> None:
    """Add a request at its place: quick for one that is the last or among the first."""
    last = next(reversed(requests.values()), waiting)
    requests[waiting.id] = waiting
    if last.place > waiting.place:
        before = list(takewhile(lambda each: each.place < waiting.place, requests.values()))
        for each in (waiting, *reversed(before)):
            requests.move_to_end(each.id, last=False)


def _oldest(own: _UserRequests) -> tuple[float, int]:
    return next(iter(own.requests.values())).place
