"""Who gets which phone: a pure state machine. Events in, grants out; no clock, no I/O (DESIGN D3).

Requests with the same selector wait in one group, and what a group's selector matches is remembered: an event costs as
much as the groups and devices it touches, not as many as there are. Inside what can be granted, higher priority goes
first, then first come first served. A request that may choose takes the phone that others ask for least.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farm.core.allocator_events import (
    AllocatorEvent,
    AllocatorPolicy,
    Decision,
    DeviceChanged,
    DeviceForgotten,
    DeviceReason,
    Grant,
    Holding,
    LeaseEnded,
    LeaseExtended,
    LeaseRestored,
    Paused,
    RequestCame,
    RequestWithdrawn,
    ReservationsChanged,
    Resumed,
    SharesChanged,
    TimePassed,
    UsageLoaded,
)
from farm.core.device import DeviceView
from farm.core.requests import LeaseRequest
from farm.core.selector import Selector

REMEMBERED_REQUESTS = (
    256  # recent requests that tell which phones are in demand; about what a busy lab sees in a minute
)


_GroupKey = tuple[Selector, str, frozenset[str], bool]  # selector, the one device wanted or "", avoided ones, worker
_Place = tuple[int, int, str]  # priority negated, arrival, request id: sorts as requests are served


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that mean the same devices."""

    devices: set[str] = field(default_factory=set)
    queue: list[_Place] = field(default_factory=list)
    recent: int = 0  # how many of the remembered requests were of this group


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: LeaseRequest
    group: _GroupKey
    place: _Place


class Allocator:
    """The state. `apply` is the only way to change it."""

    def __init__(self, policy: AllocatorPolicy | None = None) -> None:
        self._policy = policy or AllocatorPolicy()
        self._now_s = 0.0
        self._paused = ""
        self._workers = 0
        self._devices: dict[str, DeviceView] = {}
        self._held: dict[str, Holding] = {}  # by device
        self._waiting: dict[str, _Waiting] = {}
        self._groups: dict[_GroupKey, _Group] = {}
        self._groups_of: dict[str, set[_GroupKey]] = {}  # device -> groups that match it
        self._recent: deque[_GroupKey] = deque()
        self._alias_count: Counter[str] = Counter()
        self._arrivals = 0

    @property
    def devices(self) -> Mapping[str, DeviceView]:
        """Every known device by name."""
        return self._devices

    @property
    def held(self) -> Mapping[str, Holding]:
        """Who holds what, by device name; a device of a restored lease may be unknown yet."""
        return self._held

    def waiting(self) -> tuple[tuple[str, LeaseRequest], ...]:
        """Waiting requests in the order they would be served, were every device equal."""
        ordered = sorted(self._waiting.values(), key=lambda waiting: waiting.place)
        return tuple((waiting.place[2], waiting.request) for waiting in ordered)

    def apply(self, event: AllocatorEvent, now_s: float) -> Decision:
        """Take notice of `event`; return what is granted because of it.

        Raises:
            ValueError: a request id came twice.
        """
        self._now_s = now_s
        return Decision(self._apply(event))

    def next_look_s(self) -> float | None:
        """When `TimePassed` should come at the latest; None: nothing depends on time alone."""
        return None

    def _apply(self, event: AllocatorEvent) -> tuple[Grant, ...]:
        match event:
            case RequestCame(request_id, request):
                return self._request_came(request_id, request)
            case RequestWithdrawn(request_id):
                self._remove(request_id)
            case LeaseEnded(device):
                holding = self._held.pop(device, None)
                if holding is not None and holding.request.worker:
                    self._workers -= 1
                    return self._serve_all()
                return self._serve(device)
            case LeaseRestored(device, request_id, request):
                self._hold(device, request_id, request)
            case LeaseExtended(device, longest_s):
                if (holding := self._held.get(device)) is not None:
                    self._held[device] = replace(holding, ends_s=None if longest_s is None else self._now_s + longest_s)
            case DeviceChanged(view):
                self._device_changed(view)
                return self._serve(view.name)
            case DeviceForgotten(name):
                self._forget(name)
            case Paused(reason):
                self._paused = reason
            case Resumed():
                self._paused = ""
                return self._serve_all()
            case SharesChanged() | UsageLoaded() | ReservationsChanged() | TimePassed():
                return self._serve_all()
        return ()

    def answers_to(self, alias: str) -> bool:
        """Whether any device has this alias."""
        return alias in self._alias_count

    def matching(self, selector: Selector, device: str = "") -> frozenset[str]:
        """Names of the devices that a request with this selector means, leasable or not."""
        group = self._groups.get((selector, device, frozenset(), False))
        if group is not None:
            return frozenset(group.devices)
        return frozenset(
            name for name, view in self._devices.items() if _means((selector, device, frozenset(), False), view)
        )

    def explain(self, request: LeaseRequest, now_s: float, request_id: str = "") -> tuple[DeviceReason, ...]:
        """Per device, why `request` has not got it; the devices it could ever get first.

        `request_id` places the request in the queue; without it, it is explained as if it came now.
        """
        waiting = self._waiting.get(request_id)
        place = waiting.place if waiting is not None else (-request.priority, self._arrivals + 1, "")
        reasons = [self._explain(request, place, view) for view in self._devices.values()]
        return tuple(sorted(reasons, key=lambda reason: (not reason.matches, reason.device)))

    def estimate_s(self, request_id: str, now_s: float) -> float | None:
        """Seconds until this request is served at the latest, as things stand; None: nobody can say."""
        return None

    # --- decisions ------------------------------------------------------------------------------------------------

    def _request_came(self, request_id: str, request: LeaseRequest) -> tuple[Grant, ...]:
        if request_id in self._waiting or any(each.request_id == request_id for each in self._held.values()):
            raise ValueError(f"request {request_id} came twice")
        self._arrivals += 1
        key = (request.selector, request.device, request.avoid, request.worker)
        group = self._group(key)
        self._remember(key, group)
        place = (-request.priority, self._arrivals, request_id)
        self._waiting[request_id] = _Waiting(request, key, place)
        insort(group.queue, place)
        free = [name for name in group.devices if self._is_free(name)]
        if not free or self._blocked(key):
            return ()
        # Nobody who waits could have used these: whoever could has been served when they became free.
        device = min(free, key=lambda name: (self._demand(name, key), self._rarity(name), name))
        return (self._grant(request_id, device),)

    def _serve(self, device: str) -> tuple[Grant, ...]:
        """Give a device that may have become free to the first request that it suits."""
        if self._paused or device not in self._devices or not self._is_free(device):
            return ()
        heads = [
            group.queue[0]
            for key in self._groups_of[device]
            if (group := self._groups[key]).queue and not self._blocked(key)
        ]
        if not heads:
            return ()
        return (self._grant(min(heads)[2], device),)

    def _serve_all(self) -> tuple[Grant, ...]:
        return tuple(grant for name in sorted(self._devices) for grant in self._serve(name))

    def _blocked(self, key: _GroupKey) -> bool:
        return bool(self._paused) or (key[3] and self._workers >= self._policy.workers)

    def _grant(self, request_id: str, device: str) -> Grant:
        request = self._waiting[request_id].request
        self._remove(request_id)
        self._hold(device, request_id, request)
        return Grant(request_id, device)

    def _hold(self, device: str, request_id: str, request: LeaseRequest) -> None:
        ends_s = None if request.longest_s is None else self._now_s + request.longest_s
        self._held[device] = Holding(request_id, request, self._now_s, ends_s)
        self._workers += request.worker

    def _is_free(self, device: str) -> bool:
        return device not in self._held and self._devices[device].leasable

    def _demand(self, device: str, asking: _GroupKey) -> float:
        """How much recent requests of others depended on this device: each counts one, shared by all that suit it."""
        return sum(
            group.recent / len(group.devices)
            for key in self._groups_of[device]
            if key != asking and (group := self._groups[key]).recent
        )

    def _rarity(self, device: str) -> float:
        """How few other devices answer to the same keys: decides while there is no history."""
        return sum(1 / self._alias_count[alias] for alias in set(self._devices[device].aliases))

    # --- the index ------------------------------------------------------------------------------------------------

    def _group(self, key: _GroupKey) -> _Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group({name for name, view in self._devices.items() if _means(key, view)})
            for name in group.devices:
                self._groups_of[name].add(key)
        return group

    def _remember(self, key: _GroupKey, group: _Group) -> None:
        if not group.devices:
            return  # an unknown key says nothing about the devices there are, and must cost nothing
        group.recent += 1
        self._recent.append(key)
        if len(self._recent) > REMEMBERED_REQUESTS:
            oldest = self._recent.popleft()
            self._groups[oldest].recent -= 1
            self._drop_if_unused(oldest)

    def _remove(self, request_id: str) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return
        queue = self._groups[waiting.group].queue
        del queue[bisect_left(queue, waiting.place)]
        self._drop_if_unused(waiting.group)

    def _drop_if_unused(self, key: _GroupKey) -> None:
        group = self._groups[key]
        if group.queue or group.recent:
            return
        for name in group.devices:
            self._groups_of[name].discard(key)
        del self._groups[key]

    def _device_changed(self, view: DeviceView) -> None:
        before = self._devices.get(view.name)
        self._devices[view.name] = view
        if before is not None and before.labels == view.labels and before.aliases == view.aliases:
            return
        if before is not None:
            self._alias_count -= Counter(set(before.aliases))
        self._alias_count += Counter(set(view.aliases))
        groups = self._groups_of.setdefault(view.name, set())
        for key, group in self._groups.items():
            if _means(key, view):
                groups.add(key)
                group.devices.add(view.name)
            elif key in groups:
                groups.discard(key)
                group.devices.discard(view.name)

    def _forget(self, name: str) -> None:
        view = self._devices.pop(name, None)
        if view is None:
            return
        self._alias_count -= Counter(set(view.aliases))
        for key in self._groups_of.pop(name):
            self._groups[key].devices.discard(name)

    def _explain(self, request: LeaseRequest, place: _Place, view: DeviceView) -> DeviceReason:
        key = (request.selector, request.device, request.avoid, request.worker)
        if not _means(key, view):
            if request.device and request.device != view.name:
                return DeviceReason(view.name, matches=False, reason=f"only {request.device} is wanted")
            if view.name in request.avoid:
                return DeviceReason(view.name, matches=False, reason="avoided")
            return DeviceReason(view.name, matches=False, reason=request.selector.explain(view.labels, view.aliases))
        return DeviceReason(view.name, matches=True, reason=self._why_not_now(place, view))

    def _why_not_now(self, place: _Place, view: DeviceView) -> str:
        if not view.adopted:
            return "not adopted: `farm device adopt` takes it into the farm"
        if view.name in self._held:
            ahead = sum(other < place for key in self._groups_of[view.name] for other in self._groups[key].queue)
            return "held" if not ahead else f"held; {ahead} waiting requests come first"
        if not view.leasable:
            return unleasable_reason(view)
        return "free"


def unleasable_reason(view: DeviceView) -> str:
    """Why an adopted device cannot be handed out, one line for a person; empty when it can."""
    facts = []
    if view.life.value != "ready":
        facts.append(view.life.value + (f" ({view.reason})" if view.reason else ""))
    if view.service.value != "in":
        facts.append(view.service.value)
    if view.heat.value != "ok":
        temperature = "" if view.temperature_c is None else f" at {view.temperature_c:.0f} °C"
        facts.append(f"{view.heat.value}{temperature}")
    return "; ".join(facts)


def _means(key: _GroupKey, view: DeviceView) -> bool:
    selector, device, avoid, _ = key
    return (
        (not device or device == view.name) and view.name not in avoid and selector.matches(view.labels, view.aliases)
    )
