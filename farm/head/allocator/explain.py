"""Why a request has not got a device, and when it will. Reads the allocator's state, changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf

from farm.common.causes import brief
from farm.common.selector import natural
from farm.head.allocator.model import DeviceReason, Holding
from farm.head.allocator.reservations import Reservation
from farm.head.allocator.state import AllocatorState, CoolingClaim
from farm.head.allocator.waiting import Group, QueuedRequest, RequestTerms
from farm.head.allocator.yields import goes_before
from farm.model.device import DeviceState, Heat, Life, Service
from farm.model.health import ReleaseRule
from farm.model.requests import LeaseClass, LeaseRequest

NAMED_USERS = 3  # in one reason
YIELDED_S = 15.0  # of a tune lease that was asked: its candidate ends within 10 s by default, and the phone is cleaned
NOT_IDENTICAL = "it is not identical to the other phones of its job"
FREE = "free"
AVOIDED = "it failed this job, or a sibling has it"


class Cause(StrEnum):
    """Why another request is served first; the value completes "N ..."."""

    STARVED = "that waited too long"
    PRIORITY = "of higher priority"
    SHARE = "of users who have had less"
    OWN = "of the same user, older"


@dataclass(slots=True)
class _Ahead:
    """The requests of one group that are served before the one explained."""

    causes: Counter[Cause] = field(default_factory=Counter)
    users: set[str] = field(default_factory=set)  # those who have had less


def in_order(state: AllocatorState) -> Iterator[QueuedRequest]:
    """Every waiting request, as they would be served were every device equal and shares to stay as they are."""
    starving = [queue.first for queue in state.queues.starving(state.now_s)]
    yield from starving
    seen = set(starving)
    for _, _, _, requests in state.queues.by_user(state.now_s, state.ledger.weighted_use):
        yield from (waiting for waiting in requests if waiting not in seen)


def explain(state: AllocatorState, request: LeaseRequest, request_id: str, now_s: float) -> tuple[DeviceReason, ...]:
    """Per device, why `request` has not got it: those that are free first, then those it could ever get."""
    now_s = max(now_s, state.now_s)
    waiting = state.queues.waiting.get(request_id)
    terms = RequestTerms.of(request)
    ahead: dict[Group, _Ahead] = {}
    # Needed for leased devices; where none is, a team's 100,000 jobs need not be looked at.
    queued = not state.held.keys().isdisjoint(state.index.matching(terms))
    for other, cause in _ahead_of(state, request, waiting, now_s) if queued else ():
        if state.ledger.may_hold_more(other.request.user):
            there = ahead.setdefault(other.queue.group, _Ahead())
            there.causes[cause] += 1
            if cause is Cause.SHARE:
                there.users.add(other.request.user)
    reasons = []
    for view in state.index.views.values():
        if terms.suits(view):
            facts = _facts(state, request, view, now_s, waiting)
            if view.name in state.held:
                facts.append(_queue(there for group, there in ahead.items() if view.name in group.devices))
            reasons.append(_reason(view, facts))
        else:
            mismatch = _mismatch(request, view)
            passes = mismatch in (NOT_IDENTICAL, AVOIDED)
            reasons.append(DeviceReason(view.name, matches=False, reason=mismatch, host=view.host, operator=not passes))
    return tuple(
        sorted(reasons, key=lambda reason: (not reason.matches, reason.reason != FREE, natural(reason.device)))
    )


def obstacles(state: AllocatorState, request: LeaseRequest, now_s: float) -> tuple[DeviceReason, ...]:
    """Per device that suits `request`, what keeps it; other requests are left out."""
    now_s = max(now_s, state.now_s)
    reasons = []
    for name in sorted(state.index.matching(RequestTerms.of(request)), key=natural):
        view = state.index.views[name]
        reasons.append(replace(_reason(view, _facts(state, request, view, now_s)), host=""))
    return tuple(reasons)


def _reason(view: DeviceState, facts: Iterable[str]) -> DeviceReason:
    """What keeps a device that suits a request: the first fact is the cause."""
    cause, *more = *filter(None, facts), ""
    hint = needs_operator(view)
    return DeviceReason(
        view.name, matches=True, reason=cause or FREE, host=view.host, operator=bool(hint), hint=hint,
        evidence="\n".join(filter(None, more)),
    )  # fmt: skip


def needs_operator(view: DeviceState) -> str:
    """The command by which a person makes the device available; "" where it becomes so without, or is away."""
    if not view.adopted:
        return "" if view.withheld else f"farm device adopt {view.name}"
    kept = view.life is Life.QUARANTINED and view.released == ReleaseRule.PERSON.ends(view.name)
    return f"farm device release {view.name}" if kept or view.service is not Service.IN else ""


def estimate_s(state: AllocatorState, request_id: str, now_s: float) -> float | None:
    """Seconds until the request is served if holders take their time and the order stays; None: unknown.

    Tune leases that yield to it (farm.head.allocator.yields) take their time until they are asked, and `YIELDED_S`.

    Each device that suits it, and each worker slot if it needs one, is followed from its present holder through those
    who are ahead; one held for an unknown time counts as never given back.
    """
    waiting = state.queues.waiting.get(request_id)
    if waiting is None or state.paused:
        return None
    now_s = max(now_s, state.now_s)
    request, group = waiting.request, waiting.queue.group
    before = [other for other, _ in _ahead_of(state, request, waiting, now_s)]
    ahead = [other.request for other in before]
    rivals = [other.request for other in before if not other.queue.group.devices.isdisjoint(group.devices)]
    served_s = [_turn_s((_available_s(state, name, waiting, now_s) for name in group.devices), rivals)]
    if request.worker:
        spare = [now_s] * state.spare_slots
        ends = [_given_back_s(state, each, waiting, now_s) for each in state.held.values() if each.request.worker]
        kept = [_given_back_s(state, slot, waiting, now_s) for slot in state.slots.values()]
        served_s.append(_turn_s((*spare, *ends, *kept), (other for other in ahead if other.worker)))
    if not state.ledger.may_hold_more(request.user):
        own = (_ends_s(holding, now_s) for holding in state.held.values() if holding.request.user == request.user)
        served_s.append(_turn_s(own, (other for other in ahead if other.user == request.user)))
    known = [at_s for at_s in served_s if at_s is not None]
    return max(known) - now_s if len(known) == len(served_s) else None


def unleasable_reason(view: DeviceState, lease_class: LeaseClass) -> str:
    """The cause for which an adopted device cannot be handed out to the class; empty when it can."""
    return brief("; ".join(_unleasable(view, lease_class)))


def _unleasable(view: DeviceState, lease_class: LeaseClass) -> list[str]:
    """Why an adopted device cannot be handed out to the class; nothing when it can."""
    facts = []
    if view.life is not Life.READY:
        facts.append(view.life.value + (f": {view.reason}" if view.reason else ""))
    if view.service is not Service.IN:
        facts.append(view.service.value)
    closed = view.closed.get(lease_class)
    if closed is not None:
        facts.append(str(closed))
    elif view.heat is not Heat.OK:
        facts.append(view.heat.value)
    if view.withheld:
        facts.append(view.withheld)
    return facts


# --- the queue --------------------------------------------------------------------------------------------------------


def _ahead_of(
    state: AllocatorState, request: LeaseRequest, waiting: QueuedRequest | None, now_s: float
) -> Iterator[tuple[QueuedRequest, Cause]]:
    """The requests that are served before, in order; `waiting` is None for a request that would come now."""
    seen = set()
    for queue in state.queues.starving(now_s):
        if queue.first is waiting:
            return
        seen.add(queue.first)
        yield queue.first, Cause.STARVED
    use = state.ledger.weighted_use_of(request.user, now_s)
    for priority, user, their_use, others in state.queues.by_user(now_s, state.ledger.weighted_use):
        rank = (-priority, their_use)
        own = priority == request.priority and user == request.user
        if not own and rank > (-request.priority, use):
            return
        cause = Cause.OWN if own else Cause.SHARE if priority == request.priority else Cause.PRIORITY
        for other in others:
            if other is waiting:
                return
            if other not in seen:
                yield other, cause
        if own:
            return


def _queue(groups: Iterable[_Ahead]) -> str:
    causes: Counter[Cause] = Counter()
    users: set[str] = set()
    for there in groups:
        causes += there.causes
        users |= there.users
    if not causes:
        return ""
    parts = [f"{causes[cause]} {cause}" for cause in Cause if causes[cause]]
    if users:
        names = sorted(user or "another user" for user in users)
        more = f" and {len(names) - NAMED_USERS} more" if len(names) > NAMED_USERS else ""
        parts = [part + f" ({', '.join(names[:NAMED_USERS])}{more})" * part.endswith(Cause.SHARE) for part in parts]
    return f"behind {', '.join(parts)}"


def _turn_s(available_s: Iterable[float | None], before: Iterable[LeaseRequest]) -> float | None:
    """When something is left for the one after `before`; each holds the earliest one for its `longest_s`."""
    times = [at_s for at_s in available_s if at_s is not None]
    heapify(times)
    for request in before:
        if not times:
            return None
        at_s = heappop(times)
        if request.longest_s is not None:
            heappush(times, at_s + request.longest_s)
    return times[0] if times else None


# --- one device -------------------------------------------------------------------------------------------------------


def limits(state: AllocatorState, request: LeaseRequest) -> tuple[str, ...]:
    """Why the request could get no device at all, whatever the devices do."""
    facts = []
    if state.paused:
        facts.append(f"nothing is handed out: {state.paused}")
    ledger = state.ledger
    if not ledger.may_hold_more(request.user):
        held, limit = ledger.held(request.user), ledger.quota(request.user).devices
        facts.append(f"{request.user} holds {held} device{'s' * (held != 1)} of at most {limit}")
    if request.worker and all(state.slots_full(host) for host in state.hosts):
        taken = f"all {state.policy.workers} worker slots are taken" + " on each host" * (len(state.hosts) > 1)
        facts.append(next(filter(None, map(state.stopped, sorted(state.hosts))), taken))
    return tuple(facts)


def _facts(
    state: AllocatorState, request: LeaseRequest, view: DeviceState, now_s: float, waiting: QueuedRequest | None = None
) -> list[str]:
    if not view.adopted:
        return [view.withheld or "not adopted"]
    holding = state.held.get(view.name)
    facts = (
        list(_held(state, holding, waiting, now_s)) if holding is not None else _unleasable(view, request.lease_class)
    )
    if holding is not None and view.withheld:
        facts.append(view.withheld)
    if holding is not None and (closed := view.closed.get(request.lease_class)) is not None:
        facts.append(str(closed))
    if request.worker and view.host and state.slots_full(view.host):
        taken = f"all {state.policy.workers} worker slots of {view.host} are taken"
        facts.append(state.stopped(view.host) or taken)
    if request.quiet_hub and (beside := state.leased_beside(view.name)):
        facts.append(f"{', '.join(beside)} on the same hub {'is' if len(beside) == 1 else 'are'} in use")
    facts.extend(
        f"its hub is kept quiet for {state.held[other].request.user or 'another user'}, who has {other}"
        for other in state.quiet_beside(view.name, request.user)
    )
    if claim := state.claim_against(view.name, RequestTerms.of(request), None if waiting is None else waiting.queue):
        facts.append(_cooling(state, view.name, claim, now_s))
    elif waiting is not None and (own := state.cooling_claims.get(view.name)) and own.queue is waiting.queue:
        facts.append(f"kept cool for it, {_span(own.until_s - now_s)} more at most")
    window = state.reservations.obstacle(view.name, request.user, request.longest_s, now_s)
    if window is not None:
        facts.append(_reserved(window, request, now_s))
    return facts


def _held(state: AllocatorState, holding: Holding, waiting: QueuedRequest | None, now_s: float) -> Iterator[str]:
    tunes = holding.request.lease_class is LeaseClass.TUNE
    user = holding.request.user or "another user"
    text = f"held by {user}'s tuning" if tunes else f"held by {user}"
    yield f"{text} for {_span(now_s - holding.since_s)}"
    if holding.asked:
        yield "asked to give it back: before its next candidate, or at its end"
        return
    asked_s = _asked_s(state, holding, waiting, now_s)
    if asked_s is not None and (holding.ends_s is None or asked_s < holding.ends_s):
        yield f"asked to give it back in {_span(asked_s - now_s)} at the latest"
    elif holding.ends_s is not None and (waiting is not None or not tunes):  # a tuning may last a day, and yields
        yield f"{_span(holding.ends_s - now_s)} more at most"


def _cooling(state: AllocatorState, device: str, claim: CoolingClaim, now_s: float) -> str:
    lease_class = claim.queue.group.terms.lease_class
    opens_in_s = state.opens_at_s(device, lease_class) - now_s if device in state.closed[lease_class] else inf
    if 0 < opens_in_s < claim.until_s - now_s:
        return f"kept cool for {claim.owner}, about {_span(opens_in_s)}"
    return f"kept cool for {claim.owner}, {_span(claim.until_s - now_s)} at most"


def _reserved(window: Reservation, request: LeaseRequest, now_s: float) -> str:
    users = ", ".join(sorted(window.users))
    if window.starts_s <= now_s:
        return f"reserved for {users} for another {_span(window.ends_s - now_s)}"
    length = "how long it takes is unknown" if request.longest_s is None else f"it may take {_span(request.longest_s)}"
    return f"reserved for {users} in {_span(window.starts_s - now_s)}, and {length}"


def _mismatch(request: LeaseRequest, view: DeviceState) -> str:
    if request.device and request.device != view.name:
        return f"only {request.device} is wanted"
    mismatch = request.selector.explain(view.labels, view.aliases)
    if not mismatch and request.only is not None and view.name not in request.only:
        return NOT_IDENTICAL
    return mismatch or AVOIDED


def _available_s(state: AllocatorState, device: str, waiting: QueuedRequest, now_s: float) -> float | None:
    """When the device comes free for this request, if no other request gets it."""
    request = waiting.request
    view = state.index.views[device]
    holding = state.held.get(device)
    closed = view.closed.get(request.lease_class)
    cools = view.heat is not Heat.OK and closed is not None  # then `closed` knows how long
    leasable = replace(view, heat=Heat.OK).leasable if cools else view.leasable
    if not view.adopted or view.service is not Service.IN or view.withheld or (holding is None and not leasable):
        return None
    at_s = now_s if holding is None else _given_back_s(state, holding, waiting, now_s)
    beside = state.leased_beside(device) if request.quiet_hub else state.quiet_beside(device, request.user)
    for other in beside:
        quiet_s = _given_back_s(state, state.held[other], waiting, now_s)
        at_s = None if at_s is None or quiet_s is None else max(at_s, quiet_s)
    if at_s is not None and (claim := state.claim_against(device, waiting.queue.group.terms, waiting.queue)):
        at_s = max(at_s, claim.until_s)
    if at_s is not None and closed is not None:
        opens_s = closed.opens_in_s
        begins_s = state.closed_at_s[device] if holding is None else at_s  # while it is leased, it stays warm
        at_s = None if opens_s is None else max(at_s, begins_s + opens_s)
    if at_s is None or state.reservations.obstacle(device, request.user, request.longest_s, at_s) is None:
        return at_s
    return state.reservations.free_again_s(device, request.user, at_s)


def _asked_s(state: AllocatorState, holding: Holding, waiting: QueuedRequest | None, now_s: float) -> float | None:
    """When a tune lease is asked, at the latest, to make way for a request; None: for this one it is not."""
    if holding.request.lease_class is not LeaseClass.TUNE or waiting is None:
        return None
    if holding.asked:
        return now_s
    policy = state.policy
    check_s = max(holding.since_s + policy.min_slice_s, now_s)
    if goes_before(state, waiting, holding):
        return check_s if check_s > now_s else now_s + policy.min_slice_s
    if waiting.queue.first is waiting:  # once it has starved it goes before the holder of the phone
        return max(check_s, waiting.queue.since_s + policy.starved_s + policy.min_slice_s)
    return None


def _given_back_s(state: AllocatorState, holding: Holding, waiting: QueuedRequest, now_s: float) -> float | None:
    """When what is held is given back at the latest, if it is this request that waits for it; None: unknown."""
    asked_s, ends_s = _asked_s(state, holding, waiting, now_s), _ends_s(holding, now_s)
    known = [at_s for at_s in (None if asked_s is None else asked_s + YIELDED_S, ends_s) if at_s is not None]
    return min(known, default=None)


def _ends_s(holding: Holding, now_s: float) -> float | None:
    return None if holding.ends_s is None else max(now_s, holding.ends_s)


def _span(seconds: float) -> str:
    """A duration for a person."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
