"""The allocator's policy and its answers: plain values. Times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farm.common.causes import fold_cause
from farm.model.requests import LeaseRequest


@dataclass(frozen=True, slots=True)
class AllocatorPolicy:
    """The numbers of the allocator's rules."""

    workers: int = 8  # leases with a worker at once on each host (`LeaseRequest.worker`)
    starved_s: float = 1800.0  # a queue that got nothing for so long goes before priority and share
    usage_half_life_s: float = 6 * 3600.0  # a morning's use weighs half by the afternoon, next to nothing next week
    held_counts_s: float = 60.0  # what a lease counts in advance, so that one moment's phones go to several users
    # After a lease its user is charged until the phone is ready again. Cleaning and checking take seconds; what lasts
    # longer than this is the phone's or the host's.
    cleaning_counts_s: float = 120.0
    min_slice_s: float = 60.0  # a tune lease has its phone at least so long: warming up costs some 10 s
    # A phone that tuned (at most 43 °C) is down to 36 °C, and open to benchmarks, in 5 to 15 min at room temperature.
    cooling_hold_s: float = 1800.0  # so long a phone is kept cool for a queue that starves, at most
    reservation_guard_s: float = 600.0  # before a window only leases of known length are granted to others


@dataclass(frozen=True, slots=True)
class Grant:
    """This request gets this device, from now until `Allocator.lease_ended`."""

    request_id: str
    device: str


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The time for which a lease's user is charged after it: its device was cleaned and checked, and ready then."""

    lease: str  # id
    device: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DeviceReason:
    """Why a request has not got this device. `matches`: the request could ever get it."""

    device: str
    matches: bool
    reason: str
    host: str = ""  # of the device; "": there is one host
    evidence: str = ""
    hint: str = ""  # the next step, where a person can take one
    operator: bool = False  # only a person ends it

    def __post_init__(self) -> None:
        fold_cause(self, "reason")

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.device}{f' at {self.host}' if self.host else ''}: {self.reason}"
        yield from (f"  {line}" for line in self.evidence.splitlines())
        if self.hint:
            yield f"  what to do: {self.hint}"


@dataclass(frozen=True, slots=True)
class Holding:
    """A device under a lease, as the allocator knows it."""

    request_id: str
    request: LeaseRequest
    since_s: float
    ends_s: float | None  # it is given back by then; None: unknown
    asked: str = ""  # why it is asked to yield, one sentence for a person; "" while it is not
    host: str = ""  # the device's, whose worker slot it takes if its request is for a worker
