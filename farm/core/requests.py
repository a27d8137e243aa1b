"""What both doors ask for and get: lease requests and leases as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.core.limits import DEFAULT_PRIORITY
from farm.core.selector import Selector


class LeaseClass(StrEnum):
    """What a lease is for; decides who yields and who waits for a cool phone."""

    INTERACTIVE = "interactive"
    BENCH = "bench"
    TUNE = "tune"


class Door(StrEnum):
    """Which door a request came through."""

    TVM = "tvm"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """One wish for one phone. Higher `priority` goes first; users share fairly within one."""

    selector: Selector
    user: str
    door: Door
    priority: int = DEFAULT_PRIORITY
    lease_class: LeaseClass = LeaseClass.INTERACTIVE
    device: str = ""  # only this device (arrays: one request per matching phone)
    avoid: frozenset[str] = frozenset()  # devices not wanted: they failed this job, or a sibling has them
    only: frozenset[str] | None = None  # just these devices, if the selector means them: alike to those of a pool
    prefer: frozenset[str] = frozenset()  # of those that would do, rather one of these: they have their like
    worker: bool = False  # needs one of the host's worker places too
    traces: bool = False  # whatever ends the lease, the device is cleaned and checked before the next one
    quiet_hub: bool = False  # waits while another device on the same hub is leased, and keeps other users from them
    personal: bool = False  # in a person's hands: the daemon's stop does not end it, the next start restores it
    longest_s: float | None = None  # it gives the phone back after this long; None: nobody knows
    key: str = ""  # the stock TVM key asked for, when it came through the TVM door
    job: str = ""  # id of the job that asks, when it came through the job door


@dataclass(frozen=True, slots=True)
class Lease:
    """One phone in one holder's hands. `fence` grows with every grant; a report with an older one is refused."""

    id: str
    device: str
    fence: int
    request: LeaseRequest
    granted_at: float  # monotonic seconds
