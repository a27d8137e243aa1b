"""What the store keeps besides jobs and events, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from farm.core.requests import Door, LeaseClass


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """What the farm remembers of a phone."""

    serial: str
    name: str
    hardware_serial: str = ""
    pool: str = ""
    adopted: bool = False
    service: str = "in"
    ordered_by: str = ""  # who took it out of service
    ordered_at: datetime | None = None
    address: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """One rung of the recovery ladder that was taken."""

    id: str
    serial: str
    device: str
    rung: str
    ailment: str
    cause: str
    began_at: datetime
    took_s: float | None = None  # None: under way
    outcome: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """Why a phone is kept away from users."""

    serial: str
    reason: str
    hint: str
    ailment: str
    rule: str
    evidence: str
    at: datetime


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One phone in one holder's hands, from grant to end."""

    id: str
    device: str
    user: str
    door: Door
    job: str  # id; "" through the TVM door
    lease_class: LeaseClass
    selector: str
    key: str
    fence: int
    granted_at: datetime
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""
    held_s: float = 0.0


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one user had of one phone within a window."""

    user: str
    device: str
    door: Door
    lease_class: LeaseClass
    leases: int
    held_s: float  # within the window


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """A device or pool kept for one user for a time."""

    id: str
    selector: str
    user: str
    starts_at: datetime
    ends_at: datetime
    note: str = ""


@dataclass(frozen=True, slots=True)
class ToolchainRecord:
    """A toolchain added with `farm toolchain add`."""

    name: str
    python: str
    bundle: str = ""
    tvm_version: str = ""  # what its TVM said when it was verified


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """An artifact whose runs of one user killed what ran them; all but the counts is of the latest time."""

    artifact: str  # SHA-256 of the library
    user: str
    what: str  # what happened, one line
    device: str
    kills: int
    seen: int  # of them by workers of the farm, or told by an operator
    first_at: datetime
    last_at: datetime
    job: str
