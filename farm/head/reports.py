"""Reports about leases: the tracker's summary, why a request waits, and who used which device. Pure functions."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from farm.common.causes import brief
from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.explain import AVOIDED, NOT_IDENTICAL
from farm.head.model import Explanation, WaitingRequest
from farm.model.device import DeviceState
from farm.model.requests import LeaseRequest
from farm.model.sessions import FleetSummary, KeyRow, ServerRow
from farm.store.leases import UsageRow

SEARCHED = 1000  # foremost requests that an explanation looks at one by one: 3 ms
WAITING_SHOWN = 10  # of the requests that an explanation is about; a team's queue may have 100,000
_KIND_ENDS = re.compile(r": | by | for | [0-9]")  # what follows says which and how much


def asked_for(request: LeaseRequest) -> str:
    """The name of the devices that a request means: the stock key, the selector, or the one device."""
    return request.key or str(request.selector) or request.device


def summarise(devices: Iterable[DeviceState], held: Container[str], pending: Mapping[str, int]) -> FleetSummary:
    """The tracker's rows: a server per (device in service, alias), free and waiting per key."""
    free: Counter[str] = Counter()
    servers: list[ServerRow] = []
    for view in devices:
        if not view.in_service:
            continue
        leasable = view.leasable and view.name not in held
        for alias in dict.fromkeys(view.aliases):
            servers.append(ServerRow(alias, view.name))
            free[alias] += leasable
    keys = tuple(KeyRow(key, free[key], pending.get(key, 0)) for key in sorted(free.keys() | pending.keys()))
    return FleetSummary(keys, tuple(servers))


def merged(parts: Iterable[FleetSummary]) -> FleetSummary:
    """The tracker's rows of several hosts."""
    free: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    servers: list[ServerRow] = []
    for part in parts:
        servers += part.servers
        for row in part.keys:
            free[row.key] += row.free
            pending[row.key] += row.pending
    keys = tuple(KeyRow(key, free[key], pending[key]) for key in sorted(free.keys() | pending.keys()))
    return FleetSummary(keys, tuple(servers))


def explain(
    allocator: Allocator,
    subject: str,
    made_now: LeaseRequest,
    foremost: Sequence[WaitingRequest],
    wanted: Mapping[tuple[Selector, str], int],
    now_s: float,
) -> Explanation:
    """Why requests for `subject` (a device name, a TVM key or a selector) wait, and what `made_now` would get.

    The devices' reasons are those of `made_now`, whatever keeps those that wait. For a device name, the
    requests that could get this device are listed, and only this device's reason.

    Args:
        allocator: who decides.
        subject: what is asked about.
        made_now: a request of the user who asks; `subject` gives it its selector and device.
        foremost: requests that wait, in the order they would be served; of many, the first.
        wanted: how many wait in all, by what they mean.
        now_s: monotonic seconds.

    Raises:
        UserError: `subject` is no selector.
    """
    device = subject if subject in allocator.devices else ""
    selector = Selector() if device else Selector.parse(subject)
    named = allocator.matching(selector, device)
    concerned = {
        asked: count
        for asked, count in wanted.items()
        if asked[0] == selector or not named.isdisjoint(allocator.matching(*asked))
    }
    waiting = [each for each in foremost if (each.request.selector, each.request.device) in concerned]
    exact = next((each for each in waiting if each.request.selector == selector and not device), None)
    request = replace(made_now, selector=selector, device=device)
    shown = tuple(replace(each, why=obstacle_of(allocator, each.request, now_s)) for each in waiting[:WAITING_SHOWN])
    return Explanation(
        subject,
        shown,
        tuple(reason for reason in allocator.explain(request, now_s) if reason.matches or not device),
        None if exact is None else allocator.estimate_s(exact.id, now_s),
        sum(concerned.values()) - len(shown),
        allocator.limits(request),
    )


def explain_waiting(allocator: Allocator, waiting: WaitingRequest, now_s: float) -> Explanation:
    """Why this one request waits."""
    return Explanation(
        asked_for(waiting.request),
        (waiting,),
        allocator.explain(waiting.request, now_s, waiting.id),
        allocator.estimate_s(waiting.id, now_s),
        limits=allocator.limits(waiting.request),
    )


def why(allocator: Allocator, waiting: Mapping[str, WaitingRequest | None], now_s: float) -> dict[str, str]:
    """The obstacle of each of these requests, by id, in one sentence; empty for None, which does not wait."""
    reasons: dict[LeaseRequest, str] = {}  # a thousand jobs of one user mean the same phones: look at them once
    sentences = {}
    for request_id, each in waiting.items():
        if each is None:
            sentences[request_id] = ""
            continue
        holds_others = each.request.only is not None  # its job has phones already, and waits for more
        alike = each.request if holds_others else replace(each.request, job="")
        if alike not in reasons:
            reasons[alike] = obstacle_of(allocator, alike, now_s)
        sentences[request_id] = reasons[alike]
    return sentences


def obstacle_of(allocator: Allocator, request: LeaseRequest, now_s: float) -> str:
    """The cause of a request's waiting: its own limits, else the devices that suit it."""
    own = _held_by_job(allocator, request)
    reasons = {each.device: each.reason for each in allocator.obstacles(request, now_s) if each.device not in own}
    if not reasons and own:
        return "no other phone is identical"
    if not reasons:
        avoided = allocator.matching(request.selector, request.device)
        if not avoided:
            return brief(f"no phone matches {asked_for(request)}")
        reasons = dict.fromkeys(avoided, AVOIDED if request.only is None else NOT_IDENTICAL)
    if limits := allocator.limits(request):
        return brief(limits[0])
    return in_short(reasons)


def in_short(reasons: Mapping[str, str]) -> str:
    """The reasons of several devices in one line: that of a single one, else how many have which."""
    if len(reasons) == 1:
        ((device, reason),) = reasons.items()
        return brief(f"{device}: {reason}")
    if len(alike := set(reasons.values())) == 1:
        return brief(f"all {len(reasons)} phones: {alike.pop()}")
    kinds = Counter(_KIND_ENDS.split(reason, maxsplit=1)[0] for reason in reasons.values())
    return brief(f"{len(reasons)} phones: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))


def _held_by_job(allocator: Allocator, request: LeaseRequest) -> frozenset[str]:
    """The devices that the job of this request has already, when it is one that has several at once."""
    if request.only is None:
        return frozenset()
    return frozenset(name for name, holding in allocator.held.items() if holding.request.job == request.job)


# --- use ---


class UsageGrouping(StrEnum):
    """The subject of a sum of use."""

    USER = "user"
    DEVICE = "device"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The use of one user, device or source within a window."""

    name: str
    held_s: float  # device-seconds of leases, to the millisecond
    cleaned_s: float  # device-seconds of cleaning and checking after them
    leases: int
    jobs: int


def summed(rows: Iterable[UsageRow], jobs: Mapping[str, int], by: UsageGrouping) -> tuple[UsageSum, ...]:
    """Rows summed by user, device or source, the most used first.

    `jobs` are those that each `by` began within the window; a user who only waited has no row of use but has jobs.
    """
    held: defaultdict[str, float] = defaultdict(float)
    cleaned: defaultdict[str, float] = defaultdict(float)
    leases: Counter[str] = Counter()
    for row in rows:
        name = {UsageGrouping.USER: row.user, UsageGrouping.DEVICE: row.device, UsageGrouping.SOURCE: row.source.value}[
            by
        ]
        held[name] += row.held_s
        cleaned[name] += row.cleaned_s
        leases[name] += row.leases
    names = sorted(held.keys() | jobs.keys(), key=lambda name: (-held[name] - cleaned[name], name))
    return tuple(
        UsageSum(name, round(held[name], 3), round(cleaned[name], 3), leases[name], jobs.get(name, 0)) for name in names
    )
