"""The allocation of phones to requests: a pure state machine. No clock, no I/O.

Rules, and where they are kept:

- In which order requests are served, and why none starves: `allocator.waiting`. A queue (one user's requests of
  one priority for the same devices) goes without a phone for at most `AllocatorPolicy.starved_s`, plus the time until
  each queue that starves for longer has been given one phone. When heat closes its devices to it, it has one of them
  kept cool: `allocator.yields`.
- Work is conserved: no leasable device is free while a waiting request could have it, given quotas, worker slots,
  reservations and the gates (`DeviceState.closed`: a device too warm for benchmarks may serve other classes). An event
  therefore concerns only the devices and requests that it touches.
- When several devices can be given away at once, as many requests as possible are served, the foremost among them; and
  of the devices that would do, those are given that others need least (`Matching`, applied from both sides).
- A request that needs a quiet hub is served while no other device on the hub is leased, and while it has its device
  the others there are its user's alone. It has no claim on a hub before: who comes first to one of its devices gets it,
  and no holder is asked to yield so that a hub falls quiet.
- Use counts in decaying device-seconds over the user's weight: `allocator.shares`.
- Windows in which devices belong to some users only: `allocator.reservations`.
- Tune leases are asked to yield: `allocator.yields`. Why a request waits: `allocator.explain`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Generic, TypeVar

from farm.common.selector import Selector
from farm.head.allocator import explain as allocator_explain
from farm.head.allocator.model import AllocatorPolicy, Cleaning, DeviceReason, Grant, Holding
from farm.head.allocator.reservations import Reservation
from farm.head.allocator.state import AllocatorState
from farm.head.allocator.waiting import Group, QueuedRequest, RequestTerms, UserQueue
from farm.head.allocator.yields import CoolingClaims, Yields
from farm.head.config import UserConfig
from farm.head.messages import SlotWanted, YieldWanted
from farm.model.device import DeviceState
from farm.model.requests import LeaseRequest

Left = TypeVar("Left", bound=Hashable)
Right = TypeVar("Right", bound=Hashable)


class Allocator:
    """The state machine. A method for each event returns the grants that follow. `Holding.asked`: it shall yield.

    `now_s` are monotonic seconds; an earlier time than that of the call before counts as that.
    """

    def __init__(self, policy: AllocatorPolicy | None = None) -> None:
        self._state = AllocatorState(policy or AllocatorPolicy())
        self._yields = Yields(self._state)
        self._cooling = CoolingClaims(self._state)
        self._decided_s = 0.0

    @property
    def devices(self) -> Mapping[str, DeviceState]:
        """Every known device by name."""
        return self._state.index.views

    @property
    def held(self) -> Mapping[str, Holding]:
        """The held devices by name; a device of a restored lease may be unknown yet."""
        return self._state.held

    @property
    def slots(self) -> Mapping[str, Holding]:
        """Worker slots that outlast their leases, by who keeps them."""
        return self._state.slots

    def next_check_s(self) -> float | None:
        """When `clock_advanced` should be called at the latest; None: nothing depends on time alone."""
        state = self._state
        if state.paused:
            return None
        checks = (
            state.reservations.next_change_s(state.now_s),
            self._yields.next_check_s(),
            self._cooling.next_check_s(),
        )
        return min((at_s for at_s in checks if at_s is not None), default=None)

    def cleanings(self) -> tuple[Cleaning, ...]:
        """Cleanings that users were charged for since the last call."""
        cleanings, self._state.cleanings = tuple(self._state.cleanings), []
        return cleanings

    def asked(self) -> tuple[YieldWanted | SlotWanted, ...]:
        """Requests to holders to give something back, since the last call."""
        asked, self._state.asked = tuple(self._state.asked), []
        return asked

    # --- questions ------------------------------------------------------------------------------------------------

    def answers_to(self, alias: str) -> bool:
        """Whether any device has this alias."""
        return self._state.index.answers_to(alias)

    def awaits(self, device: str) -> bool:
        """Whether a waiting request means this device."""
        return device in self.devices and bool(self._state.index.waiting_groups({device}))

    def matching(self, selector: Selector, device: str = "") -> frozenset[str]:
        """Names of the devices that a request with this selector means, leasable or not."""
        return self._state.index.matching(RequestTerms(selector, device))

    def waiting(self, limit: int | None = None) -> tuple[tuple[str, LeaseRequest], ...]:
        """Waiting requests as they would be served, were every device equal and shares to stay as they are.

        `limit`: only so many of the foremost; costs no more than those.
        """
        return tuple((each.id, each.request) for each in islice(allocator_explain.in_order(self._state), limit))

    def overlooked(self, queues: int) -> int:
        """How many waiting requests, of so many queues, nothing keeps from an idle device; 0 unless there is a bug."""
        return self._state.overlooked(queues)

    def explain(self, request: LeaseRequest, now_s: float, request_id: str = "") -> tuple[DeviceReason, ...]:
        """Per device, why `request` has not got it; the devices it could ever get first.

        Args:
            request: the request to explain.
            now_s: monotonic seconds.
            request_id: puts the request in the queue; without it, it is explained as if it came now.
        """
        return allocator_explain.explain(self._state, request, request_id, now_s)

    def limits(self, request: LeaseRequest) -> tuple[str, ...]:
        """Why `request` could get no device at all now: its user's quota, worker slots, a paused store."""
        return allocator_explain.limits(self._state, request)

    def obstacles(self, request: LeaseRequest, now_s: float) -> tuple[DeviceReason, ...]:
        """Per device that suits `request`, what keeps it, the queue apart: cheap, for lists of requests."""
        return allocator_explain.obstacles(self._state, request, now_s)

    def estimate_s(self, request_id: str, now_s: float) -> float | None:
        """Seconds until this request is served, as things stand; None: unknown.

        Takes every holder to keep its device for `longest_s`, and the order in which requests are served to stay as it
        is. It is no bound: shares change with each grant, queues come to starve, others come.
        """
        return allocator_explain.estimate_s(self._state, request_id, now_s)

    # --- what happened --------------------------------------------------------------------------------------------

    def device_changed(self, view: DeviceState, now_s: float) -> tuple[Grant, ...]:
        """A device appeared, or anything about it is different."""
        state = self._at(now_s)
        state.device_changed(view)
        return self._decide({view.name}, everything=state.quiet_matters, reserved=True, changed=view.name)

    def device_forgotten(self, name: str, now_s: float) -> tuple[Grant, ...]:
        """A device is no part of the farm any more. A lease on it stands until `lease_ended`."""
        state = self._at(now_s)
        state.device_forgotten(name)
        return self._decide(everything=state.quiet_matters)

    def request_added(
        self, request_id: str, request: LeaseRequest, now_s: float, *, place_s: float | None = None
    ) -> tuple[Grant, ...]:
        """A request for a device was added. `place_s`: the time of its place among its user's; None: now.

        Raises:
            ValueError: `request_id` came before.
        """
        state = self._at(now_s)
        new_request = state.request_added(request_id, request, place_s)
        if state.paused:  # a head that takes over adds 100,000
            return ()
        return self._decide(state.suiting(new_request.queue.group, state.free), new_request=new_request)

    def request_withdrawn(self, request_id: str, now_s: float) -> tuple[Grant, ...]:
        """A request was withdrawn."""
        self._at(now_s).request_removed(request_id)
        self._yields.request_removed(request_id)
        return self._decide()

    def lease_ended(self, device: str, lease: str, now_s: float) -> tuple[Grant, ...]:
        """The holder gave the device back, or lost it. Harmless without a lease. `lease`: its id, of `cleanings`."""
        state = self._at(now_s)
        holding = state.held.get(device)
        if holding is None:
            return self._decide()
        # With a slot, a quota or a quiet hub, devices that were free before come into reach of others.
        others = (
            not state.ledger.may_hold_more(holding.request.user)
            or (holding.request.worker and state.slots_full(holding.host))
            or state.quiet_matters
        )
        state.end(device, lease)
        self._yields.ended(device)
        return self._decide({device}, everything=others)

    def lease_restored(self, device: str, request_id: str, request: LeaseRequest, now_s: float) -> tuple[Grant, ...]:
        """A lease of the time before the daemon's restart continues. The device may not be known yet.

        Raises:
            ValueError: the device is held.
        """
        self._at(now_s).restore(device, request_id, request)
        self._yields.began(device)
        return self._decide(reserved=True)

    def lease_extended(self, device: str, longest_s: float | None, now_s: float) -> tuple[Grant, ...]:
        """The holder gives the device back after `longest_s` from now at the latest; None: unknown."""
        self._at(now_s).extend(device, longest_s)
        return self._decide()

    def slot_kept(self, device: str, slot: str, now_s: float) -> tuple[Grant, ...]:
        """The device's holder keeps its worker slot beyond that lease, as `slot`, until `slot_freed`."""
        self._at(now_s).keep_slot(device, slot)
        self._yields.slot_kept()
        return self._decide()

    def slot_freed(self, slot: str, now_s: float) -> tuple[Grant, ...]:
        """A worker slot that was kept is free again."""
        state = self._at(now_s)
        kept = state.slots.get(slot)
        was_full = kept is not None and state.slots_full(kept.host)
        state.free_slot(slot)
        return self._decide(everything=was_full)

    def quotas_changed(self, default: UserConfig, by_user: Mapping[str, UserConfig], now_s: float) -> tuple[Grant, ...]:
        """The users' quotas and weights changed; `default` is for users without an entry in `by_user`."""
        self._at(now_s).ledger.set_quotas(default, by_user)
        return self._decide(everything=True)

    def usage_loaded(self, by_user: Mapping[str, float], now_s: float) -> tuple[Grant, ...]:
        """Device-seconds that each user has used so far, decayed to now; comes once, at the start."""
        state = self._at(now_s)
        state.ledger.load(by_user, state.now_s)
        return self._decide()

    def reservations_changed(self, reservations: tuple[Reservation, ...], now_s: float) -> tuple[Grant, ...]:
        """All reservations there are; those over are ignored."""
        state = self._at(now_s)
        state.reservations.replace(reservations, state.now_s)
        return self._decide(everything=True)

    def paused(self, reason: str, now_s: float) -> tuple[Grant, ...]:
        """Nothing may be granted, e.g. because the store cannot write; "": grants are possible again."""
        self._at(now_s).paused = reason
        return self._decide(everything=True)

    def workers_stopped(self, host: str, most: int, why: str, now_s: float) -> tuple[Grant, ...]:
        """For `why`, at most so many workers may run on the host; "": as many as usual."""
        self._at(now_s).stop_workers(host, most, why)
        return self._decide(everything=True)

    def clock_advanced(self, now_s: float) -> tuple[Grant, ...]:
        """Nothing but the time has changed; `next_check_s` has come."""
        self._at(now_s)
        return self._decide()

    # --- who gets what --------------------------------------------------------------------------------------------

    def _at(self, now_s: float) -> AllocatorState:
        state = self._state
        state.now_s = max(state.now_s, now_s)
        state.end_long_cleanings()
        return state

    def _decide(
        self,
        devices: AbstractSet[str] = frozenset(),
        *,
        everything: bool = False,
        new_request: QueuedRequest | None = None,
        reserved: bool = False,
        changed: str = "",
    ) -> tuple[Grant, ...]:
        """Grant what can be granted, and ask holders to yield.

        Args:
            devices: may have come free.
            everything: others may have come into reach.
            new_request: has just begun to wait, for `devices`.
            reserved: a lease may stand in the way of a window.
            changed: a device about which anything may be different.
        """
        state = self._state
        before_s, self._decided_s = self._decided_s, state.now_s
        if state.paused:
            return ()
        windows = state.reservations.changed_between(before_s, state.now_s)
        unclaimed = self._cooling.decide()
        near = state.free if everything else state.free & (windows | unclaimed | devices)
        if new_request is not None and not windows and not unclaimed:
            grants = self._serve(near, {new_request.queue.group})
        else:
            grants = self._serve(near, state.waiting_groups(near))
        while unclaimed := self._cooling.decide() & state.free:  # claims that ended with what was granted
            grants += self._serve(unclaimed, state.waiting_groups(unclaimed))
        if new_request is not None and new_request.id not in state.queues.waiting:
            new_request = None
        self._yields.ask_holders(new_request, reserved=everything or reserved or bool(windows), changed=changed)
        self._yields.ask_for_slot(new_request)
        return grants

    def _serve(self, free: set[str], groups: set[Group]) -> tuple[Grant, ...]:
        """Give as many of the `free` devices as possible to the foremost requests of `groups`.

        A request that needs a quiet hub is served alone, when those before it have their devices. With several hosts,
        whose slots a worker took is known then, too.
        """
        several = len(self._state.hosts) > 1
        grants: list[Grant] = []
        while free and groups and (served := self._serve_together(free, groups)):
            grants += served
            if not any(group.terms.quiet_hub or (several and group.terms.worker) for group in groups):
                break
            free = free - {grant.device for grant in served}
            groups = {group for group in groups if group.waiting}
        return tuple(grants)

    def _serve_together(self, free: set[str], groups: set[Group]) -> tuple[Grant, ...]:
        chosen: dict[QueuedRequest, set[str]] = {}  # with the devices that would do
        matching: Matching[QueuedRequest, str] = Matching()
        hopeless: set[UserQueue] = set()
        while len(chosen) < len(free) and (waiting := self._next(free, groups, matching, hopeless, chosen)):
            self._state.served(waiting)
            if waiting.request.quiet_hub:
                break
        given = self._choose_devices(chosen)
        for waiting, device in given.items():
            self._state.assign(waiting, device)
            self._yields.request_removed(waiting.id)
            self._yields.began(device)
        return tuple(Grant(waiting.id, given[waiting]) for waiting in chosen)

    def _next(
        self,
        free: set[str],
        groups: set[Group],
        matching: Matching[QueuedRequest, str],
        hopeless: set[UserQueue],
        chosen: dict[QueuedRequest, set[str]],
    ) -> QueuedRequest | None:
        """The foremost request that can be served beside all chosen before; it is chosen.

        None too when that might be one that needs a quiet hub: first the others have their devices.
        """
        state = self._state
        for queue in state.in_order(state.with_free_slot(groups), free):
            if queue in hopeless:
                continue
            suiting = state.with_slot(queue.group, state.suiting(queue.group, free))
            if suiting and chosen and queue.group.terms.quiet_hub:
                return None
            for waiting in state.worth_trying(queue, suiting):
                devices = state.allowed(waiting, suiting)
                if matching.add(waiting, devices):
                    chosen[waiting] = devices
                    return waiting
            hopeless.add(queue)
        return None

    def _choose_devices(self, chosen: Mapping[QueuedRequest, set[str]]) -> dict[QueuedRequest, str]:
        """Serve all of `chosen`, with the devices that others need least."""
        reluctance = self._state.index.reluctance
        if len(chosen) == 1:
            ((waiting, devices),) = chosen.items()
            preferred = devices & waiting.request.prefer or devices
            return {waiting: min(preferred, key=reluctance) if len(preferred) > 1 else next(iter(preferred))}
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
        """Match `left` with one of `suits`, if need be by matching others again; they all stay matched.

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
