"""What leasing shows: the tracker's summary and the explanation of a wait. Pure functions over the allocator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from farm.core.allocator import Allocator
from farm.core.allocator_events import DeviceReason
from farm.core.device import DeviceView, Life, Service
from farm.core.requests import Door, LeaseRequest
from farm.core.selector import Selector
from farm.core.sessions import FleetSummary, KeyRow, ServerRow
from farm.leasing.model import Explanation, Holder, WaitingRequest

# A device on its way back to READY by itself: in service, only not now.
MENDING = frozenset({Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING})


def summarise(allocator: Allocator) -> FleetSummary:
    """The tracker's rows: a server per (device in service, alias), free and waiting per key."""
    free: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    servers: list[ServerRow] = []
    for view in allocator.devices.values():
        if not _in_service(view):
            continue
        leasable = view.leasable and view.name not in allocator.held
        for alias in dict.fromkeys(view.aliases):
            servers.append(ServerRow(alias, view.name))
            free[alias] += leasable
    for _, request in allocator.waiting():
        pending[request.key or str(request.selector) or request.device] += 1
    keys = tuple(KeyRow(key, free[key], pending[key]) for key in sorted(set(free) | set(pending)))
    return FleetSummary(keys, tuple(servers))


def explain(
    allocator: Allocator, subject: str, waiting: Iterable[WaitingRequest], holders: Sequence[Holder], now_s: float
) -> Explanation:
    """Why requests for `subject` (a device name, a TVM key or a selector) wait, or would.

    The reasons are those of the foremost waiting request for exactly `subject`, else of one that would come now. For a
    device name, every request that could get this device is listed, and only this device's reason.

    Raises:
        UserError: `subject` is no selector.
    """
    device = subject if subject in allocator.devices else ""
    selector = Selector() if device else Selector.parse(subject)
    named = allocator.matching(selector, device)
    concerned = tuple(
        each for each in waiting if each.request.selector == selector or named & _suitable(allocator, each)
    )
    foremost = next((each for each in concerned if each.request.selector == selector and not device), None)
    if foremost is None:
        reasons = allocator.explain(LeaseRequest(selector, "", Door.JOB, device=device), now_s)
    else:
        reasons = allocator.explain(foremost.request, now_s, foremost.id)
    by_device = {holder.lease.device: holder for holder in holders}
    told = tuple(_name_holder(reason, by_device.get(reason.device)) for reason in reasons)
    return Explanation(subject, concerned, tuple(reason for reason in told if reason.matches or not device))


def _suitable(allocator: Allocator, waiting: WaitingRequest) -> frozenset[str]:
    return allocator.matching(waiting.request.selector, waiting.request.device)


def _name_holder(reason: DeviceReason, holder: Holder | None) -> DeviceReason:
    if holder is None or not reason.matches:
        return reason
    who = f"held by {holder.lease.request.user or 'somebody'} for {holder.held_s:.0f} s"
    return replace(reason, reason=reason.reason.replace("held", who, 1))


def _in_service(view: DeviceView) -> bool:
    return view.adopted and view.service is Service.IN and (view.life is Life.READY or view.life in MENDING)
