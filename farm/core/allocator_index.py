"""Which requests mean which devices, remembered; and which devices are in demand.

Requests that mean the same devices form a group. What a group means is found once, and again only for a device whose
labels change: an event costs as much as the groups and devices it touches. A group lives while a request of it waits
or is among the recent ones; a key that no device answers to is not remembered, so it costs nothing once withdrawn.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farm.core.device import DeviceView
from farm.core.requests import LeaseClass, LeaseRequest
from farm.core.selector import Selector

if TYPE_CHECKING:
    from farm.core.waiting_lines import Line

REMEMBERED_REQUESTS = 256  # recent ones tell which phones are in demand; about what a busy lab sees in a minute
WHOLE_REQUEST = 1_000_000_000  # a request's demand, divided among the devices that suit it: integers add up exactly


@dataclass(frozen=True, slots=True)
class Meaning:
    """What decides which devices suit a request, whoever asks and however urgently."""

    selector: Selector
    device: str = ""
    avoid: frozenset[str] = frozenset()
    worker: bool = False  # suits the same devices, but needs a worker place with them
    only: frozenset[str] | None = None
    lease_class: LeaseClass = LeaseClass.INTERACTIVE  # suits the same devices, but is served by those open to it
    quiet_hub: bool = False  # suits the same devices, but not while others on their hub are leased
    personal: bool = False  # suits the same devices, and also while they are kept cool for others

    @classmethod
    def of(cls, request: LeaseRequest) -> Meaning:
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

    def suits(self, view: DeviceView) -> bool:
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

    meaning: Meaning
    devices: set[str] = field(default_factory=set)
    recent: int = 0  # how many of the remembered requests were of this group
    waiting: int = 0
    # By priority and user, in the order in which they were served last (or began).
    lines: OrderedDict[tuple[int, str], Line] = field(default_factory=OrderedDict)


class DeviceIndex:
    """Devices, the groups that mean them, and the demand for each."""

    def __init__(self) -> None:
        self.views: dict[str, DeviceView] = {}
        self.quiet_waiting = 0  # requests that need a quiet hub
        self._groups: dict[Meaning, Group] = {}
        self._groups_of: dict[str, set[Group]] = {}  # by device
        self._recent: deque[Group] = deque()
        self._demand: dict[str, int] = {}
        self._alias_count: Counter[str] = Counter()
        self._rarity: dict[str, float] = {}  # remembered until any device's aliases change

    def answers_to(self, alias: str) -> bool:
        """Whether any device has this alias."""
        return alias in self._alias_count

    def matching(self, meaning: Meaning) -> frozenset[str]:
        """Names of the devices meant, leasable or not."""
        group = self._groups.get(meaning)
        if group is not None:
            return frozenset(group.devices)
        return frozenset(name for name, view in self.views.items() if meaning.suits(view))

    def waiting_groups(self, devices: set[str]) -> set[Group]:
        """Groups with waiting requests that any of the devices suits."""
        if len(devices) == 1:
            (device,) = devices
            return {group for group in self._groups_of[device] if group.waiting}
        if not devices:
            return set()
        return {group for group in self._groups.values() if group.waiting and not group.devices.isdisjoint(devices)}

    def came(self, meaning: Meaning) -> Group:
        """A request waits from now on. Returns its group."""
        group = self._groups.get(meaning)
        if group is None:
            devices = {name for name, view in self.views.items() if meaning.suits(view)}
            group = self._groups[meaning] = Group(meaning, devices)
            for name in devices:
                self._groups_of[name].add(group)
        group.waiting += 1
        self.quiet_waiting += meaning.quiet_hub
        if group.devices:  # an unknown key says nothing about the devices there are, and must cost nothing
            group.recent += 1
            self._recent.append(group)
            self._weigh(group, 2)
            if len(self._recent) > REMEMBERED_REQUESTS:
                self._forget_oldest()
        return group

    def left(self, group: Group) -> None:
        """A request of the group waits no more."""
        group.waiting -= 1
        self.quiet_waiting -= group.meaning.quiet_hub
        self._weigh(group, -1)
        self._drop_if_unused(group)

    def reluctance(self, device: str) -> tuple[int, float, str]:
        """Sorts devices by what giving them away costs others: demand, else how few answer to the same keys."""
        rarity = self._rarity.get(device)
        if rarity is None:
            rarity = sum(1 / self._alias_count[alias] for alias in set(self.views[device].aliases))
            self._rarity[device] = rarity
        return self._demand[device], rarity, device

    def device_changed(self, view: DeviceView) -> None:
        """A device appeared, or anything about it is different."""
        before = self.views.get(view.name)
        self.views[view.name] = view
        if before is not None and before.labels == view.labels and before.aliases == view.aliases:
            return
        self._count_aliases(before, view)
        groups = self._groups_of.setdefault(view.name, set())
        self._demand.setdefault(view.name, 0)
        for meaning, group in self._groups.items():
            suits = meaning.suits(view)
            if suits != (group in groups):
                self._change(group, view.name, suits=suits)

    def device_forgotten(self, name: str) -> None:
        """A device is no part of the farm any more."""
        view = self.views.get(name)
        if view is None:
            return
        for group in tuple(self._groups_of[name]):
            self._change(group, name, suits=False)
        self._count_aliases(view, None)
        del self.views[name], self._groups_of[name], self._demand[name]

    def _change(self, group: Group, device: str, *, suits: bool) -> None:
        weight = group.waiting + group.recent
        self._weigh(group, -weight)
        if suits:
            group.devices.add(device)
            self._groups_of[device].add(group)
        else:
            group.devices.discard(device)
            self._groups_of[device].discard(group)
        self._weigh(group, weight)

    def _weigh(self, group: Group, requests: int) -> None:
        """So many more requests, waiting or recent, share their demand among the group's devices."""
        if not group.devices:
            return
        part = requests * (WHOLE_REQUEST // len(group.devices))
        demand = self._demand
        for name in group.devices:
            demand[name] += part

    def _forget_oldest(self) -> None:
        oldest = self._recent.popleft()
        oldest.recent -= 1
        self._weigh(oldest, -1)
        self._drop_if_unused(oldest)

    def _drop_if_unused(self, group: Group) -> None:
        if group.waiting or group.recent:
            return
        for name in group.devices:
            self._groups_of[name].discard(group)
        del self._groups[group.meaning]

    def _count_aliases(self, before: DeviceView | None, after: DeviceView | None) -> None:
        if before is not None:
            self._alias_count -= Counter(set(before.aliases))
        if after is not None:
            self._alias_count += Counter(set(after.aliases))
        self._rarity.clear()
