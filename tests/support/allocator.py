"""Devices, requests and a clock for the allocator's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import AllocatorPolicy, Grant, Holding
from farm.head.config import UserConfig
from farm.model.device import DeviceView, Life
from farm.model.requests import LeaseRequest, LeaseSource

Call = tuple[Any, ...]  # a method of Allocator and its arguments


def phone(name: str, *aliases: str, life: Life = Life.READY, **facts: Any) -> DeviceView:
    """An adopted device that answers to `android`, `aliases` and its name; the first alias is its GPU."""
    labels = {"name": name, **({"gpu": aliases[0]} if aliases else {})}
    return DeviceView(
        name, f"serial-{name}", life, adopted=True, aliases=("android", *aliases, name), labels=labels, **facts
    )


def lease_request(
    text: str = "android", priority: int = 1, device: str = "", user: str = "alice", **more: Any
) -> LeaseRequest:
    return LeaseRequest(Selector.parse(text), user, LeaseSource.JOB, priority, device=device, **more)


class Ask(NamedTuple):
    """Whoever has this device, or keeps this worker slot, is asked to yield."""

    name: str
    request_id: str  # the holder's
    reason: str


class Asks:
    """Tells who was asked since it looked last."""

    def __init__(self) -> None:
        self._known: set[Ask] = set()

    def news(self, holdings: Mapping[str, Holding]) -> list[Ask]:
        asks = [Ask(name, each.request_id, each.asked) for name, each in holdings.items() if each.asked]
        news = [ask for ask in asks if ask not in self._known]
        self._known = set(asks)
        return news


class Lab:
    """An allocator with a clock that is looked at whenever it wants to be."""

    def __init__(self, *phones: DeviceView | str, **policy: Any) -> None:
        self.allocator = Allocator(AllocatorPolicy(**policy))
        self.now_s = 1000.0
        self.grants: list[Grant] = []
        self.yields: list[Ask] = []
        self.slots: list[Ask] = []
        self._yields, self._slots = Asks(), Asks()
        for each in phones:
            self.decide(Allocator.device_changed, phone(each) if isinstance(each, str) else each)

    def decide(self, happened: Callable[..., tuple[Grant, ...]], *facts: Any) -> list[Grant]:
        """Call a method of `Allocator` now; returns what was granted."""
        granted = list(happened(self.allocator, *facts, self.now_s))
        self.yields += self._yields.news(self.allocator.held)
        self.slots += self._slots.news(self.allocator.slots)
        self.grants += granted
        return granted

    def decide_each(self, *calls: Call) -> list[Grant]:
        """The same with several, one after the other."""
        return [grant for happened, *facts in calls for grant in self.decide(happened, *facts)]

    def want(self, request_id: str, *args: Any, **more: Any) -> str:
        """A request comes; the device it got at once, or ""."""
        grants = self.decide(Allocator.request_added, request_id, lease_request(*args, **more))
        return next((grant.device for grant in grants if grant.request_id == request_id), "")

    def end(self, device: str) -> str:
        """A lease ends; the request that gets the device next, or ""."""
        return next(
            (grant.request_id for grant in self.decide(Allocator.lease_ended, device, "") if grant.device == device), ""
        )

    def later(self, seconds: float) -> None:
        """Let time pass as the daemon does: the allocator looks whenever it wants to."""
        until_s = self.now_s + seconds
        while (look_s := self.allocator.next_check_s()) is not None and look_s <= until_s:
            self.now_s = look_s
            self.decide(Allocator.clock_advanced)
        self.now_s = until_s

    def changed(self, view: DeviceView | str) -> dict[str, str]:
        """A device is told again; which requests get which devices."""
        grants = self.decide(Allocator.device_changed, phone(view) if isinstance(view, str) else view)
        return {grant.request_id: grant.device for grant in grants}

    def paused(self, why: str = "") -> dict[str, str]:
        """Nothing is handed out while there is a reason; which requests get which devices."""
        return {grant.request_id: grant.device for grant in self.decide(Allocator.paused, why)}

    def quotas(self, default: UserConfig, **users: UserConfig) -> list[Grant]:
        return self.decide(Allocator.quotas_changed, default, users)

    def why(self, request_id: str, *args: Any, **more: Any) -> dict[str, str]:
        """`reasons` of a request that is described as in `want`."""
        return self.reasons(request_id, lease_request(*args, **more))

    def limits(self, **more: Any) -> tuple[str, ...]:
        return self.allocator.limits(lease_request(**more))

    def estimate_s(self, request_id: str) -> float | None:
        return self.allocator.estimate_s(request_id, self.now_s)

    def holders(self) -> dict[str, str]:
        return {device: holding.request_id for device, holding in self.allocator.held.items()}

    def reasons(self, request_id: str, request: LeaseRequest) -> dict[str, str]:
        """All facts about each device, the cause first."""
        explained = self.allocator.explain(request, self.now_s, request_id)
        return {each.device: "; ".join((each.reason, *each.evidence.splitlines())) for each in explained}

    def asked(self) -> Sequence[str]:
        return [ask.name for ask in self.yields]
