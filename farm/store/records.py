"""What the store keeps, as plain values. Imports nothing heavy: everybody may use these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from farm.core.device import Service


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """What the farm remembers of a device it was told about."""

    key: str  # its hardware serial; what adb calls it where it has none
    serial: str  # as adb listed it last
    name: str
    hardware_serial: str = ""
    pool: str = ""
    adopted: bool = False
    service: Service = Service.IN
    aliases: tuple[str, ...] = ()  # beside those that follow from what it is
    labels: Mapping[str, str] = field(default_factory=dict)  # beside those that follow from what it is


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"  # accepted, no attempt yet
    RUNNING = "running"  # at least one attempt is under way
    DONE = "done"  # every attempt gave a result
    FAILED = "failed"  # it ended without what was asked for; the result says why
    CANCELLED = "cancelled"  # somebody asked to end it


class AttemptState(StrEnum):
    """Where one attempt of a job on one device is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"  # the daemon ended before it did


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job as stored. `spec` and `result` are JSON texts; only farm.jobs knows what is in them."""

    id: str
    kind: str
    spec: str
    submitted_by: str
    submitted_at: datetime
    state: JobState = JobState.QUEUED
    finished_at: datetime | None = None
    result: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt: a job on a device under a fence. `result` is a JSON text."""

    id: str
    job: str
    device: str
    fence: int
    started_at: datetime
    state: AttemptState = AttemptState.RUNNING
    finished_at: datetime | None = None
    result: str = ""
