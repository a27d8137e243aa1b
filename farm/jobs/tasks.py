"""What workers are told: each task is everything one attempt needs, in plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from farm.jobs.specs import BenchSpec, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTask:
    """A model for one phone."""

    model: str  # artifact: an ONNX file
    name: str
    inputs: str | None  # artifact: .npz
    target_name: str
    target: Any  # a TVM tag or target dict (DeviceIdentity.targets)
    cache: str  # folder of compiled libraries and reference outputs, shared by workers of one toolchain

    @classmethod
    def of(cls, spec: BenchSpec | RunSpec, target: object, cache: str) -> Self:
        """What a spec means on one phone: options of the same name are the same."""
        found: dict[str, Any] = {"target_name": spec.target, "target": target, "cache": cache}
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

    repeat: int
    number: int
    min_repeat_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask(ModelTask):
    """Run it once and keep its outputs."""

    fill: Literal["random", "zeros", "ones"]  # of inputs that `inputs` does not give
    top_k: int
    labels: str | None  # artifact: one class name per line
