"""The events that the allocator takes and its answers: plain values. Times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.leasing.allocator.reservations import Reservation
from farm.leasing.config import UserConfig
from farm.model.device import DeviceView
from farm.model.requests import LeaseRequest


@dataclass(frozen=True, slots=True)
class AllocatorPolicy:
    """The numbers of the allocator's rules."""

    workers: int = 8  # leases with a worker at once (`LeaseRequest.worker`)
    starved_s: float = 1800.0  # a line that got nothing for so long goes before priority and share
    usage_half_life_s: float = 6 * 3600.0  # a morning's use weighs half by the afternoon, next to nothing next week
    held_counts_s: float = 60.0  # what a lease counts in advance, so that one moment's phones go to several users
    # After a lease its user is charged until the phone is ready again. Cleaning and checking take seconds; what lasts
    # longer than this is the phone's or the host's.
    cleaning_counts_s: float = 120.0
    min_slice_s: float = 60.0  # a tune lease has its phone at least so long: warming up costs some 10 s
    # A phone that tuned (at most 43 °C) is down to 36 °C, and open to benchmarks, in 5 to 15 min at room temperature.
    cooling_hold_s: float = 1800.0  # so long a phone is kept cool for a line that starves, at most
    reservation_guard_s: float = 600.0  # before a window only leases of known length are granted to others


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceChanged:
    """A device appeared, or anything about it is different."""

    view: DeviceView


@dataclass(frozen=True, slots=True)
class DeviceForgotten:
    """A device is no part of the farm any more. A lease on it stands until `LeaseEnded`."""

    name: str


@dataclass(frozen=True, slots=True)
class RequestCame:
    """Somebody wants a device. `id` is unique for ever."""

    id: str
    request: LeaseRequest


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """Nobody waits for this request any more."""

    id: str


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The holder gave the device back, or lost it."""

    device: str


@dataclass(frozen=True, slots=True)
class LeaseRestored:
    """A lease of the time before the daemon's restart goes on. The device may not be known yet."""

    device: str
    id: str
    request: LeaseRequest


@dataclass(frozen=True, slots=True)
class LeaseExtended:
    """The holder gives the device back after `longest_s` from now at the latest; None: nobody knows."""

    device: str
    longest_s: float | None


@dataclass(frozen=True, slots=True)
class PlaceKept:
    """The holder of the device keeps its worker place beyond that lease, as `id`, until `PlaceFreed`."""

    device: str
    id: str


@dataclass(frozen=True, slots=True)
class PlaceFreed:
    """A worker place that was kept is free again."""

    id: str


@dataclass(frozen=True, slots=True)
class SharesChanged:
    """What users may have and how much they count; `default` is for those who are not in `by_user`."""

    default: UserConfig
    by_user: Mapping[str, UserConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageLoaded:
    """Device-seconds that each user has used so far, decayed to now; comes once, at the start."""

    by_user: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReservationsChanged:
    """All reservations there are; those over are ignored."""

    reservations: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True)
class GrantsPaused:
    """Nothing may be granted, e.g. because the store cannot write."""

    reason: str


@dataclass(frozen=True, slots=True)
class GrantsResumed:
    """Grants are possible again."""


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """Nothing but the time has changed; sent when `Allocator.next_check_s` has come."""


Standing = SharesChanged | UsageLoaded | ReservationsChanged  # what users may have, have had, or have reserved
AllocatorEvent = (
    DeviceChanged | DeviceForgotten | RequestCame | RequestWithdrawn | LeaseEnded | LeaseRestored | LeaseExtended
    | PlaceKept | PlaceFreed | Standing | GrantsPaused | GrantsResumed | ClockAdvanced
)  # fmt: skip

# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """This request gets this device, from now until `LeaseEnded`."""

    request_id: str
    device: str


@dataclass(frozen=True, slots=True)
class DeviceReason:
    """Why a request has not got this device. `matches` tells the devices it could ever get from the others."""

    device: str
    matches: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Holding:
    """A device in somebody's hands, as the allocator knows it."""

    request_id: str
    request: LeaseRequest
    since_s: float
    ends_s: float | None  # it is given back by then; None: nobody knows
    asked: str = ""  # why it is asked to yield, one line for a person; "" while it is not
