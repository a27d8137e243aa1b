"""What leasing shows: the tracker's summary and the explanation of a wait. Pure functions over the allocator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from farm.core.allocator import Allocator
from farm.core.device import DeviceView, Life, Service
from farm.core.requests import Door, LeaseRequest
from farm.core.selector import Selector
from farm.core.sessions import FleetSummary, KeyRow, ServerRow
from farm.leasing.model import Explanation, WaitingRequest

# A device on its way back to READY by itself: in service, only not now.
MENDING = frozenset({Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING})
WAITING_SHOWN = 10  # of the requests that an explanation is about; a team's queue may have 100,000
REASONS_IN_SHORT = 2  # of a sentence about a job


def asked_for(request: LeaseRequest) -> str:
    """What people call the devices that a request means: the stock key, the selector, or the one device."""
    return request.key or str(request.selector) or request.device


def summarise(allocator: Allocator, pending: Mapping[str, int]) -> FleetSummary:
    """The tracker's rows: a server per (device in service, alias), free and waiting per key."""
    free: Counter[str] = Counter()
    servers: list[ServerRow] = []
    for view in allocator.devices.values():
        if not _in_service(view):
            continue
        leasable = view.leasable and view.name not in allocator.held
        for alias in dict.fromkeys(view.aliases):
            servers.append(ServerRow(alias, view.name))
            free[alias] += leasable
    keys = tuple(KeyRow(key, free[key], pending.get(key, 0)) for key in sorted(free.keys() | pending.keys()))
    return FleetSummary(keys, tuple(servers))


def explain(allocator: Allocator, subject: str, waiting: Sequence[WaitingRequest], now_s: float) -> Explanation:
    """Why requests for `subject` (a device name, a TVM key or a selector) wait, or would.

    The reasons are those of the foremost waiting request for exactly `subject`, else of one that would come now. For a
    device name, the requests that could get this device are listed, and only this device's reason.

    Raises:
        UserError: `subject` is no selector.
    """
    device = subject if subject in allocator.devices else ""
    selector = Selector() if device else Selector.parse(subject)
    named = allocator.matching(selector, device)

    @cache
    def concerns(wanted: Selector, wanted_device: str) -> bool:
        return wanted == selector or bool(named & allocator.matching(wanted, wanted_device))

    concerned = [each for each in waiting if concerns(each.request.selector, each.request.device)]
    foremost = next((each for each in concerned if each.request.selector == selector and not device), None)
    if foremost is None:
        reasons = allocator.explain(LeaseRequest(selector, "", Door.JOB, device=device), now_s)
    else:
        reasons = allocator.explain(foremost.request, now_s, foremost.id)
    return Explanation(
        subject,
        tuple(concerned[:WAITING_SHOWN]),
        tuple(reason for reason in reasons if reason.matches or not device),
        None if foremost is None else allocator.estimate_s(foremost.id, now_s),
        max(0, len(concerned) - WAITING_SHOWN),
    )


def explain_waiting(allocator: Allocator, waiting: WaitingRequest | None, now_s: float) -> Explanation | None:
    """Why this one request waits."""
    if waiting is None:
        return None
    return Explanation(
        asked_for(waiting.request),
        (waiting,),
        allocator.explain(waiting.request, now_s, waiting.id),
        allocator.estimate_s(waiting.id, now_s),
    )


def shortly(explained: Explanation) -> str:
    """One sentence: what keeps the likeliest devices."""
    reasons = [f"{each.device}: {each.reason}" for each in explained.devices if each.matches]
    if not reasons:
        return f"no phone matches {explained.subject}"
    more = len(reasons) - REASONS_IN_SHORT
    return "; ".join(reasons[:REASONS_IN_SHORT]) + (f"; and {more} more" if more > 0 else "")


def _in_service(view: DeviceView) -> bool:
    return view.adopted and view.service is Service.IN and (view.life is Life.READY or view.life in MENDING)
