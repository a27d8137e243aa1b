"""Lease requests and leases, as plain values: the same for stock TVM clients and for jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.common.errors import UserError
from farm.common.limits import DEFAULT_PRIORITY
from farm.common.selector import Selector

ENDED_BY_OPERATOR = "ended by an operator"  # why a kicked lease ended
TIME_OVER = "its time is over"  # why a person's lease ended


class NoSuchLeaseError(UserError):
    """There is no such current lease."""

    code = "no_such_lease"


class LeaseClass(StrEnum):
    """The purpose of a lease; decides which leases yield and which requests wait for a cool phone."""

    INTERACTIVE = "interactive"
    BENCH = "bench"
    TUNE = "tune"


class LeaseSource(StrEnum):
    """Where a request comes from: a client of the TVM server, or a job."""

    TVM = "tvm"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request for one phone. Higher `priority` goes first; users share fairly within one."""

    selector: Selector
    user: str
    source: LeaseSource
    priority: int = DEFAULT_PRIORITY
    lease_class: LeaseClass = LeaseClass.INTERACTIVE
    device: str = ""  # only this device (arrays: one request per matching phone)
    avoid: frozenset[str] = frozenset()  # devices not wanted: they failed this job, or a sibling has them
    only: frozenset[str] | None = None  # just these devices, if the selector means them: alike to those of a pool
    prefer: frozenset[str] = frozenset()  # of those that would do, rather one of these: they have their like
    worker: bool = False  # needs one of the host's worker slots too
    traces: bool = False  # whatever ends the lease, the device is cleaned and checked before the next one
    quiet_hub: bool = False  # waits while another device on the same hub is leased, and keeps other users from them
    personal: bool = False  # in a person's hands: the daemon's stop does not end it, the next start restores it
    longest_s: float | None = None  # it gives the phone back after this long; None: unknown
    key: str = ""  # the stock TVM key asked for, of a client of the TVM server
    job: str = ""  # id of the job that asks
    match_sha256: str = ""  # of the match key by which the requester will open the phone; "": it gets one afterwards
    holder_host: str = ""  # the host of a lab where it is asked for; "": the phone's own


@dataclass(frozen=True, slots=True)
class Lease:
    """One phone held by one holder. `fence` grows with every grant; a report with an older one is refused."""

    id: str
    device: str
    fence: int
    request: LeaseRequest
    granted_at: float  # monotonic seconds
