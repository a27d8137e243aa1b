"""Records of the clients, as plain values with types: jobs and their outcomes, phones, options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypedDict

from farm.common.errors import Code, FarmError, MissingFieldError, UserError, error_from_wire
from farm.common.events import Event
from farm.control.messages import UnknownField
from farm.kinds import KINDS
from farm.model.job import FINAL, AttemptState, JobState
from farm.model.specs import MetricName

if TYPE_CHECKING:
    import numpy.typing as npt
File = Path | str
InputSource = Path | str | Mapping[str, "npt.ArrayLike"]
LabelSource = Path | str | Iterable[str]
Precision = Literal["float32", "float16", "float16_acc32"]
Quiesce = Literal["off", "gentle", "full"]


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
    """The jobs of one spec: one for each phone."""

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
    seq: int  # of the newest event: `events(since=seq)` has what comes after this status
    tracker: tuple[str, int]  # where stock TVM clients connect
    devices: tuple[DeviceInfo, ...]
    problems: tuple[str, ...]  # what is wrong with the host
    raw: Mapping[str, Any] = field(repr=False)  # all of it, as `farm status --json` prints it


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of one user (or device, or connection) in a window of time."""

    name: str
    held_s: float  # device-seconds of leases
    cleaned_s: float  # device-seconds of cleaning and checking after them
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


def event_from(row: Mapping[str, Any]) -> Event:
    """One event of a stream."""
    return Event(row["seq"], datetime.fromisoformat(row["at"]), row["kind"], row["subject"], row["data"])


def line_from(row: Mapping[str, Any]) -> LogLine:
    """One line of `job.logs`."""
    return LogLine(datetime.fromisoformat(row["at"]), row["level"], row["source"], row["text"])


def device_from(row: Mapping[str, Any]) -> DeviceInfo:
    """A device of `status` or `device.list`."""
    return DeviceInfo(**_fields_of(DeviceInfo, {**row, "keys": tuple(row["aliases"])}))


def status_from(answer: Mapping[str, Any]) -> FarmStatus:
    """The answer of `status`."""
    return FarmStatus(
        version=answer["version"],
        seq=answer["seq"],
        tracker=(answer["tracker"]["host"], answer["tracker"]["port"]),
        devices=tuple(map(device_from, answer["devices"])),
        problems=tuple(answer["problems"]),
        raw=answer,
    )


def usage_from(row: Mapping[str, Any]) -> Usage:
    """A row of `usage`."""
    return Usage(**_fields_of(Usage, row))


def _fields_of(cls: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that a class has; of those that an older daemon does not send, the optional ones are None.

    Raises:
        MissingFieldError: one that it does not send is neither optional nor a text.
    """
    found = {each.name: row[each.name] for each in fields(cls)}
    for each in fields(cls):
        if isinstance(found[each.name], UnknownField) and each.type != "str":
            if not str(each.type).endswith("| None"):
                raise MissingFieldError(each.name)
            found[each.name] = None
    return found


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _error(wire: Mapping[str, object] | None) -> FarmError | None:
    return error_from_wire(wire) if wire else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One job with its attempts and, once it is done, its result. Failed jobs have an `error` instead."""

    job: JobInfo
    spec: Mapping[str, Any]  # as submitted
    attempts: tuple[AttemptInfo, ...]
    result: Mapping[str, Any] = field(repr=False)  # as the daemon keeps it; empty unless the job is done

    file_field: ClassVar[str] = ""  # of the result: an artifact that belongs to the outcome; "": there is none

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Self:
        """The outcome in the answer of `job.show`."""
        result: Mapping[str, Any] = shown.get("result") or {}
        return cls(
            job=job_from(shown["job"]),
            spec=shown["spec"],
            attempts=tuple(map(attempt_from, shown["attempts"])),
            result=result,
            **cls.details(shown["spec"], result),
        )

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that a kind has beside these, from a job's spec and result; the result may be empty.

        A kind whose fields have the names of its result's gives them defaults, and needs no method of its own.
        """
        own = [each.name for each in fields(cls) if each not in fields(Outcome)]
        return {name: result[name] for name in own if name in result}

    @property
    def file(self) -> str:
        """The artifact that belongs to it; empty when there is none."""
        return str(self.result.get(self.file_field) or "")

    def with_file(self, _data: bytes) -> Self:
        """With the content of that artifact."""
        return self

    def brief(self) -> str:
        """The result in a table of jobs of several kinds."""
        return "-"

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.job.state is JobState.DONE

    @property
    def device(self) -> str:
        """The phone of its latest attempt; empty when there was none."""
        return self.job.on or self.job.device

    @property
    def error(self) -> FarmError | None:
        """Why it did not succeed; None when it did, or has not ended yet."""
        if self.job.state is JobState.CANCELLED:
            return self.job.error or UserError(f"job {self.job.id} was cancelled", Code.JOB_CANCELLED)
        return self.job.error if self.job.state is JobState.FAILED else None

    def raise_for_error(self) -> Self:
        """Itself when the job succeeded.

        Raises:
            FarmError: what ended it, of the class for its fault.
            UserError: it has not ended yet.
        """
        if self.ok:
            return self
        if not self.job.ended:
            message = f"job {self.job.id} is {self.job.state}"
            raise UserError(message, Code.NOT_ENDED, hint=self.job.waits or "wait for it")
        raise self.error or FarmError(f"job {self.job.id} failed", hint=f"farm logs {self.job.id}")


def outcome_from(shown: Mapping[str, Any]) -> Outcome:
    """The answer of `job.show`, as its kind has it; of a kind of another release, the fields of all kinds."""
    kind = KINDS.kinds.get(shown["job"]["kind"])
    return (kind.outcome if kind is not None else Outcome).of(shown)


class JobOptions(TypedDict, total=False):
    """Options of every kind of job: docs/scripts.md."""

    devices: int | Literal["all"]
    priority: int
    timeout_s: float
    deadline_s: float | None
    max_attempts: int
    after: tuple[str, ...]
    hold: bool


class ModelOptions(JobOptions, total=False):
    """Options of every kind that takes a model to a phone."""

    name: str
    target: str
    precision: Precision
    texture: bool
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    records: File  # tuning records to compile with: their .tar, or MetaSchedule's folder


class BenchOptions(ModelOptions, total=False):
    """Options of a bench."""

    half_width: float
    measure_s: float
    remeasure: int
    repeat: int | None
    number: int | None
    min_repeat_ms: int
    threads: int | None
    cores: str | None
    top_app: bool
    profile: bool
    quiet_hub: bool
    quiesce: Quiesce | None
    inputs: InputSource | None  # an .npz file, or an array per model input
    branch: str | None
    commit: str | None


class CompareOptions(ModelOptions, total=False):
    """Options of a comparison."""

    name_b: str
    target_b: str
    precision_b: Precision
    texture_b: bool
    records_b: File
    bundle: str  # with `bundle_b`: one model under two runtime bundles
    bundle_b: str
    program: Path | str | bytes  # a program's description, or a packed program, that times A in place of TVM
    program_b: Path | str | bytes
    settings: Mapping[str, str]
    settings_b: Mapping[str, str]
    min_effect: float
    measure_s: float
    quiet_hub: bool
    quiesce: Quiesce | None
    inputs: InputSource | None
    quality: InputSource | None  # labelled inputs, on which both run: an .npz file, or its arrays
    metric: MetricName


class TuneOptions(ModelOptions, total=False):
    """Options of a tuning run."""

    trials: int
    prior: File | None  # a .tar, a folder, the number of a kept set or a model's name
    early_stop: int | None
    cost_model: Literal["xgb", "random"]
    seed: int
    candidate_timeout_s: float
    quiesce: Quiesce | None


class RunOptions(ModelOptions, total=False):
    """Options of a run."""

    inputs: InputSource | None
    labels: LabelSource | None  # a file with a class name per line, or the names
    fill: Literal["random", "zeros", "ones"]
    top_k: int
    quality: InputSource | None  # labelled inputs: an .npz file, or its arrays
    metric: MetricName
    locate: bool
