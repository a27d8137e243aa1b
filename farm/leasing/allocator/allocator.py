"""Who gets which phone: a pure state machine. Events in, grants out; no clock, no I/O.

Rules, and where they are kept:

- In which order requests are served, and why none starves: `allocator.waiting`. A line (one user's requests of
  one priority for the same devices) goes without a phone for at most `AllocatorPolicy.starved_s`, plus the time until
  each line that starves for longer has been given one phone. When heat closes its devices to it, it has one of them
  kept cool: `allocator.yields`.
- Work is conserved: no leasable device is free while a waiting request could have it, given quotas, worker places,
  reservations and the gates (`DeviceView.closed`: a device too warm for benchmarks may serve other classes). An event
  therefore concerns only the devices and requests that it touches.
- When several devices can be given away at once, as many requests as possible are served, the foremost among them; and
  of the devices that would do, those are given that others need least (`Matching`, applied from both sides).
- A request that needs a quiet hub is served while no other device on the hub is leased, and while it has its device
  the others there are its user's alone. It has no claim on a hub before: who comes first to one of its devices gets it,
  and nobody is asked to yield so that a hub falls quiet.
- Use counts in decaying device-seconds over the user's weight: `allocator.shares`.
- Windows in which devices belong to some users only: `allocator.reservations`.
- Tune leases are asked to yield: `allocator.yields`. Why a request waits: `allocator.explain`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from itertools import islice
from typing import Generic, TypeVar

from farm.common.selector import Selector
from farm.leasing.allocator import explain as allocator_explain
from farm.leasing.allocator.events import (
    AllocatorEvent,
    AllocatorPolicy,
    ClockAdvanced,
    DeviceChanged,
    DeviceForgotten,
    DeviceReason,
    Grant,
    GrantsPaused,
    GrantsResumed,
    Holding,
    LeaseEnded,
    LeaseExtended,
    LeaseRestored,
    PlaceFreed,
    PlaceKept,
    RequestCame,
    RequestWithdrawn,
    ReservationsChanged,
    SharesChanged,
    UsageLoaded,
)
from farm.leasing.allocator.state import AllocatorState
from farm.leasing.allocator.waiting import Group, Meaning, QueuedRequest, RequestLine
from farm.leasing.allocator.yields import CoolingClaims, Yields
from farm.model.device import DeviceView
from farm.model.requests import LeaseRequest

Left = TypeVar("Left", bound=Hashable)
Right = TypeVar("Right", bound=Hashable)


class Allocator:
    """The state machine. `apply` is the only way to change it."""

    def __init__(self, policy: AllocatorPolicy | None = None) -> None:
        self._state = AllocatorState(policy or AllocatorPolicy())
        self._yields = Yields(self._state)
        self._cooling = CoolingClaims(self._state)

    @property
    def devices(self) -> Mapping[str, DeviceView]:
        """Every known device by name."""
        return self._state.index.views

    @property
    def held(self) -> Mapping[str, Holding]:
        """Who holds what, by device name; a device of a restored lease may be unknown yet."""
        return self._state.held

    @property
    def places(self) -> Mapping[str, Holding]:
        """Worker places that outlast their leases, by who keeps them."""
        return self._state.places

    def apply(self, event: AllocatorEvent, now_s: float) -> tuple[Grant, ...]:
        """Take notice of `event`; return who gets what; `Holding.asked` tells who is asked to yield.

        Args:
            event: what happened.
            now_s: monotonic seconds; an earlier time than that of the last event counts as that.

        Raises:
            ValueError: a request id came twice, or a lease was restored on a device that is held.
        """
        state = self._state
        before_s, state.now_s = state.now_s, max(state.now_s, now_s)
        state.end_long_cleanings()
        devices, everything = self._take_notice(event)
        if state.paused:
            return ()
        windows = state.reservations.changed_between(before_s, state.now_s)
        unclaimed = self._cooling.decide()
        if everything:
            devices = state.free
        elif windows or unclaimed:
            devices |= (windows | unclaimed) & state.free
        if isinstance(event, RequestCame) and not windows and not unclaimed:
            grants = self._serve(devices, {state.lines.waiting[event.id].line.group})
        else:
            grants = self._serve(devices, state.waiting_groups(devices))
        while unclaimed := self._cooling.decide() & state.free:  # claims that ended with what was granted
            grants += self._serve(unclaimed, state.waiting_groups(unclaimed))
        newcomer = state.lines.waiting.get(event.id) if isinstance(event, RequestCame) else None
        reserved = everything or bool(windows) or isinstance(event, DeviceChanged | LeaseRestored)
        changed = event.view.name if isinstance(event, DeviceChanged) else ""
        self._yields.ask_holders(newcomer, reserved=reserved, changed=changed)
        self._yields.ask_for_place(newcomer)
        return grants

    def next_check_s(self) -> float | None:
        """When `ClockAdvanced` should come at the latest; None: nothing depends on time alone."""
        state = self._state
        if state.paused:
            return None
        looks = (
            state.reservations.next_change_s(state.now_s),
            self._yields.next_check_s(),
            self._cooling.next_check_s(),
        )
        return min((at_s for at_s in looks if at_s is not None), default=None)

    # --- questions ------------------------------------------------------------------------------------------------

    def answers_to(self, alias: str) -> bool:
        """Whether any device has this alias."""
        return self._state.index.answers_to(alias)

    def awaits(self, device: str) -> bool:
        """Whether a waiting request means this device."""
        return device in self.devices and bool(self._state.index.waiting_groups({device}))

    def matching(self, selector: Selector, device: str = "") -> frozenset[str]:
        """Names of the devices that a request with this selector means, leasable or not."""
        return self._state.index.matching(Meaning(selector, device))

    def waiting(self, limit: int | None = None) -> tuple[tuple[str, LeaseRequest], ...]:
        """Waiting requests as they would be served, were every device equal and shares to stay as they are.

        `limit`: only so many of the foremost; costs no more than those.
        """
        return tuple((each.id, each.request) for each in islice(allocator_explain.in_order(self._state), limit))

    def overlooked(self, lines: int) -> int:
        """How many waiting requests, of so many lines, nothing keeps from an idle device; 0 unless there is a bug."""
        return self._state.overlooked(lines)

    def explain(self, request: LeaseRequest, now_s: float, request_id: str = "") -> tuple[DeviceReason, ...]:
        """Per device, why `request` has not got it; the devices it could ever get first.

        Args:
            request: what is wished for.
            now_s: monotonic seconds.
            request_id: places the request in the queue; without it, it is explained as if it came now.
        """
        return allocator_explain.explain(self._state, request, request_id, now_s)

    def limits(self, request: LeaseRequest) -> tuple[str, ...]:
        """Why `request` could get no device at all now: its user's quota, worker places, a paused store."""
        return allocator_explain.limits(self._state, request)

    def obstacles(self, request: LeaseRequest, now_s: float) -> tuple[DeviceReason, ...]:
        """Per device that suits `request`, what keeps it, the queue apart: cheap, for lists of requests."""
        return allocator_explain.obstacles(self._state, request, now_s)

    def estimate_s(self, request_id: str, now_s: float) -> float | None:
        """Seconds until this request is served, as things stand; None: nobody can say.

        Takes every holder to keep its device for `longest_s`, and the order in which requests are served to stay as it
        is. It is no bound: shares change with each grant, lines come to starve, others come.
        """
        return allocator_explain.estimate_s(self._state, request_id, now_s)

    # --- what happened --------------------------------------------------------------------------------------------

    def _take_notice(self, event: AllocatorEvent) -> tuple[set[str], bool]:
        """Change the state; returns devices that may have come free, and whether others may have come into reach."""
        state = self._state
        match event:
            case RequestCame(request_id, request):
                return state.suiting(state.request_came(request_id, request).line.group, state.free), False
            case RequestWithdrawn(request_id):
                state.request_left(request_id)
                self._yields.left(request_id)
            case LeaseEnded(device):
                return self._lease_ended(device)
            case LeaseRestored(device, request_id, request):
                state.restore(device, request_id, request)
                self._yields.began(device)
            case LeaseExtended(device, longest_s):
                state.extend(device, longest_s)
            case PlaceKept(device, place):
                state.keep_place(device, place)
                self._yields.place_kept()
            case PlaceFreed(place):
                places_full = state.places_full
                state.free_place(place)
                return set(), places_full
            case DeviceChanged(view):
                state.device_changed(view)
                return {view.name} & state.free, state.quiet_matters
            case DeviceForgotten(name):
                state.device_forgotten(name)
                return set(), state.quiet_matters
            case SharesChanged(default, by_user):
                state.ledger.set_shares(default, by_user)
                return set(), True
            case UsageLoaded(by_user):
                state.ledger.load(by_user, state.now_s)
            case ReservationsChanged(reservations):
                state.reservations.replace(reservations, state.now_s)
                return set(), True
            case GrantsPaused(reason):
                state.paused = reason or "paused"
            case GrantsResumed():
                state.paused = ""
                return set(), True
            case ClockAdvanced():
                pass
        return set(), False

    def _lease_ended(self, device: str) -> tuple[set[str], bool]:
        state = self._state
        places_full = state.places_full
        holding = state.held.get(device)
        if holding is None:
            return set(), False
        quiet_matters = state.quiet_matters
        had_enough = not state.ledger.may_hold_more(holding.request.user)
        state.end(device)
        self._yields.ended(device)
        # With a place, a quota or a quiet hub, devices that were free before come into reach of others.
        others = had_enough or (places_full and holding.request.worker) or quiet_matters
        return {device} & state.free, others

    # --- who gets what --------------------------------------------------------------------------------------------

    def _serve(self, free: set[str], groups: set[Group]) -> tuple[Grant, ...]:
        """Give as many of the `free` devices as possible to the foremost requests of `groups`.

        A request that needs a quiet hub is served alone, when those before it have their devices.
        """
        grants: list[Grant] = []
        while free and groups and (served := self._serve_together(free, groups)):
            grants += served
            if not any(group.meaning.quiet_hub for group in groups):
                break
            free = free - {grant.device for grant in served}
            groups = {group for group in groups if group.waiting}
        return tuple(grants)

    def _serve_together(self, free: set[str], groups: set[Group]) -> tuple[Grant, ...]:
        chosen: dict[QueuedRequest, set[str]] = {}  # with the devices that would do
        matching: Matching[QueuedRequest, str] = Matching()
        hopeless: set[RequestLine] = set()
        while len(chosen) < len(free) and (waiting := self._next(free, groups, matching, hopeless, chosen)):
            self._state.served(waiting)
            if waiting.request.quiet_hub:
                break
        given = self._choose_devices(chosen)
        for waiting, device in given.items():
            self._state.place(waiting, device)
            self._yields.left(waiting.id)
            self._yields.began(device)
        return tuple(Grant(waiting.id, given[waiting]) for waiting in chosen)

    def _next(
        self,
        free: set[str],
        groups: set[Group],
        matching: Matching[QueuedRequest, str],
        hopeless: set[RequestLine],
        chosen: dict[QueuedRequest, set[str]],
    ) -> QueuedRequest | None:
        """The foremost request that can be served beside all chosen before; it is chosen.

        None too when that might be one that needs a quiet hub: first the others have their devices.
        """
        state = self._state
        for line in state.in_order(state.servable(groups), free):
            if line in hopeless:
                continue
            suiting = state.suiting(line.group, free)
            if suiting and chosen and line.group.meaning.quiet_hub:
                return None
            for waiting in state.worth_trying(line, suiting):
                devices = state.allowed(waiting, suiting)
                if matching.add(waiting, devices):
                    chosen[waiting] = devices
                    return waiting
            hopeless.add(line)
        return None

    def _choose_devices(self, chosen: Mapping[QueuedRequest, set[str]]) -> dict[QueuedRequest, str]:
        """Serve all of `chosen`, with the devices that others need least."""
        reluctance = self._state.index.reluctance
        if len(chosen) == 1:
            ((waiting, devices),) = chosen.items()
            prefer = waiting.request.prefer
            return {waiting: min(devices, key=lambda device: (device not in prefer, reluctance(device)))}
        assignment: Matching[str, QueuedRequest] = Matching()
        for device in sorted(set().union(*chosen.values()), key=reluctance):
            assignment.add(device, [waiting for waiting, devices in chosen.items() if device in devices])
            if len(assignment.left_of) == len(chosen):
                break
        return assignment.left_of


class Matching(Generic[Left, Right]):
    """Maximum bipartite matching that grows by one vertex at a time (augmenting paths).

    The vertices that can be matched together form a matroid (Edmonds and Fulkerson 1965: transversal matroids), so
    adding them greedily in order of merit matches as many as possible AND the most deserving of them; one that could
    not be added once never can be later.
    """

    def __init__(self) -> None:
        self.right_of: dict[Left, Right] = {}
        self.left_of: dict[Right, Left] = {}
        self._suits: dict[Left, Iterable[Right]] = {}

    def add(self, left: Left, suits: Iterable[Right]) -> bool:
        """Match `left` with one of `suits`, if need be by matching others anew; they all stay matched.

        Args:
            left: a new vertex.
            suits: its neighbours, tried in this order; iterated several times.

        Returns:
            Whether it could be matched; if not, nothing has changed.
        """
        self._suits[left] = suits
        reached_from: dict[Right, Left] = {}
        frontier = deque((left,))
        while frontier:
            current = frontier.popleft()
            for right in self._suits[current]:
                if right in reached_from:
                    continue
                reached_from[right] = current
                holder = self.left_of.get(right)
                if holder is None:
                    self._shift(left, right, reached_from)
                    return True
                frontier.append(holder)
        del self._suits[left]
        return False

    def _shift(self, left: Left, right: Right, reached_from: dict[Right, Left]) -> None:
        """Walk the path back: each takes the next one's, the last one takes `right`, which was free."""
        while True:
            current = reached_from[right]
            before = self.right_of.get(current)
            self.right_of[current] = right
            self.left_of[right] = current
            if current == left or before is None:
                return
            right = before
