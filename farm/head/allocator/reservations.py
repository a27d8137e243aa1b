"""Reservations: devices that only some users get during a window of time. Times are monotonic seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from farm.common.selector import Selector
from farm.model.device import DeviceState


@dataclass(frozen=True, slots=True)
class Reservation:
    """From `starts_s` to `ends_s` only `users` get the devices that `selector` means."""

    id: str
    selector: Selector  # `Selector()` means every device
    users: frozenset[str]
    starts_s: float
    ends_s: float

    def covers(self, view: DeviceState) -> bool:
        """Whether the device is among those reserved."""
        return self.selector.matches(view.labels, view.aliases)


UNLIMITED: tuple[float, None] = (math.inf, None)


class Reservations:
    """All reservations, by device.

    Where the windows of two reservations overlap on a device, the users of both may have it.
    """

    def __init__(self, guard_s: float) -> None:
        """Begin without any. `guard_s` is what a lease of unknown length counts as, before a window of others."""
        self._guard_s = guard_s
        self._all: tuple[Reservation, ...] = ()
        self._views: dict[str, DeviceState] = {}
        self._of: dict[str, tuple[Reservation, ...]] = {}  # only devices that have any
        self._rooms: dict[tuple[str, str], tuple[float, Reservation | None]] = {}  # as found at `_rooms_at_s`
        self._rooms_at_s = -math.inf
        self._edges: frozenset[float] | None = None  # starts and ends of those; None: to be found

    def __bool__(self) -> bool:
        return bool(self._of)

    def replace(self, reservations: Iterable[Reservation], now_s: float) -> None:
        """These are all there are from now on."""
        self._all = tuple(each for each in reservations if each.ends_s > now_s)
        self._of = {}
        for view in self._views.values():
            self._find(view)

    def device_changed(self, view: DeviceState) -> None:
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
        self._rooms.clear()

    def obstacle(self, device: str, user: str, longest_s: float | None, now_s: float) -> Reservation | None:
        """The reservation because of which `user` may not begin a lease on `device` now; None: none."""
        room_s, following = self._room(device, user, now_s)
        return following if self.counts_s(longest_s) > room_s else None

    def room_s(self, device: str, user: str, now_s: float) -> float:
        """How long a lease of `user` on `device` may last that begins now; negative: none may begin."""
        return self._room(device, user, now_s)[0]

    def counts_s(self, longest_s: float | None) -> float:
        """How long a lease of at most `longest_s`, or of unknown length, is taken to last."""
        return self._guard_s if longest_s is None else longest_s

    def next_change_s(self, now_s: float) -> float | None:
        """When the next window that concerns a device starts or ends after now."""
        return min((at_s for at_s in self._all_edges() if at_s > now_s), default=None)

    def changed_between(self, before_s: float, now_s: float) -> set[str]:
        """Devices for which a window started or ended after `before_s` and until now."""
        if not any(before_s < at_s <= now_s for at_s in self._all_edges()):
            return set()
        return {
            device
            for device, windows in self._of.items()
            if any(before_s < each.starts_s <= now_s or before_s < each.ends_s <= now_s for each in windows)
        }

    def only_for(self, device: str, now_s: float) -> frozenset[str] | None:
        """The users who may begin a lease on the device now, be it a short one; None: all users."""
        open_to: frozenset[str] | None = None
        for each in self._of.get(device, ()):
            if each.starts_s <= now_s < each.ends_s:
                open_to = each.users | (open_to or frozenset())
        return open_to

    def free_again_s(self, device: str, user: str, now_s: float) -> float:
        """The end of all windows of others on the device that have begun or are yet to come; now, if there are none."""
        ends = (each.ends_s for each in self._of.get(device, ()) if user not in each.users)
        return max(now_s, max(ends, default=-math.inf))

    def _room(self, device: str, user: str, now_s: float) -> tuple[float, Reservation | None]:
        """`room_s`, and the reservation of others that ends it."""
        if device not in self._of:
            return UNLIMITED
        if self._rooms_at_s != now_s:
            self._rooms.clear()
            self._rooms_at_s = now_s
        room = self._rooms.get((device, user))
        if room is None:
            room = self._rooms[device, user] = _find_room(self._of[device], user, now_s)
        return room

    def _find(self, view: DeviceState) -> None:
        found = tuple(each for each in self._all if each.covers(view))
        self._edges = None
        self._rooms.clear()
        if found:
            self._of[view.name] = found
        else:
            self._of.pop(view.name, None)

    def _all_edges(self) -> Iterable[float]:
        if self._edges is None:
            concerned = {each for found in self._of.values() for each in found}
            self._edges = frozenset(at_s for each in concerned for at_s in (each.starts_s, each.ends_s))
        return self._edges


def _find_room(windows: Iterable[Reservation], user: str, now_s: float) -> tuple[float, Reservation | None]:
    own = [each for each in windows if user in each.users and each.ends_s > now_s]
    room_s, limit = math.inf, None
    for each in windows:
        if user in each.users or each.ends_s <= now_s:
            continue
        begins_s = max(now_s, each.starts_s)
        until_s = max((one.ends_s for one in own if one.starts_s <= begins_s < one.ends_s), default=begins_s)
        if until_s >= each.ends_s:
            continue  # a window of the user's own covers this one
        here_s = until_s - now_s if until_s > now_s else -1.0
        if here_s < room_s:
            room_s, limit = here_s, each
    return room_s, limit
