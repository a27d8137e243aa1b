"""What the daemon answers, as plain values with types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from farm.core.error_wire import error_from_wire
from farm.core.errors import FarmError
from farm.core.events import Event
from farm.core.job import FINAL, AttemptState, JobState


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job as it stands."""

    id: str
    kind: str
    name: str  # what people call it: the model's file name, the command
    user: str
    state: JobState
    selector: str
    device: str  # the one phone it may run on; empty: any that matches
    on: str  # the phone of its latest attempt; empty before the first
    array: str  # id shared by the jobs submitted with it; empty when it is alone
    priority: int
    submitted_at: datetime
    ended_at: datetime | None
    attempts: int
    error: FarmError | None
    waits: str  # why it is not done yet, one short sentence; empty when it has ended

    @property
    def ended(self) -> bool:
        """Whether it is done, failed or cancelled: nothing changes it any more."""
        return self.state in FINAL


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One try of a job on one phone."""

    id: str
    number: int  # from 1
    device: str
    fence: int
    lease: str
    state: AttemptState
    started_at: datetime
    ended_at: datetime | None
    error: FarmError | None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of one spec: a job for each phone."""

    jobs: tuple[JobInfo, ...]
    array: str = ""  # id they share; empty for a job alone
    warnings: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The jobs' ids."""
        return tuple(job.id for job in self.jobs)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that an attempt logged."""

    at: datetime
    level: str
    source: str  # worker, stdout, stderr ...
    text: str


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One phone in `farm status`."""

    name: str
    serial: str
    state: str  # one word: ready, busy, provisioning ...
    reason: str  # why it is not ready
    adopted: bool
    pool: str
    soc: str
    gpu: str
    virtual: bool
    holder: str  # who has it now
    temperature_c: float | None
    battery_percent: int | None
    keys: tuple[str, ...]  # stock TVM keys it answers to


@dataclass(frozen=True, slots=True)
class FarmStatus:
    """The farm at one moment."""

    version: str
    seq: int  # of the newest event: `events(since=seq)` tells what comes after this status
    tracker: tuple[str, int]  # where stock TVM clients connect
    devices: tuple[DeviceInfo, ...]
    problems: tuple[str, ...]  # what is wrong with the host
    raw: Mapping[str, Any] = field(repr=False)  # all of it, as `farm status --json` prints it


@dataclass(frozen=True, slots=True)
class Usage:
    """What one user (or device, or door) had in a window of time."""

    name: str
    held_s: float  # device-seconds
    leases: int
    jobs: int


JobRef = str | JobInfo | Submitted
JobRefs = JobRef | Iterable[JobRef]


def names_of(jobs: JobRefs) -> tuple[str, ...]:
    """The jobs meant, by id, arrays by theirs; each once, in order."""
    if isinstance(jobs, str):
        return (jobs,)
    if isinstance(jobs, JobInfo):
        return (jobs.id,)
    if isinstance(jobs, Submitted):
        return (jobs.array,) if jobs.array else jobs.ids
    return tuple(dict.fromkeys(name for job in jobs for name in names_of(job)))


def job_from(row: Mapping[str, Any]) -> JobInfo:
    """A job row of the daemon."""
    return JobInfo(
        **{
            **_fields_of(JobInfo, row),
            "state": JobState(row["state"]),
            "device": row["device"] or "",
            "on": row["on"] or "",
            "array": row["array"] or "",
            "submitted_at": datetime.fromisoformat(row["submitted_at"]),
            "ended_at": _time(row["ended_at"]),
            "error": _error(row["error"]),
        }
    )


def attempt_from(row: Mapping[str, Any]) -> AttemptInfo:
    """An attempt of `job.show`."""
    return AttemptInfo(
        **{
            **_fields_of(AttemptInfo, row),
            "state": AttemptState(row["state"]),
            "started_at": datetime.fromisoformat(row["started_at"]),
            "ended_at": _time(row["ended_at"]),
            "error": _error(row["error"]),
        }
    )


def submitted_from(answer: Mapping[str, Any]) -> Submitted:
    """The answer of `job.submit`."""
    return Submitted(tuple(map(job_from, answer["jobs"])), answer["array"] or "", tuple(answer["warnings"]))


def event_from(told: Mapping[str, Any]) -> Event:
    """One event of a stream."""
    return Event(told["seq"], datetime.fromisoformat(told["at"]), told["kind"], told["subject"], told["data"])


def line_from(told: Mapping[str, Any]) -> LogLine:
    """One line of `job.logs`."""
    return LogLine(datetime.fromisoformat(told["at"]), told["level"], told["source"], told["text"])


def status_from(answer: Mapping[str, Any]) -> FarmStatus:
    """The answer of `status`."""
    return FarmStatus(
        version=answer["version"],
        seq=answer["seq"],
        tracker=(answer["tracker"]["host"], answer["tracker"]["port"]),
        devices=tuple(map(_device_from, answer["devices"])),
        problems=tuple(answer["problems"]),
        raw=answer,
    )


def usage_from(row: Mapping[str, Any]) -> Usage:
    """A row of `usage`."""
    return Usage(**_fields_of(Usage, row))


def _device_from(row: Mapping[str, Any]) -> DeviceInfo:
    return DeviceInfo(**_fields_of(DeviceInfo, {**row, "keys": tuple(row["aliases"])}))


def _fields_of(cls: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that a class has."""
    return {each.name: row[each.name] for each in fields(cls)}


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _error(wire: Mapping[str, object] | None) -> FarmError | None:
    return error_from_wire(wire) if wire else None
