"""The parts of the specs of all kinds of jobs: their base classes, the types of fields, and how to read one.

A spec is a frozen dataclass, declared once in `farm/kinds/<kind>/spec.py`: its fields with their bounds and what they
mean. It is also the JSON of control messages and of the stored row, and the table of a `farm submit` file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from inspect import get_annotations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, get_type_hints

from farm.common.errors import Code, UserError
from farm.common.field_errors import field_error
from farm.common.files import SHA256_FORM
from farm.common.limits import (
    CORES_FORM,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    MAX_AFTER,
    MAX_ATTEMPTS,
    MAX_CORES,
    MAX_DEADLINE_S,
    MAX_JOBS_AT_ONCE,
    MAX_PRIORITY,
    MAX_TIMEOUT_S,
    MIN_TIME_S,
)
from farm.common.selector import did_you_mean
from farm.model.identity import CpuCluster
from farm.model.placement import ThreadPlacement
from farm.model.requests import LeaseClass

if TYPE_CHECKING:
    from pydantic import TypeAdapter

DEFAULT_TIMEOUT_S = 600.0  # one phone, all steps: compiling a large network takes minutes on a small host
ALL: Literal["all"] = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The values that a field takes, as `pydantic.Field` has them; None: no bound.

    pydantic takes it for a group of marks, which it asks for when values are checked: a spec's options do without it.
    """

    __is_annotated_types_grouped_metadata__: ClassVar[bool] = True  # the mark of a group, of annotated_types

    strict: bool | None = None  # whether a value of another type is refused, such as text for a number
    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None

    def __iter__(self) -> Iterator[Any]:
        """The marks of pydantic."""
        from pydantic import Field

        return iter(Field(**asdict(self)).metadata)


# Text is no number here: what a typo makes of "20" or "yes" must not run.
Whole = Annotated[int, Bounds(strict=True)]
Seconds = Annotated[float, Bounds(strict=True)]
Flag = Annotated[bool, Bounds(strict=True)]
Sha256 = Annotated[str, Bounds(pattern=SHA256_FORM)]
Name = Annotated[str, Bounds(min_length=1, max_length=255)]
PrecisionName = Literal["float32", "float16", "float16_acc32"]
MetricName = Literal["top1", "top5", "mse", "psnr", "wer"]  # farm.measure.quality has the metrics
Dimension = Annotated[int, Bounds(strict=True, ge=1, le=1 << 24)]
Attempts = Annotated[Whole, Bounds(ge=1, le=MAX_ATTEMPTS)]
TargetText = Annotated[str, Bounds(min_length=1, max_length=4096)]  # farm.devices.identity.targets reads it
SpecT = TypeVar("SpecT", bound="ModelSpec")
TaskT = TypeVar("TaskT")


@dataclass(frozen=True, slots=True)
class Help:
    """The help of a field, for the command line and the reference, and how an option differs from its field."""

    text: str
    flag: str = ""  # "": made of the field's name, without its unit
    form: str = ""  # how people write the value, a key of farm.cli.spec_options.FORMS; "": as its type is written
    complete: str = ""  # a function of farm.cli.complete
    option: bool = True  # whether commands have an option for it
    group: str = ""  # heading in a command's help; "": with the command's own options


# Headings of options, in the order of a command's help.
GROUPS = SEARCH, MEASURING, QUALITY, BUILD, RUNTIME, SIDE_B, OUTPUT, QUEUE = (
    "Options of the search", "Options of the measurement", "Options of quality", "Options of the build",
    "Options of the runtime", "Options of B", "Options of the output", "Options of the queue",
)  # fmt: skip

# Levels of farm.devices.quiesce_policy; None: as configured.
Quiesce = Annotated[
    Literal["off", "gentle", "full"] | None,
    Help("How quiet to make the phone: off, gentle, full.", form="level", group=MEASURING),
]

# Fields of the kinds that measure until a median is known.
HalfWidth = Annotated[
    Annotated[float, Bounds(strict=True, ge=0.0005, le=0.5)],
    Help("Sample until the 95 % interval of the median is at most ± this part of it.", group=MEASURING),
]
MeasureSeconds = Annotated[
    Seconds,
    Bounds(ge=0.1, le=3600),
    Help("Sample at most so long: 30, 90s, 5m.", flag="--measure", form="duration", group=MEASURING),
]
Remeasure = Annotated[
    Whole, Bounds(ge=0, le=5), Help("Measure again at most so often while the result is not trusted.", group=MEASURING)
]
# Where the threads of a build run, for kinds that time one.
Threads = Annotated[
    Annotated[Whole, Bounds(ge=1, le=MAX_CORES)] | None,
    Help("How many threads of TVM's pool; farm bench compares several: 1,2,4.", form="threads", group=MEASURING),
]
Cores = Annotated[
    Annotated[str, Bounds(pattern=CORES_FORM)] | None,
    Help("On which cores: big, little, or a mask as 0xf0; farm bench compares several.", form="cores", group=MEASURING),
]
TopApp = Annotated[
    Flag, Help("In Android's group of the app in front, top-app; most phones need root for it.", group=MEASURING)
]
# From what a model was built, for kinds whose results are in histories.
Branch = Annotated[
    Annotated[str, Bounds(min_length=1, max_length=255)] | None,
    Help("The branch of the sources that the model was built from, stored with the result.", form="text", group=BUILD),
]
Commit = Annotated[
    Annotated[str, Bounds(min_length=1, max_length=80)] | None,
    Help("The commit of these sources, stored with the result.", form="text", group=BUILD),
]
QuietHub = Annotated[Flag, Help("Give no other user a phone on the same hub meanwhile.", group=MEASURING)]


@dataclass(frozen=True, slots=True)
class ArtifactOf:
    """Marks a field with the hash of a file that people name by its path: it is checked and uploaded."""

    content: Literal["model", "arrays", "labels", "records", "program"]
    kept: bool = False  # of records: those of the farm can be named, too


# How right a build is on many inputs, for kinds that run it on labelled ones.
LabelledInputsFile = Annotated[
    Sha256 | None,
    ArtifactOf("arrays"),
    Help(".npz of many inputs, and their labels under `labels`: how right is it?", group=QUALITY),
]
Metric = Annotated[MetricName, Help("What --quality counts in the first output.", group=QUALITY)]
DEFAULT_METRIC: MetricName = "top1"


def exclusive(one: str, other: str) -> UserError:
    """The error of two options, by their flags, of which one would have no effect."""
    return UserError(f"{one} and {other} exclude each other", Code.BAD_SPEC, hint="leave out one")


def check_quality(quality: object, metric: str, others: Mapping[str, object]) -> None:
    """Refuse options without effect on labelled inputs.

    Args:
        quality: the labelled inputs; None: there are none.
        metric: the metric's name.
        others: values of options that do not go with labelled inputs, by their flags; a false value: not given.

    Raises:
        UserError: there is one.
    """
    if quality is None and metric != DEFAULT_METRIC:
        raise UserError("--metric is for --quality", Code.BAD_SPEC, hint="add --quality FILE")
    if quality is not None and (flag := next(filter(others.get, others), None)):
        raise exclusive("--quality", flag)


class MissingOptionError(UserError):
    """An option without a default is not given."""

    code = "missing_option"
    option = ""  # its name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The fields of every kind of job. Not submitted itself."""

    kind: ClassVar[str] = ""
    lease_class: ClassVar[LeaseClass] = LeaseClass.INTERACTIVE
    worker: ClassVar[bool] = True  # whether an attempt takes one of the host's worker slots
    traces: ClassVar[bool] = False  # whether its phone must be cleaned and checked before the next user
    once: ClassVar[bool] = False  # unless `max_attempts` allows for more, what was broken off is not begun again
    personal: ClassVar[bool] = False  # in a person's hands: ends by its own clock and outlives the daemon
    # One job that holds `devices` phones at once, which come and go under it; else each phone is a job of its own.
    pooled: ClassVar[bool] = False
    lease_field: ClassVar[str] = "timeout_s"  # the field that says how long an attempt may keep its phone, seconds

    on: Annotated[
        str,
        Bounds(min_length=1, max_length=1024),
        Help("Which phones: label=value[,label=value...] or an alias.", form="selector", complete="selectors"),
    ]
    devices: Annotated[
        Annotated[Whole, Bounds(ge=1, le=MAX_JOBS_AT_ONCE)] | Literal["all"],
        Help("How many phones, each a job of its own; all: every matching one.", form="devices", group=QUEUE),
    ] = 1
    timeout_s: Annotated[
        Annotated[Seconds, Bounds(ge=MIN_TIME_S, le=MAX_TIMEOUT_S)],
        Help(
            "Time limit of one attempt with all its steps: 90s, 10m, 2h; a number is seconds.",
            form="timeout",
            group=QUEUE,
        ),
    ] = DEFAULT_TIMEOUT_S
    priority: Annotated[
        Annotated[Whole, Bounds(ge=0, le=MAX_PRIORITY)], Help("Jobs with a higher priority go first.", group=QUEUE)
    ] = DEFAULT_PRIORITY
    deadline_s: Annotated[
        Annotated[Seconds, Bounds(ge=MIN_TIME_S, le=MAX_DEADLINE_S)] | None,  # from submission to its end
        Help("Cancel the job if it has not ended by then: 2h, 30m, 18:00.", form="deadline", group=QUEUE),
    ] = None
    max_attempts: Annotated[Attempts, Help("How many attempts at most.", group=QUEUE)] = DEFAULT_MAX_ATTEMPTS
    after: Annotated[
        Annotated[tuple[Name, ...], Bounds(max_length=MAX_AFTER)],
        Help("A job or array that must be done first. Repeatable.", form="job", complete="jobs", group=QUEUE),
    ] = ()
    hold: Annotated[Flag, Help("Wait for `farm job resume`; implies --detach.", group=QUEUE)] = False

    def leased_as(self) -> LeaseClass:
        """The purpose of its leases."""
        return self.lease_class

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Fields as people give them, completed by those that other fields imply."""
        return dict(given)

    @classmethod
    def from_wire(cls, given: Mapping[str, Any]) -> Self:
        """The spec in JSON fields; None means the default.

        Raises:
            UserError: a field is missing, unknown or out of range; the message names it.
        """
        from pydantic import ValidationError

        known = {each.name for each in fields(cls)}
        unknown = sorted(given.keys() - known - {"kind"})
        if unknown:
            hint = did_you_mean(unknown[0], known, f"options: {', '.join(sorted(known))}")
            raise UserError(f"{cls.kind} has no option {unknown[0]!r}", Code.BAD_SPEC, hint=hint)
        wanted = {name: value for name, value in given.items() if value is not None and name != "kind"}
        try:
            spec: Self = _adapter(cls).validate_python(wanted)
        except ValidationError as error:
            where, problem, hint = field_error(error.errors())
            if all(each["type"] == "missing" for each in error.errors()):
                missing = MissingOptionError(f"{cls.kind} option {where!r} {problem}", hint=f"give {where}")
                missing.option = where
                raise missing from error
            raise UserError(f"{cls.kind} option {where!r} {problem}", Code.BAD_SPEC, hint=hint) from error
        return spec

    def to_wire(self) -> dict[str, Any]:
        """The JSON that `from_wire` reads."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(JobSpec):
    """The fields of every kind that takes a model to a phone. Not submitted itself."""

    packages: ClassVar[bool] = True  # whether it takes packages, which are compiled already

    # A model file of any format that farm.compiler.load reads, or a package (.farm.tar).
    model: Annotated[Sha256, ArtifactOf("model"), Help("A model file, or a package (.farm.tar).", option=False)]
    # Its suffix names the format.
    name: Annotated[Name, Help("What people call the model: its file name.", option=False)]
    # Of a package these are fixed: given otherwise than here, they are refused.
    target: Annotated[
        TargetText, Help("cpu, adreno, opencl ...: a name in `farm device show`.", complete="targets", group=BUILD)
    ] = "cpu"
    precision: Annotated[PrecisionName, Help("The type in which the model computes.", group=BUILD)] = "float32"
    texture: Annotated[
        Flag, Help("Keep tensors in OpenCL images (textures) where that is right: --target adreno.", group=BUILD)
    ] = False
    shapes: Annotated[
        dict[Name, tuple[Dimension, ...]],
        Help("An input's shape, NAME:[1,3,224,224]. Repeatable.", flag="--shape", form="shapes", group=BUILD),
    ] = field(default_factory=dict)
    dtypes: Annotated[
        dict[Name, Name], Help("An input's type, NAME:float16. Repeatable.", flag="--dtype", form="dtypes", group=BUILD)
    ] = field(default_factory=dict)
    records: Annotated[
        Sha256 | None, ArtifactOf("records"), Help("Tuning records to compile with: a .tar or a folder.", group=BUILD)
    ] = None

    def check_cores(self, clusters: Sequence[CpuCluster], phone: str) -> None:
        """Refuse a phone with these clusters where it has not the cores that the fields ask for.

        Raises:
            UserError: it has not.
        """

    def builds(self) -> tuple[ModelSpec, ...]:
        """Each build of a model that it takes to a phone."""
        return (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSpec(ModelSpec):
    """The fields of every kind that measures a model while its phone is quiet. Not submitted itself."""

    lease_class: ClassVar[LeaseClass] = LeaseClass.BENCH

    quiet_hub: QuietHub = False
    quiesce: Quiesce = None
    inputs: Annotated[
        Sha256 | None,
        ArtifactOf("arrays"),
        Help(".npz with one array per model input; seeded random otherwise.", flag="--input", group=MEASURING),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySpec(MeasureSpec):
    """The fields of every kind that measures a model for its history. Not submitted itself."""

    branch: Branch = None
    commit: Commit = None


Kinds = Mapping[str, type[JobSpec]]  # by name; farm.kinds.KINDS is the daemon's


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """Building one takes milliseconds, using it microseconds."""
    from pydantic import TypeAdapter

    if cls not in _adapters:
        _adapters[cls] = TypeAdapter(cls)
    return _adapters[cls]


def spec_from_wire(kinds: Kinds, given: Mapping[str, Any]) -> JobSpec:
    """The spec of whatever kind `given["kind"]` names.

    Raises:
        UserError: there is no such kind, or a field is wrong.
    """
    return kind_named(kinds, given.get("kind")).from_wire(given)


def kind_named(kinds: Kinds, name: object) -> type[JobSpec]:
    """The declaration of a kind.

    Raises:
        UserError: there is no such kind.
    """
    if isinstance(name, str) and name in kinds:
        return kinds[name]
    shown = str(name)[:80]
    hint = did_you_mean(shown, kinds, f"kinds: {', '.join(kinds)}")
    raise UserError(f"there is no kind of job {shown!r}", Code.BAD_SPEC, hint=hint)


@dataclass(frozen=True, slots=True)
class SpecField:
    """One field of a spec, as its declaration has it."""

    name: str
    type: Any  # with its bounds
    default: Any  # dataclasses.MISSING: it must be given
    help: Help
    artifact: ArtifactOf | None


def fields_of(cls: type[JobSpec]) -> Mapping[str, SpecField]:
    """The fields of a spec by name: those of its own kind first, then those that all kinds have."""
    return {each.name: each for each in _fields_of(cls)}


def _fields_of(cls: type[JobSpec]) -> Iterator[SpecField]:
    hints, declared = get_type_hints(cls, include_extras=True), {each.name: each for each in fields(cls)}
    for name in dict.fromkeys(name for base in cls.__mro__ for name in get_annotations(base) if name in declared):
        marks = getattr(hints[name], "__metadata__", ())
        yield SpecField(
            name,
            hints[name],
            _default(declared[name]),
            next((mark for mark in marks if isinstance(mark, Help)), Help("")),
            next((mark for mark in marks if isinstance(mark, ArtifactOf)), None),
        )


def _default(declared: Any) -> Any:
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


@dataclass(frozen=True, slots=True)
class EarlierBench:
    """The clock's speed and a model's in a bench that was not rejected."""

    library: str  # SHA-256 of the build
    placement: str  # of its threads, in words
    kernel: str  # key of the reference kernel
    reference_s: float
    median_s: float  # by the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTask(Generic[SpecT]):
    """A model for one phone."""

    spec: SpecT
    target: Any  # what the spec's target means on the phone: a TVM tag or target dict (DeviceIdentity.targets)
    cache: str  # folder of compiled libraries and reference outputs, shared by workers of one toolchain
    virtual: bool = False  # the phone is one: its speed is this host's
    nominals: Mapping[str, float] = field(default_factory=dict)  # its seconds of reference kernels, by their keys
    placements: tuple[ThreadPlacement, ...] = ()  # of its threads; none: where TVM puts them
    earlier: tuple[EarlierBench, ...] = ()  # of the model on this phone in this epoch

    def to_wire(self) -> dict[str, Any]:
        """The payload that `task_from_wire` reads."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleUse:
    """A runtime bundle that a worker may have on its phone (verb `bundle.use`)."""

    name: str
    hash: str
    tvm: str  # version


def task_from_wire(form: type[TaskT], payload: Mapping[str, Any]) -> TaskT:
    """The task in a spawn message's payload, checked where it enters the worker."""
    from pydantic import TypeAdapter

    return TypeAdapter(form).validate_python(dict(payload))
