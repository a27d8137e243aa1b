"""What workers are told: each task is everything one attempt needs, in plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from farm.jobs.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTask:
    """A model for one phone. Fields of a spec's name are that spec's options."""

    model: str  # artifact: a model file or a package
    name: str
    precision: str
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    records: str | None  # artifact
    target_name: str
    target: Any  # a TVM tag or target dict (DeviceIdentity.targets)
    cache: str  # folder of compiled libraries and reference outputs, shared by workers of one toolchain

    @classmethod
    def of(cls, spec: ModelSpec, target: object, cache: str, **more: Any) -> Self:
        """What a spec means on one phone: options of the same name are the same; `more` are other fields' values."""
        found: dict[str, Any] = {"target_name": spec.target, "target": target, "cache": cache, **more}
        options = {each.name: getattr(spec, each.name) for each in fields(cls) if each.name not in found}
        return cls(**found, **options)

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> Self:
        """The task in a spawn message's payload."""
        return TypeAdapter(cls).validate_python(dict(fields))

    def to_wire(self) -> dict[str, Any]:
        """The payload that `from_wire` reads."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTask(ModelTask):
    """Check its numbers and time it."""

    half_width: float
    measure_s: float
    repeat: int | None
    number: int | None
    min_repeat_ms: int
    remeasure: int
    profile: bool
    inputs: str | None  # artifact: .npz
    nominals: Mapping[str, float]  # this phone's nominal seconds of reference kernels, by their keys
    virtual: bool  # the phone is one: its speed is this host's


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleUse:
    """A runtime bundle that a worker may have on its phone (verb `bundle.use`)."""

    name: str
    hash: str
    tvm: str  # version


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareTask(ModelTask):
    """Time it and another build of it, or another model, in turns."""

    model_b: str
    name_b: str
    target_b: Any  # as `target`; the executor resolves the spec's name
    target_b_name: str
    precision_b: str | None
    records_b: str | None
    min_effect: float
    measure_s: float
    inputs: str | None
    bundles: tuple[BundleUse, BundleUse] | None  # of A and B, which are one build then
    virtual: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask(ModelTask):
    """Run it once and keep its outputs."""

    inputs: str | None
    fill: Literal["random", "zeros", "ones"]  # of inputs that `inputs` does not give
    top_k: int
    labels: str | None  # artifact: one class name per line


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneTask(ModelTask):
    """Search schedules for it on a pool of phones."""

    job: str  # whose records and progress these are
    trials: int
    early_stop: int | None
    prior: str | None  # artifact
    cost_model: Literal["xgb", "random"]
    seed: int
    candidate_timeout_s: float
    timeout_s: float  # of the attempt
    search_s: float  # the search ends so many seconds after its start: what is left of the attempt is for the end
    nominals: Mapping[str, float]  # the first phone's nominal seconds of reference kernels, by their keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageTask:
    """Keep what a tune job that comes to no end of its own has measured."""

    job: str
    name: str  # of the model
    cache: str  # as ModelTask's
    prior: str | None  # artifact
