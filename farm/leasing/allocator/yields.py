"""Devices for those who wait: tune leases are asked to yield, and warm devices are kept cool for a line that starves.

A tune lease is asked once, to give its phone back at the next candidate boundary, for one of four reasons:

- Somebody waits who would be served if it ended (with its phone, or with its worker place where that is all that is
  missing), and who then goes before the holder's own next request: by starvation, priority or share. The holder's other
  tune requests are no such reason. A phone is left to a tune lease for `min_slice_s`, and looked at again each
  `min_slice_s` while anybody waits, because shares change with time. One lease is asked per request that waits.
- A reservation of others on its phone has begun.
- Its phone has closed to tuning (`DeviceView.closed`): it became too warm.
- Its phone is to cool for somebody who starves (`CoolingClaims`); after `min_slice_s` too.

Worker places that outlast their leases (`Allocator.place_kept`) are of tune leases too. When all places are taken and
somebody lacks nothing else, who goes before the place's keeper, that keeper is asked to end: after `min_slice_s`, one
at a time.

A line that starves while heat closes every phone to it has one of them kept cool. A farm that tuning keeps warm would
else let a benchmark wait without bound: no phone ever cools, and a claim to the next free one is of no use. The rule:

- A line claims a phone when it has starved, its user may have one more, each phone that it might have soon (nobody has
  it, or a tune lease, which yields) is closed to its class, and for heat at least one of them. It claims the one that
  opens soonest. A line has one claim, a phone is claimed by one line; the line that waits longest comes first.
- A claimed phone is kept from all others but those who starve for longer, and people's own leases that do not tune
  (`AllocatorState.kept_from`). A tune lease on it is asked to yield. When a holder gets it that does
  not yield, the line claims another one.
- The claim lasts until the line is served, and `cooling_hold_s` at most; then the line starves anew before it claims
  again, so that a phone which cannot cool is of use to others for `starved_s` at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nextafter

from farm.leasing.allocator.model import Holding
from farm.leasing.allocator.state import AllocatorState, KeptCool
from farm.leasing.allocator.waiting import Group, QueuedRequest, RequestLine
from farm.model.requests import LeaseClass


def goes_before(state: AllocatorState, waiting: QueuedRequest, holding: Holding) -> bool:
    """Whether the request is served before one that the holder of a tune lease would make after yielding."""
    request = waiting.request
    if state.lines.starves(waiting.line, state.now_s):
        return True
    if request.priority != holding.request.priority:
        return request.priority > holding.request.priority
    if request.user == holding.request.user:
        return request.lease_class is not LeaseClass.TUNE
    ledger, now_s = state.ledger, state.now_s
    own = min(1, ledger.held(holding.request.user))  # a kept worker place may be all that its keeper has
    return ledger.turn(request.user, now_s) < ledger.turn(holding.request.user, now_s, without=own)


class Yields:
    """Which tune leases are asked, for whom, and when the others are looked at."""

    def __init__(self, state: AllocatorState) -> None:
        self._state = state
        self._look_s: dict[str, float] = {}  # devices of tune leases not asked yet: when to look at them
        self._asked_for: dict[str, str] = {}  # device of a lease that was asked -> the request that is to be served
        self._promised: dict[str, str] = {}  # and back
        self._unclaimed: set[str] = set()  # devices asked for, whose request was served otherwise or left
        self._place_look_s = 0.0  # when to look at places that are kept

    def began(self, device: str) -> None:
        """A lease began."""
        if self._state.held[device].request.lease_class is LeaseClass.TUNE:
            self._look_s[device] = self._state.now_s + self._state.policy.min_slice_s

    def ended(self, device: str) -> None:
        """A lease ended."""
        self._look_s.pop(device, None)
        self._unclaimed.discard(device)
        self._promised.pop(self._asked_for.pop(device, ""), None)

    def left(self, request_id: str) -> None:
        """A request waits no more."""
        device = self._promised.pop(request_id, None)
        if device is not None:
            del self._asked_for[device]
            self._unclaimed.add(device)

    def next_check_s(self) -> float | None:
        """When the next lease is to be looked at; None: nobody waits, or there is none."""
        if not self._state.lines.waiting:
            return None
        looks = [*self._look_s.values(), *([self._place_look_s] if self._state.places else [])]
        return min(looks, default=None)

    def place_kept(self) -> None:
        """A worker place has been parted from its lease."""
        if len(self._state.places) == 1:
            self._place_look_s = self._state.now_s + self._state.policy.min_slice_s

    def ask_holders(self, newcomer: QueuedRequest | None, *, reserved: bool, changed: str = "") -> None:
        """Ask those for their phones who should yield now.

        Args:
            newcomer: has just begun to wait.
            reserved: a window may have begun.
            changed: a device about which anything may be different.
        """
        if not self._look_s:
            return
        if reserved and self._state.reservations:
            self._ask_reserved()
        self._ask_closed(changed)
        self._ask_kept_cool()
        now_s = self._state.now_s
        for device in [device for device, at_s in self._look_s.items() if at_s <= now_s]:
            self._look_s[device] = now_s + self._state.policy.min_slice_s
            self._ask_for_best(device)
        if newcomer is not None:
            self._ask_for_newcomer(newcomer)

    def ask_for_place(self, newcomer: QueuedRequest | None) -> None:
        """Ask the keeper of a worker place to end its work, if one should now."""
        state = self._state
        due = bool(state.places) and self._place_look_s <= state.now_s
        if due:
            self._place_look_s = state.now_s + state.policy.min_slice_s
        if not (due or newcomer) or not state.places_full or any(place.asked for place in state.places.values()):
            return
        ripe_s = state.now_s - state.policy.min_slice_s
        ripe = {name: place for name, place in state.places.items() if place.since_s <= ripe_s}
        for waiting in self._who_lacks_only_a_place() if ripe else ():
            able = [name for name, place in ripe.items() if self._goes_before(waiting, place)]
            if able:
                name = min(able, key=lambda name: self._entitlement(name, ripe[name]))
                reason = f"{waiting.request.user or 'somebody'} waits for its worker place"
                state.places[name] = replace(ripe[name], asked=reason)
                return

    def _who_lacks_only_a_place(self) -> Iterator[QueuedRequest]:
        """In service order; without those who were promised a phone, and its worker place with it."""
        state = self._state
        groups = {group for group in state.waiting_groups(state.free) if group.meaning.worker}
        for line in state.in_order(groups, state.free):
            suiting = state.suiting(line.group, state.free)
            for waiting in line.queue.values():
                if waiting.id not in self._promised and state.allowed(waiting, suiting):
                    yield waiting
                    break

    def _ask_reserved(self) -> None:
        reservations = self._state.reservations
        for device in tuple(self._look_s):
            # A lease of no length at all: only a window that has begun is in its way.
            window = reservations.obstacle(device, self._state.held[device].request.user, 0.0, self._state.now_s)
            if window is not None:
                self._ask(device, f"it is reserved for {', '.join(sorted(window.users))}")
                self._unclaimed.add(device)

    def _ask_closed(self, device: str) -> None:
        view = self._state.index.views.get(device)
        if device in self._look_s and view is not None and LeaseClass.TUNE in view.closed:
            self._ask(device, str(view.closed[LeaseClass.TUNE]))
            self._unclaimed.add(device)

    def _ask_kept_cool(self) -> None:
        ripe_s = self._state.now_s - self._state.policy.min_slice_s
        for device, kept in self._state.kept.items():
            if device in self._look_s and self._state.held[device].since_s <= ripe_s:
                self._ask(device, f"it is to cool for {kept.whose}")
                self._unclaimed.add(device)

    def _ask_for_newcomer(self, newcomer: QueuedRequest) -> None:
        state = self._state
        if not state.ledger.may_hold_more(newcomer.request.user) or self._claims(newcomer):
            return
        ripe_s = state.now_s - state.policy.min_slice_s
        reach = state.allowed(newcomer, state.suiting(newcomer.line.group, self._look_s.keys()))
        if self._lacks_only_a_place(newcomer):
            reach = {device for device in self._look_s if state.held[device].request.worker}
        able = [
            device
            for device in reach
            if (holding := state.held[device]).since_s <= ripe_s and self._goes_before(newcomer, holding)
        ]
        for device in sorted(able, key=self._least_entitled):
            if newcomer.id in self._promised:
                return
            self._ask_for_best(device)

    def _ask_for_best(self, device: str) -> None:
        """Ask the holder of `device` if somebody should have it, for the foremost who is promised nothing yet."""
        holding = self._state.held[device]
        for waiting in self._who_would_be_served(device, holding):
            if waiting.id in self._promised or self._claims(waiting):
                continue
            if self._goes_before(waiting, holding):
                self._promise(device, waiting)
                self._ask(device, f"{waiting.request.user or 'somebody'} waits for it")
                return
            if waiting.request.user != holding.request.user:
                return  # those who follow have even less of a claim

    def _who_would_be_served(self, device: str, holding: Holding) -> Iterator[QueuedRequest]:
        """In service order, if the lease ended now."""
        state = self._state
        view = state.index.views.get(device)
        coming = {device} if view is not None and view.leasable else set()
        groups = state.waiting_groups(coming)
        if state.places_full and holding.request.worker:
            groups |= {group for group in state.waiting_groups(state.free) if group.meaning.worker}
        groups = state.servable(groups, places=holding.request.worker)
        within = state.free | coming
        for line in state.in_order(groups, within, ending=device):
            suiting = state.suiting(line.group, within)
            for waiting in line.queue.values():
                if waiting.id not in self._promised:
                    if state.allowed(waiting, suiting):
                        yield waiting
                    break

    def _goes_before(self, waiting: QueuedRequest, holding: Holding) -> bool:
        return goes_before(self._state, waiting, holding)

    def _lacks_only_a_place(self, waiting: QueuedRequest) -> bool:
        group = waiting.line.group
        return group.meaning.worker and self._state.places_full and bool(self._state.suiting(group, self._state.free))

    def _least_entitled(self, device: str) -> tuple[int, float, float, str]:
        return self._entitlement(device, self._state.held[device])

    def _entitlement(self, name: str, holding: Holding) -> tuple[int, float, float, str]:
        turn = self._state.ledger.turn(holding.request.user, self._state.now_s)
        return holding.request.priority, -turn, holding.since_s, name

    def _claims(self, waiting: QueuedRequest) -> bool:
        """Promise the request a device that was asked for and that nobody is promised; whether there was one."""
        if self._unclaimed.isdisjoint(waiting.line.group.devices):
            return False
        allowed = self._state.allowed(waiting, self._state.suiting(waiting.line.group, self._unclaimed))
        if not allowed:
            return False
        self._promise(min(allowed), waiting)
        return True

    def _promise(self, device: str, waiting: QueuedRequest) -> None:
        self._unclaimed.discard(device)
        self._asked_for[device] = waiting.id
        self._promised[waiting.id] = device

    def _ask(self, device: str, reason: str) -> None:
        del self._look_s[device]
        self._state.held[device] = replace(self._state.held[device], asked=reason)


class CoolingClaims:
    """Makes and ends the claims in `AllocatorState.kept`."""

    def __init__(self, state: AllocatorState) -> None:
        self._state = state
        self._until_s: dict[RequestLine, float] = {}  # ends of the claims of lines that have not been served since
        self._look_s = inf

    def next_check_s(self) -> float | None:
        """When a claim may begin or end because of time alone; None: never."""
        return None if self._look_s == inf else self._look_s

    def decide(self) -> set[str]:
        """End claims and make new ones; returns the devices whose claim has ended, be they claimed by others now."""
        state = self._state
        self._look_s = inf
        if not state.kept and not self._until_s and not any(state.warm.values()):
            return set()
        self._until_s = {line: at_s for line, at_s in self._until_s.items() if line.queue and state.starves(line)}
        before = dict(state.kept)
        for device, kept in tuple(state.kept.items()):
            if not (kept.line in self._until_s and kept.until_s > state.now_s and self._may_have(kept.line, device)):
                del state.kept[device]
        for line, device in self._claims():
            until_s = self._until_s.get(line)
            if until_s is None or until_s <= state.now_s:
                until_s = self._until_s[line] = state.now_s + state.policy.cooling_hold_s
            state.kept[device] = KeptCool(line, until_s)
        for kept in state.kept.values():
            self._look_at(kept.until_s)
        return {device for device, kept in before.items() if state.kept.get(device) != kept}

    def _claims(self) -> Iterator[tuple[RequestLine, str]]:
        """Who claims which device now, those who wait longest first."""
        state = self._state
        claiming = {kept.line for kept in state.kept.values()}
        starving = [line for group in self._groups() for line in self._starving(group) if line not in claiming]
        for line in sorted(starving, key=lambda line: line.turn):
            if not state.ledger.may_hold_more(line.user) or not self._may_claim(line):
                continue
            soon = [device for device in line.group.devices if self._may_have(line, device)]
            lease_class = line.group.meaning.lease_class
            if all(device in state.closed[lease_class] for device in soon):
                warm = [device for device in soon if device in state.warm[lease_class] and device not in state.kept]
                if warm:
                    yield line, min(warm, key=lambda device: (state.opens_at_s(device, lease_class), device))

    def _groups(self) -> Iterator[Group]:
        """Groups with waiting requests that heat keeps from a device, and for none of whose devices that is vain."""
        state = self._state
        for lease_class, warm in state.warm.items():
            if not warm:
                continue
            might_have = state.free.union(filter(state.soon, state.held)) - state.closed[lease_class]
            for group in state.index.waiting_groups(warm):
                if group.meaning.lease_class is lease_class and (
                    state.reservations or group.devices.isdisjoint(might_have)
                ):
                    yield group

    def _starving(self, group: Group) -> Iterator[RequestLine]:
        for line in group.lines.values():
            if not self._state.starves(line):
                self._look_at(line.since_s + self._state.policy.starved_s)
                return  # those behind it began later
            yield line

    def _may_claim(self, line: RequestLine) -> bool:
        """Whether the line has a claim, or has starved anew since its last one ended."""
        until_s, now_s = self._until_s.get(line), self._state.now_s
        if until_s is None or now_s < until_s:
            return True
        again_s = until_s + self._state.policy.starved_s
        if now_s < again_s:
            self._look_at(again_s)
        return now_s >= again_s

    def _may_have(self, line: RequestLine, device: str) -> bool:
        """Whether the line would get the device soon, were it open to it and nobody before it."""
        state = self._state
        return device in line.group.devices and state.soon(device) and bool(state.unreserved(line.first, {device}))

    def _look_at(self, at_s: float) -> None:
        # Rounding may put the moment a hair before the one from which on the answer is another.
        self._look_s = min(self._look_s, max(at_s, nextafter(self._state.now_s, inf)))
