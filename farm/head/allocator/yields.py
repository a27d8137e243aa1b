"""Devices for those who wait: tune leases are asked to yield, and warm devices are kept cool for a queue that starves.

A tune lease is asked once, to give its phone back at the next candidate boundary, for one of four reasons:

- A request waits that would be served if it ended (with its phone, or with its worker slot where that is all that is
  missing), and who then goes before the holder's own next request: by starvation, priority or share. The holder's other
  tune requests are no such reason. A phone is left to a tune lease for `min_slice_s`, and looked at again each
  `min_slice_s` while a request waits, because shares change with time. One lease is asked per request that waits.
- A reservation of others on its phone has begun.
- Its phone has closed to tuning (`DeviceState.closed`): it became too warm.
- Its phone is to cool for a queue that starves (`CoolingClaims`); after `min_slice_s` too.

Worker slots that outlast their leases (`Allocator.slot_kept`) are of tune leases too. When all slots are taken and
a request lacks nothing else and goes before the slot's keeper, that keeper is asked to end: after `min_slice_s`, one
at a time.

A queue that starves while heat closes every phone to it has one of them kept cool. A farm that tuning keeps warm would
else let a benchmark wait without bound: no phone ever cools, and a claim to the next free one is of no use. The rule:

- A queue claims a phone when it has starved, its user may have one more, each phone that it might have soon (free,
  or under a tune lease, which yields) is closed to its class, at least one of them for heat. It claims the one that
  opens soonest. A queue has one claim, a phone is claimed by one queue; the queue that waits longest comes first.
- A claimed phone is kept from all others but those who starve for longer, and people's own leases that do not tune
  (`AllocatorState.claim_against`). A tune lease on it is asked to yield. When a holder gets it that does
  not yield, the queue claims another one.
- The claim lasts until the queue is served, and `cooling_hold_s` at most; then the queue starves again before it claims
  again, so that a phone which cannot cool is of use to others for `starved_s` at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nextafter

from farm.head.allocator.model import Holding
from farm.head.allocator.state import AllocatorState, CoolingClaim
from farm.head.allocator.waiting import Group, QueuedRequest, UserQueue
from farm.head.messages import SlotWanted, YieldWanted
from farm.model.requests import LeaseClass


def goes_before(state: AllocatorState, waiting: QueuedRequest, holding: Holding) -> bool:
    """Whether the request is served before one that the holder of a tune lease would make after yielding."""
    request = waiting.request
    if state.queues.starves(waiting.queue, state.now_s):
        return True
    if request.priority != holding.request.priority:
        return request.priority > holding.request.priority
    if request.user == holding.request.user:
        return request.lease_class is not LeaseClass.TUNE
    ledger, now_s = state.ledger, state.now_s
    own = min(1, ledger.held(holding.request.user))  # a kept worker slot may be all that its keeper has
    holders_use = ledger.weighted_use_of(holding.request.user, now_s, without=own)
    return ledger.weighted_use_of(request.user, now_s) < holders_use


class Yields:
    """Chooses the tune leases that are asked to yield, the requests they yield to, and the time of the next check."""

    def __init__(self, state: AllocatorState) -> None:
        self._state = state
        self._check_s: dict[str, float] = {}  # devices of tune leases not asked yet: when to look at them
        self._asked_for: dict[str, str] = {}  # device of a lease that was asked -> the request that is to be served
        self._promised: dict[str, str] = {}  # and back
        self._unclaimed: set[str] = set()  # devices asked for, whose request was served otherwise or left
        self._slot_check_s = 0.0  # when to look at slots that are kept

    def began(self, device: str) -> None:
        """A lease began."""
        if self._state.held[device].request.lease_class is LeaseClass.TUNE:
            self._check_s[device] = self._state.now_s + self._state.policy.min_slice_s

    def ended(self, device: str) -> None:
        """A lease ended."""
        self._check_s.pop(device, None)
        self._unclaimed.discard(device)
        self._promised.pop(self._asked_for.pop(device, ""), None)

    def request_removed(self, request_id: str) -> None:
        """A request waits no more."""
        device = self._promised.pop(request_id, None)
        if device is not None:
            del self._asked_for[device]
            self._unclaimed.add(device)

    def next_check_s(self) -> float | None:
        """When the next lease is to be checked. None: no request waits, or there is no lease to check."""
        if not self._state.queues.waiting:
            return None
        checks = [*self._check_s.values(), *([self._slot_check_s] if self._state.slots else [])]
        return min(checks, default=None)

    def slot_kept(self) -> None:
        """A worker slot has been parted from its lease."""
        if len(self._state.slots) == 1:
            self._slot_check_s = self._state.now_s + self._state.policy.min_slice_s

    def ask_holders(self, new_request: QueuedRequest | None, *, reserved: bool, changed: str = "") -> None:
        """Ask those for their phones who should yield now.

        Args:
            new_request: has just begun to wait.
            reserved: a window may have begun.
            changed: a device about which anything may be different.
        """
        if not self._check_s:
            return
        if reserved and self._state.reservations:
            self._ask_reserved()
        self._ask_closed(changed)
        self._ask_for_cooling()
        now_s = self._state.now_s
        for device in [device for device, at_s in self._check_s.items() if at_s <= now_s]:
            self._check_s[device] = now_s + self._state.policy.min_slice_s
            self._ask_for_best(device)
        if new_request is not None and new_request.id not in self._promised:  # a check above may have promised it one
            self._ask_for_new_request(new_request)

    def ask_for_slot(self, new_request: QueuedRequest | None) -> None:
        """Ask the keeper of a worker slot to end its work, if one should now."""
        state = self._state
        due = bool(state.slots) and self._slot_check_s <= state.now_s
        if due:
            self._slot_check_s = state.now_s + state.policy.min_slice_s
        if not (due or new_request) or any(slot.asked for slot in state.slots.values()):
            return
        ripe_s = state.now_s - state.policy.min_slice_s
        ripe = {name: slot for name, slot in state.slots.items() if slot.since_s <= ripe_s}
        for waiting, hosts in self._lacking_only_a_slot() if ripe else ():
            able = [name for name, slot in ripe.items() if slot.host in hosts and self._goes_before(waiting, slot)]
            if able:
                name = min(able, key=lambda name: self._entitlement(name, ripe[name]))
                reason = f"{waiting.request.user or 'another user'} waits for its worker slot"
                state.slots[name] = replace(ripe[name], asked=reason)
                state.asked.append(SlotWanted(name))
                return

    def _lacking_only_a_slot(self) -> Iterator[tuple[QueuedRequest, set[str]]]:
        """Requests in service order, without those of users who were promised a phone with its worker slot.

        Each comes with the hosts of which it could use a slot.
        """
        state = self._state
        if not any(state.slots_full(host) for host in state.hosts):
            return
        groups = {group for group in state.waiting_groups(state.free) if group.terms.worker}
        for queue in state.in_order(groups, state.free):
            suiting = state.suiting(queue.group, state.free)
            for waiting in queue.requests.values():
                if waiting.id in self._promised:
                    continue
                if (allowed := state.allowed(waiting, suiting)) and not state.with_slot(queue.group, allowed):
                    yield waiting, self._hosts_in_order(allowed)
                    break

    def _ask_reserved(self) -> None:
        reservations = self._state.reservations
        for device in tuple(self._check_s):
            # A lease of no length at all: only a window that has begun is in its way.
            window = reservations.obstacle(device, self._state.held[device].request.user, 0.0, self._state.now_s)
            if window is not None:
                self._ask(device, f"it is reserved for {', '.join(sorted(window.users))}")
                self._unclaimed.add(device)

    def _ask_closed(self, device: str) -> None:
        view = self._state.index.views.get(device)
        if device in self._check_s and view is not None and LeaseClass.TUNE in view.closed:
            self._ask(device, str(view.closed[LeaseClass.TUNE]))
            self._unclaimed.add(device)

    def _ask_for_cooling(self) -> None:
        ripe_s = self._state.now_s - self._state.policy.min_slice_s
        for device, claim in self._state.cooling_claims.items():
            if device in self._check_s and self._state.held[device].since_s <= ripe_s:
                self._ask(device, f"it is to cool for {claim.owner}")
                self._unclaimed.add(device)

    def _ask_for_new_request(self, new_request: QueuedRequest) -> None:
        state = self._state
        if not state.ledger.may_hold_more(new_request.request.user) or self._promise_unclaimed(new_request):
            return
        ripe_s = state.now_s - state.policy.min_slice_s
        reach = state.allowed(new_request, state.suiting(new_request.queue.group, self._check_s.keys()))
        if hosts := self._hosts_that_lack_a_slot(new_request):
            holders = ((device, state.held[device]) for device in self._check_s)
            reach = {device for device, each in holders if each.request.worker and each.host in hosts}
        able = [
            device
            for device in reach
            if (holding := state.held[device]).since_s <= ripe_s and self._goes_before(new_request, holding)
        ]
        for device in sorted(able, key=self._least_entitled):
            if new_request.id in self._promised:
                return
            self._ask_for_best(device)

    def _ask_for_best(self, device: str) -> None:
        """Ask the holder of `device` to yield to the first entitled request that is promised nothing yet."""
        holding = self._state.held[device]
        for waiting in self._next_served(device, holding):
            if waiting.id in self._promised or self._promise_unclaimed(waiting):
                continue
            if self._goes_before(waiting, holding):
                self._promise(device, waiting)
                self._ask(device, f"{waiting.request.user or 'another user'} waits for it")
                return
            if waiting.request.user != holding.request.user:
                return  # those who follow have even less of a claim

    def _next_served(self, device: str, holding: Holding) -> Iterator[QueuedRequest]:
        """In service order, if the lease ended now."""
        state = self._state
        view = state.index.views.get(device)
        coming = {device} if view is not None and view.leasable else set()
        groups = state.waiting_groups(coming)
        freed = holding.host if holding.request.worker else None
        if freed is not None and state.slots_full(freed):
            groups |= {group for group in state.waiting_groups(state.free) if group.terms.worker}
        groups = state.with_free_slot(groups, freed=freed)
        within = state.free | coming
        for queue in state.in_order(groups, within, ending=device):
            suiting = state.with_slot(queue.group, state.suiting(queue.group, within), freed=freed)
            for waiting in queue.requests.values():
                if waiting.id not in self._promised:
                    if state.allowed(waiting, suiting):
                        yield waiting
                    break

    def _goes_before(self, waiting: QueuedRequest, holding: Holding) -> bool:
        return goes_before(self._state, waiting, holding)

    def _hosts_that_lack_a_slot(self, waiting: QueuedRequest) -> set[str]:
        """The hosts of free devices that suit the request, which lacks only a worker slot; none if it does not."""
        state, group = self._state, waiting.queue.group
        suiting = state.suiting(group, state.free)
        return set() if state.with_slot(group, suiting) else self._hosts_in_order(suiting)

    def _hosts_in_order(self, devices: set[str]) -> set[str]:
        """The devices' hosts on which one worker that ends makes room for another."""
        return {host for device in devices if not self._state.stopped(host := self._state.host_of(device))}

    def _least_entitled(self, device: str) -> tuple[int, float, float, str]:
        return self._entitlement(device, self._state.held[device])

    def _entitlement(self, name: str, holding: Holding) -> tuple[int, float, float, str]:
        use = self._state.ledger.weighted_use_of(holding.request.user, self._state.now_s)
        return holding.request.priority, -use, holding.since_s, name

    def _promise_unclaimed(self, waiting: QueuedRequest) -> bool:
        """Promise the request a device that was asked for and is promised to no request; whether there was one."""
        if self._unclaimed.isdisjoint(waiting.queue.group.devices):
            return False
        allowed = self._state.allowed(waiting, self._state.suiting(waiting.queue.group, self._unclaimed))
        if not allowed:
            return False
        self._promise(min(allowed), waiting)
        return True

    def _promise(self, device: str, waiting: QueuedRequest) -> None:
        self._unclaimed.discard(device)
        self._asked_for[device] = waiting.id
        self._promised[waiting.id] = device

    def _ask(self, device: str, reason: str) -> None:
        del self._check_s[device]
        self._state.held[device] = replace(self._state.held[device], asked=reason)
        self._state.asked.append(YieldWanted(device))


class CoolingClaims:
    """Makes and ends the claims in `AllocatorState.cooling_claims`."""

    def __init__(self, state: AllocatorState) -> None:
        self._state = state
        self._until_s: dict[UserQueue, float] = {}  # ends of the claims of queues that have not been served since
        self._check_s = inf

    def next_check_s(self) -> float | None:
        """When a claim may begin or end because of time alone; None: never."""
        return None if self._check_s == inf else self._check_s

    def decide(self) -> set[str]:
        """End claims and make new ones; returns the devices whose claim has ended, be they claimed by others now."""
        state = self._state
        self._check_s = inf
        if not state.cooling_claims and not self._until_s and not any(state.warm.values()):
            return set()
        self._until_s = {
            queue: at_s for queue, at_s in self._until_s.items() if queue.requests and state.starves(queue)
        }
        before = dict(state.cooling_claims)
        for device, claim in tuple(state.cooling_claims.items()):
            current = claim.queue in self._until_s and claim.until_s > state.now_s
            if not (current and self._may_have(claim.queue, device)):
                del state.cooling_claims[device]
        for queue, device in self._claims():
            until_s = self._until_s.get(queue)
            if until_s is None or until_s <= state.now_s:
                until_s = self._until_s[queue] = state.now_s + state.policy.cooling_hold_s
            state.cooling_claims[device] = CoolingClaim(queue, until_s)
        for claim in state.cooling_claims.values():
            self._check_at(claim.until_s)
        return {device for device, claim in before.items() if state.cooling_claims.get(device) != claim}

    def _claims(self) -> Iterator[tuple[UserQueue, str]]:
        """The queues that claim a device now, with it; the longest waiting first."""
        state = self._state
        claiming = {claim.queue for claim in state.cooling_claims.values()}
        starving = [queue for group in self._groups() for queue in self._starving(group) if queue not in claiming]
        for queue in sorted(starving, key=lambda queue: queue.served_order):
            if not state.ledger.may_hold_more(queue.user) or not self._may_claim(queue):
                continue
            soon = [device for device in queue.group.devices if self._may_have(queue, device)]
            lease_class = queue.group.terms.lease_class
            if all(device in state.closed[lease_class] for device in soon):
                unclaimed = state.warm[lease_class] - state.cooling_claims.keys()
                warm = [device for device in soon if device in unclaimed]
                if warm:
                    yield queue, min(warm, key=lambda device: (state.opens_at_s(device, lease_class), device))

    def _groups(self) -> Iterator[Group]:
        """Groups with waiting requests that heat keeps from a device, and for none of whose devices that is vain."""
        state = self._state
        for lease_class, warm in state.warm.items():
            if not warm:
                continue
            might_have = state.free.union(filter(state.soon, state.held)) - state.closed[lease_class]
            for group in state.index.waiting_groups(warm):
                if group.terms.lease_class is lease_class and (
                    state.reservations or group.devices.isdisjoint(might_have)
                ):
                    yield group

    def _starving(self, group: Group) -> Iterator[UserQueue]:
        for queue in group.queues.values():
            if not self._state.starves(queue):
                self._check_at(queue.since_s + self._state.policy.starved_s)
                return  # those behind it began later
            yield queue

    def _may_claim(self, queue: UserQueue) -> bool:
        """Whether the queue has a claim, or has starved again since its last one ended."""
        until_s, now_s = self._until_s.get(queue), self._state.now_s
        if until_s is None or now_s < until_s:
            return True
        again_s = until_s + self._state.policy.starved_s
        if now_s < again_s:
            self._check_at(again_s)
        return now_s >= again_s

    def _may_have(self, queue: UserQueue, device: str) -> bool:
        """Whether the queue would get the device soon, were it open to it and no queue before it."""
        state = self._state
        return device in queue.group.devices and state.soon(device) and bool(state.unreserved(queue.first, {device}))

    def _check_at(self, at_s: float) -> None:
        # Rounding may put the moment a hair before the one from which on the answer is another.
        self._check_s = min(self._check_s, max(at_s, nextafter(self._state.now_s, inf)))
