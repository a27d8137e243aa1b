"""What jobs are: specs people submit, records of jobs and attempts, results per phone. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from farm.core.errors import UserError
from farm.core.identity import DeviceIdentity
from farm.core.limits import MAX_NUMBER, MAX_REPEAT, MAX_TIMEOUT_S

DEFAULT_TIMEOUT_S = 600.0  # one phone, all steps: compiling a large network takes minutes on a small host
SHA256_PATTERN = r"^[0-9a-f]{64}$"

Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]


class BadSpecError(UserError):
    """The job's description is wrong."""

    code = "bad_spec"


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """`farm bench`: compile a model, run it on every phone `selector` means, check its numbers, time it."""

    model: Sha256  # artifact: an ONNX file
    name: Annotated[str, Field(min_length=1, max_length=255)]  # what people call the model: its file name
    selector: Annotated[str, Field(min_length=1, max_length=1024)]
    repeat: Annotated[int, Field(ge=1, le=MAX_REPEAT)] = 20  # timed samples
    number: Annotated[int, Field(ge=1, le=MAX_NUMBER)] = 5  # runs averaged into one sample
    min_repeat_ms: Annotated[int, Field(ge=0, le=60_000)] = 0  # a sample lasts at least this long; raises `number`
    target: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "cpu"  # a name in DeviceIdentity.targets
    inputs: Sha256 | None = None  # artifact: .npz with one array per model input; seeded random when None
    devices: Annotated[int, Field(ge=1)] | None = None  # at most so many phones; None: every matching one
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] = DEFAULT_TIMEOUT_S  # one phone, all steps

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> BenchSpec:
        """The spec in a request's fields; None means the default.

        Raises:
            BadSpecError: a field is missing, unknown or out of range; the message names it.
        """
        known = cls.__dataclass_fields__
        unknown = sorted(fields.keys() - known.keys())
        if unknown:
            raise BadSpecError(f"bench has no option {unknown[0]!r}", hint=f"options: {', '.join(known)}")
        try:
            return TypeAdapter(cls).validate_python({name: v for name, v in fields.items() if v is not None})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadSpecError(f"bench option {where!r}: {first['msg']} (got {str(first['input'])[:80]!r})") from error


class AttemptState(StrEnum):
    """How one attempt of a job on one phone ended."""

    DONE = "done"
    FAILED = "failed"  # `error` says how; a phone's fault is tried once more


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One try of a job on one phone; `fence` is its lease's, 0 when it never got the phone."""

    id: str
    job: str
    device: str
    fence: int
    state: AttemptState
    started_at: datetime
    ended_at: datetime
    error: Mapping[str, object] | None = None  # as core/error_wire writes it


@dataclass(frozen=True, slots=True)
class BenchTask:
    """What a bench worker is told: everything it needs, in plain JSON."""

    model: str
    name: str
    inputs: str | None
    device: str
    target_name: str
    target: Any  # a TVM tag or target dict (DeviceIdentity.targets)
    repeat: int
    number: int
    min_repeat_ms: int
    cache: str  # folder of compiled libraries and reference outputs, shared by workers of one toolchain

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> BenchTask:
        """The task in a spawn message's payload."""
        return TypeAdapter(cls).validate_python(dict(fields))

    def to_wire(self) -> dict[str, Any]:
        """The payload that `from_wire` reads."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PhoneResult:
    """What a bench gave on one phone. `report` is the worker's: samples, numerics, compile, environment."""

    device: str
    ok: bool
    target: str
    soc: str = ""
    gpu: str = ""
    attempts: tuple[AttemptRecord, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    bundle: str = ""  # hash of the runtime on the phone
    toolchain: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)  # in the toolchain
    temperature_c: float | None = None  # when the result was written
    report: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, object] | None = None

    def to_wire(self) -> dict[str, Any]:
        """One flat JSON object; the report's fields stand beside the others."""
        own = asdict(self)
        report = own.pop("report")
        for attempt in own["attempts"]:
            for name in ("started_at", "ended_at"):
                attempt[name] = attempt[name].isoformat()
        return {**report, **own}  # the result's own fields win


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A finished bench."""

    job: str
    spec: BenchSpec
    results: tuple[PhoneResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every phone computed right numbers."""
        return all(result.ok for result in self.results)

    def to_wire(self) -> dict[str, Any]:
        """The answer of the control kind `bench`."""
        return {
            "job": self.job,
            "ok": self.ok,
            "spec": asdict(self.spec),
            "results": [result.to_wire() for result in self.results],
        }


def identity_to_wire(identity: DeviceIdentity | None) -> dict[str, Any]:
    """An identity as it is kept with a result: everything but the raw properties."""
    if identity is None:
        return {}
    facts = asdict(identity)
    del facts["raw"]
    return facts
