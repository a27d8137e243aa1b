"""What people submit: one frozen dataclass per kind of job, checked once, where it comes in.

Each spec is also the JSON that is stored and the table of a `farm submit` file: same names, same units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Strict, TypeAdapter, ValidationError

from farm.core.errors import UserError
from farm.core.field_errors import SHA256_FORM, field_error
from farm.core.limits import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_TRIALS,
    MAX_AFTER,
    MAX_ATTEMPTS,
    MAX_DEADLINE_S,
    MAX_LEASE_S,
    MAX_NUMBER,
    MAX_PRIORITY,
    MAX_REPEAT,
    MAX_TIMEOUT_S,
    MAX_TOP_K,
    MAX_TRIALS,
    MIN_TIME_S,
)
from farm.core.requests import LeaseClass
from farm.core.selector import nearest

DEFAULT_TIMEOUT_S = 600.0  # one phone, all steps: compiling a large network takes minutes on a small host
ALL: Literal["all"] = "all"

# Text is no number here: what a typo makes of "20" or "yes" must not run.
Whole = Annotated[int, Strict()]
Seconds = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Sha256 = Annotated[str, Field(pattern=SHA256_FORM)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
PrecisionName = Literal["float32", "float16", "float16_acc32"]
QuiesceLevel = Literal["off", "gentle", "full"]  # farm.core.quiesce
Dimension = Annotated[int, Strict(), Field(ge=1, le=1 << 24)]
HalfWidth = Annotated[float, Strict(), Field(ge=0.0005, le=0.5)]
# A name in DeviceIdentity.targets, a TVM tag (vendor/name), or a target dict as JSON (farm.fleet.named_targets).
TargetText = Annotated[
    str, Field(pattern=r"^([a-z][a-z0-9_-]{0,31}|[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+|\{[\s\S]*\})$", max_length=4096)
]


class BadSpecError(UserError):
    """The job's description is wrong."""

    code = "bad_spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What every kind of job has. Not submitted itself."""

    kind: ClassVar[str] = ""
    lease_class: ClassVar[LeaseClass] = LeaseClass.INTERACTIVE
    worker: ClassVar[bool] = True  # whether an attempt takes one of the host's worker places
    traces: ClassVar[bool] = False  # whether its phone must be cleaned and checked before the next user
    once: ClassVar[bool] = False  # unless `max_attempts` allows for more, what was broken off is not begun again
    personal: ClassVar[bool] = False  # in a person's hands: ends by its own clock and outlives the daemon
    # One job that holds `devices` phones at once, which come and go under it; else each phone is a job of its own.
    pooled: ClassVar[bool] = False

    on: Annotated[str, Field(min_length=1, max_length=1024)]  # a selector
    devices: Annotated[Whole, Field(ge=1, le=1000)] | Literal["all"] = 1  # one job for each of so many phones
    priority: Annotated[Whole, Field(ge=0, le=MAX_PRIORITY)] = DEFAULT_PRIORITY
    timeout_s: Annotated[Seconds, Field(ge=MIN_TIME_S, le=MAX_TIMEOUT_S)] = DEFAULT_TIMEOUT_S  # one attempt, all steps
    deadline_s: Annotated[Seconds, Field(ge=MIN_TIME_S, le=MAX_DEADLINE_S)] | None = None  # from submission to its end
    max_attempts: Annotated[Whole, Field(ge=1, le=MAX_ATTEMPTS)] = DEFAULT_MAX_ATTEMPTS
    after: Annotated[tuple[Name, ...], Field(max_length=MAX_AFTER)] = ()  # jobs or arrays that must be done first
    hold: Flag = False  # wait for `farm job resume`

    @classmethod
    def from_wire(cls, given: Mapping[str, Any]) -> Self:
        """The spec in JSON fields; None means the default.

        Raises:
            BadSpecError: a field is missing, unknown or out of range; the message names it.
        """
        known = {each.name for each in fields(cls)}
        unknown = sorted(given.keys() - known - {"kind"})
        if unknown:
            near = nearest(unknown[0], known)
            hint = f"did you mean {near[0]!r}?" if near else f"options: {', '.join(sorted(known))}"
            raise BadSpecError(f"{cls.kind} has no option {unknown[0]!r}", hint=hint)
        wanted = {name: value for name, value in given.items() if value is not None and name != "kind"}
        try:
            spec: Self = _adapter(cls).validate_python(wanted)
        except ValidationError as error:
            where, said, hint = field_error(error.errors())
            raise BadSpecError(f"{cls.kind} option {where!r} {said}", hint=hint) from error
        return spec

    def to_wire(self) -> dict[str, Any]:
        """The JSON that `spec_from_wire` reads."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(JobSpec):
    """What every kind has that takes a model to a phone. Not submitted itself."""

    model: Sha256  # artifact: a model file of any format that farm.compiler.load reads, or a package (.farm.tar)
    name: Name  # what people call the model: its file name, whose suffix tells the format
    # Of a package these are fixed: given otherwise than here, they are refused.
    target: TargetText = "cpu"
    precision: PrecisionName = "float32"
    shapes: dict[Name, tuple[Dimension, ...]] = field(default_factory=dict)  # of inputs that the file leaves open
    dtypes: dict[Name, Name] = field(default_factory=dict)  # of inputs, in place of the file's
    records: Sha256 | None = None  # artifact: tuning records (farm.compiler.records) to compile with


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec(ModelSpec):
    """Compile a model, run it, check its numbers against the host's reference, time it until its median is known."""

    kind: ClassVar[str] = "bench"
    lease_class: ClassVar[LeaseClass] = LeaseClass.BENCH

    half_width: HalfWidth = 0.01  # sample until the 95 % interval of the median is at most +- this part of it
    measure_s: Annotated[Seconds, Field(ge=0.1, le=3600)] = 30.0  # and no longer than this
    repeat: Annotated[Whole, Field(ge=1, le=MAX_REPEAT)] | None = None  # exactly so many timed samples instead
    number: Annotated[Whole, Field(ge=1, le=MAX_NUMBER)] | None = None  # runs averaged into one; None: enough for one
    min_repeat_ms: Annotated[Whole, Field(ge=0, le=60_000)] = 10  # a sample lasts at least this long
    remeasure: Annotated[Whole, Field(ge=0, le=5)] = 1  # so often again when the verdict is not `trusted`
    quiesce: QuiesceLevel | None = None  # how far the phone is made quiet; None: as configured
    profile: Flag = False  # also time every operator, where TVM allows
    quiet_hub: Flag = False  # wait while another phone on the same hub is leased
    inputs: Sha256 | None = None  # artifact: .npz with one array per model input; seeded random when None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSpec(ModelSpec):
    """Time two builds in turns (ABBA) on the same phone: which is faster, by how much, how sure. `model` is A."""

    kind: ClassVar[str] = "compare"
    lease_class: ClassVar[LeaseClass] = LeaseClass.BENCH

    model_b: Sha256  # in spec files A where it is left out, as on the command line
    name_b: Name
    target_b: TargetText | None = None  # None: as A
    precision_b: PrecisionName | None = None
    records_b: Sha256 | None = None
    quiesce: QuiesceLevel | None = None  # as of a bench
    min_effect: Annotated[Seconds, Field(ge=0, le=0.5)] = 0.01  # smaller differences are none: DESIGN D8
    measure_s: Annotated[Seconds, Field(ge=0.1, le=3600)] = 60.0
    quiet_hub: Flag = False  # wait while another phone on the same hub is leased
    inputs: Sha256 | None = None
    bundle: Name | None = None  # runtime bundle of A, by name or hash; with `bundle_b`, one model is run under both
    bundle_b: Name | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be told apart, or told at all."""
        if (self.bundle is None) != (self.bundle_b is None):
            raise BadSpecError("bundles are compared two at a time", hint="give both: --bundle NAME --bundle-b NAME")
        a = (self.model, self.target, self.precision, self.records)
        b = (self.target_b or self.target, self.precision_b or self.precision, self.records_b or self.records)
        if self.bundle is not None and a != (self.model_b, *b):
            raise BadSpecError(
                "two bundles are compared with one build of one model", hint="leave out B and all that is said of it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(ModelSpec):
    """Compile a model, run it once, keep its outputs and, if asked, each output's largest elements."""

    kind: ClassVar[str] = "run"

    inputs: Sha256 | None = None  # artifact: .npz with one array per model input
    fill: Literal["random", "zeros", "ones"] = "random"  # of inputs that `inputs` does not give; random is seeded
    top_k: Annotated[Whole, Field(ge=0, le=MAX_TOP_K)] = 0  # largest elements of each output; 0: none
    labels: Sha256 | None = None  # artifact: text, one class name per line, for top_k

    def __post_init__(self) -> None:
        """Refuse what would be found out only with a phone in hand."""
        if self.labels and not self.top_k:
            raise BadSpecError("labels are for the largest elements, and top_k is 0", hint="give top_k too, say 5")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSpec(ModelSpec):
    """Search for fast schedules of a model's operators with `devices` identical phones at once; keep the records."""

    kind: ClassVar[str] = "tune"
    lease_class: ClassVar[LeaseClass] = LeaseClass.TUNE
    pooled: ClassVar[bool] = True

    timeout_s: Annotated[Seconds, Field(ge=MIN_TIME_S, le=MAX_TIMEOUT_S)] = MAX_TIMEOUT_S
    # Candidates measured in all, those of earlier attempts too.
    trials: Annotated[Whole, Field(ge=1, le=MAX_TRIALS)] = DEFAULT_TRIALS
    early_stop: Annotated[Whole, Field(ge=1, le=MAX_TRIALS)] | None = None  # end after so many without a better one
    prior: Sha256 | None = None  # artifact: records to begin with
    quiesce: QuiesceLevel | None = None  # as of a bench
    cost_model: Literal["xgb", "random"] = "xgb"
    seed: Annotated[Whole, Field(ge=0, le=2**31 - 1)] = 0
    candidate_timeout_s: Annotated[Seconds, Field(ge=0.5, le=600)] = 10.0  # one candidate on a phone


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSpec(JobSpec):
    """Run a line in the phone's shell, as adb's shell user. A non-zero exit code fails the job."""

    kind: ClassVar[str] = "shell"
    traces: ClassVar[bool] = True
    once: ClassVar[bool] = True

    command: Annotated[str, Field(min_length=1, max_length=8192)]
    # A line has side effects: what may have happened once is not done again unless its owner says that it may be.
    max_attempts: Annotated[Whole, Field(ge=1, le=MAX_ATTEMPTS)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSpec(JobSpec):
    """A phone in a person's or a script's hands: a TVM key of their own and an adb server that shows only it."""

    kind: ClassVar[str] = "lease"
    worker: ClassVar[bool] = False
    traces: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    seconds: Annotated[Seconds, Field(ge=1, le=MAX_LEASE_S)] = 1800.0
    note: Annotated[str, Field(max_length=200)] = ""  # what for, shown to others
    tuning: Flag = False  # its holder gives the phone back when others wait for it (`yield_wanted` of `lease.show`)
    # Whoever has a phone in hands does not want another one in the middle of it: a lost phone ends the lease.
    max_attempts: Annotated[Whole, Field(ge=1, le=MAX_ATTEMPTS)] = 1


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """Building one takes milliseconds, using it microseconds."""
    if cls not in _adapters:
        _adapters[cls] = TypeAdapter(cls)
    return _adapters[cls]


AnySpec = BenchSpec | CompareSpec | RunSpec | TuneSpec | ShellSpec | LeaseSpec
KINDS: Mapping[str, type[AnySpec]] = {
    cls.kind: cls for cls in (BenchSpec, CompareSpec, RunSpec, TuneSpec, ShellSpec, LeaseSpec)
}


def spec_from_wire(given: Mapping[str, Any]) -> AnySpec:
    """The spec of whatever kind `given["kind"]` names.

    Raises:
        BadSpecError: there is no such kind, or a field is wrong.
    """
    kind = given.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise BadSpecError(f"there is no kind of job {str(kind)[:80]!r}", hint=f"kinds: {', '.join(KINDS)}")
    return cls.from_wire(given)
