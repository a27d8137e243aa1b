"""Reservations: devices that only some users get during a window of time. Times are monotonic seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from farm.core.device import DeviceView
from farm.core.selector import Selector


@dataclass(frozen=True, slots=True)
class Reservation:
    """From `starts_s` to `ends_s` only `users` get the devices that `selector` and `device` mean."""

    id: str
    selector: Selector  # `Selector()` means every device
    users: frozenset[str]
    starts_s: float
    ends_s: float
    device: str = ""  # only this one
    note: str = ""

    def covers(self, view: DeviceView) -> bool:
        """Whether the device is among those reserved."""
        return (not self.device or self.device == view.name) and self.selector.matches(view.labels, view.aliases)


class Reservations:
    """All reservations, by device.

    Where the windows of two reservations overlap on a device, the users of both may have it.
    """

    def __init__(self, guard_s: float) -> None:
        """Begin without any. `guard_s` is what a lease of unknown length counts as, before a window of others."""
        self._guard_s = guard_s
        self._all: tuple[Reservation, ...] = ()
        self._views: dict[str, DeviceView] = {}
        self._of: dict[str, tuple[Reservation, ...]] = {}  # only devices that have any
        self._edges: frozenset[float] | None = None  # starts and ends of those; None: to be found

    def __bool__(self) -> bool:
        return bool(self._of)

    def replace(self, reservations: Iterable[Reservation], now_s: float) -> None:
        """These are all there are from now on."""
        self._all = tuple(each for each in reservations if each.ends_s > now_s)
        self._of = {}
        for view in self._views.values():
            self._find(view)

    def device_changed(self, view: DeviceView) -> None:
        """Take notice of a device's labels and aliases."""
        before = self._views.get(view.name)
        self._views[view.name] = view
        if before is None or before.labels != view.labels or before.aliases != view.aliases:
            self._find(view)

    def device_forgotten(self, name: str) -> None:
        """The device is gone."""
        self._views.pop(name, None)
        self._of.pop(name, None)
        self._edges = None

    def obstacle(self, device: str, user: str, longest_s: float | None, now_s: float) -> Reservation | None:
        """The reservation because of which `user` may not begin a lease on `device` now; None: none."""
        mine = self._of.get(device, ())
        if not mine:
            return None
        until_s = now_s + (self._guard_s if longest_s is None else longest_s)
        own = [each for each in mine if user in each.users]
        for each in mine:
            begins_s, ends_s = max(now_s, each.starts_s), min(until_s, each.ends_s)
            if user in each.users or each.ends_s <= now_s or (begins_s >= until_s and each.starts_s > now_s):
                continue
            if not any(one.starts_s <= begins_s < one.ends_s and ends_s <= one.ends_s for one in own):
                return each
        return None

    def next_change_s(self, now_s: float) -> float | None:
        """When the next window that concerns a device starts or ends after now."""
        return min((at_s for at_s in self._all_edges() if at_s > now_s), default=None)

    def changed_between(self, before_s: float, now_s: float) -> bool:
        """Whether a window started or ended after `before_s` and until now."""
        return bool(self._of) and any(before_s < at_s <= now_s for at_s in self._all_edges())

    def free_again_s(self, device: str, user: str, now_s: float) -> float:
        """The end of all windows of others on the device that have begun or are yet to come; now, if there are none."""
        ends = (each.ends_s for each in self._of.get(device, ()) if user not in each.users)
        return max(now_s, max(ends, default=-math.inf))

    def _find(self, view: DeviceView) -> None:
        found = tuple(each for each in self._all if each.covers(view))
        self._edges = None
        if found:
            self._of[view.name] = found
        else:
            self._of.pop(view.name, None)

    def _all_edges(self) -> Iterable[float]:
        if self._edges is None:
            concerned = {each for found in self._of.values() for each in found}
            self._edges = frozenset(at_s for each in concerned for at_s in (each.starts_s, each.ends_s))
        return self._edges
