"""The messages between a host and the head about phones, leases and attempts: plain records, in order per host.

The host holds phones, leases and sessions; the head decides which request gets which phone. A grant goes so: the host
asks with `RequestAdded`, or a job does at the head; the head stores the lease and sends `LeaseGranted`; the host *arms*
the lease, from which moment it is held, or refuses it. A host apart from the head commits the job's attempt with the
arming (`AttemptClaim`); in one process the head commits it then, and sends it with `RunAttempt`. The host commits the
attempt's end, and the head decides what the job becomes. Where both are one process, sending is a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from farm.head.queue.model import StopAttempt
from farm.model.device import DeviceState
from farm.model.job import Attempt, Job
from farm.model.requests import Lease, LeaseRequest

# --- from a host ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceChanged:
    """A device appeared, or something about it is different that decisions need."""

    state: DeviceState


@dataclass(frozen=True, slots=True)
class DeviceForgotten:
    """A device is no part of the farm any more."""

    device: str


@dataclass(frozen=True, slots=True)
class RequestAdded:
    """Someone at the host asks for a device. Answer: `LeaseGranted`, unless it is withdrawn before."""

    request_id: str
    request: LeaseRequest


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """The requester does not wait any more. Harmless for one that was granted or withdrawn before."""

    request_id: str


@dataclass(frozen=True, slots=True)
class LeaseArmed:
    """The device is held under the granted lease."""

    device: str
    lease: str  # id
    attempt: str = ""  # id of the attempt that was committed with the arming; "": none


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """The device cannot be had under the granted lease, which ends; its request waits on."""

    device: str
    lease: str  # id
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseRestored:
    """A lease of the time before the host's restart continues; the device may not have been seen yet."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class LeaseExtended:
    """The holder gives the device back after `left_s` from now at the latest."""

    device: str
    left_s: float


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The device is not held any more."""

    device: str
    lease: str  # id
    reason: str = ""  # of a lease for a job of another host


@dataclass(frozen=True, slots=True)
class SlotKept:
    """The worker slot that came with the lease outlasts it, until `SlotFreed`."""

    device: str
    lease: str  # id


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """The worker slot that came with this lease is needed no more. Harmless when repeated."""

    lease: str  # id


HostMessage = (
    DeviceChanged
    | DeviceForgotten
    | RequestAdded
    | RequestWithdrawn
    | LeaseArmed
    | LeaseRefused
    | LeaseRestored
    | LeaseExtended
    | LeaseEnded
    | SlotKept
    | SlotFreed
)

# --- from the head ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptClaim:
    """The attempt for which a job asked for the lease: its host commits, with the arming, that it runs."""

    job: Job  # as it is now: still queued
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """The lease is stored. Answer: `LeaseArmed` or `LeaseRefused`."""

    request_id: str
    lease: Lease
    granted_at: datetime
    claim: AttemptClaim | None = None  # only to a host apart


@dataclass(frozen=True, slots=True)
class YieldWanted:
    """Others wait for the device of a tune lease: its holder, maybe at another host, gives it back soon."""

    device: str


@dataclass(frozen=True, slots=True)
class SlotWanted:
    """Others lack only the worker slot that is kept for this lease: its keeper should end soon."""

    lease: str  # id


@dataclass(frozen=True, slots=True)
class LeaseUnwanted:
    """The requester wants the armed lease no more: it ends. Also from the host of the requester."""

    lease: str  # id
    reason: str


# --- from one host to another -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """To the host where it was asked for, when the phone's host has armed it: the requester may use the lease."""

    request_id: str
    lease: Lease
    host: str  # the phone's


@dataclass(frozen=True, slots=True)
class SessionBroken:
    """To the phone's host, from that of the job: the lease's session went wrong; it is cut, and the phone checked."""

    lease: str  # id
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """To the host whose job has the lease, from the head: the phone's host does not hold it any more."""

    lease: str  # id
    reason: str


HeadMessage = LeaseGranted | YieldWanted | SlotWanted | LeaseUnwanted | LeaseHeld | SessionBroken | LeaseLost

# --- about attempts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """To the host that armed the lease: the attempt is committed. Answer: `AttemptEnded`."""

    job: Job  # as it was: still queued
    attempt: Attempt
    lease: Lease


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """From the host: the end of the attempt is committed, and that its job is done if the attempt succeeded."""

    attempt: Attempt
    crashes: int = 0  # see `Outcome`


JobMessage = RunAttempt | StopAttempt

# --- with a head apart ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostBegan:
    """From a host that was started: its requesters have gone, and leases that it had not armed were never held."""


@dataclass(frozen=True, slots=True)
class HostLeft:
    """From a host that stops: its requesters and phones have gone; leases of people and clients continue."""


@dataclass(frozen=True, slots=True)
class HostDrained:
    """From a host: an operator ordered that none of its phones is handed out; leases continue, requests wait."""

    reason: str  # "": they are again


@dataclass(frozen=True, slots=True)
class Salvage:
    """To the host of the job's latest attempt: keep the results of its attempts. Answer: `Salvaged`."""

    job: Job


@dataclass(frozen=True, slots=True)
class Salvaged:
    """From the host: the results of the job's attempts are kept."""

    job: str  # id


@dataclass(frozen=True, slots=True)
class Order:
    """From a host: call a method of `Head` for one of its users. Answer: `OrderAnswer`."""

    id: str
    method: str
    fields: Mapping[str, Any]  # as JSON, see farm.head.orders


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """To the host: what the order returned, or its error."""

    order: str  # id
    value: Any = None
    error: Mapping[str, Any] | None = None


# --- between hosts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DialBack:
    """To a host that does not listen for others, from one that does: dial it, for the connection that it wants."""

    host: str  # the one to dial
    token: str  # known to both only, once


ToHead = HostMessage | AttemptEnded | HostBegan | HostLeft | HostDrained | Salvaged | Order
ToHost = HeadMessage | StopAttempt | Salvage | OrderAnswer | DialBack
