"""The spec of a comparison: its fields with bounds and help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from farm.common.errors import Code, UserError
from farm.model.requests import LeaseClass
from farm.model.specs import (
    ArtifactOf,
    Bounds,
    BundleUse,
    Flag,
    Help,
    ModelSpec,
    ModelTask,
    Name,
    PrecisionName,
    Quiesce,
    Seconds,
    Sha256,
    TargetText,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSpec(ModelSpec):
    """Time two builds in turns (ABBA) on the same phone: which is faster, by how much, how sure. `model` is A."""

    kind: ClassVar[str] = "compare"
    lease_class: ClassVar[LeaseClass] = LeaseClass.BENCH

    min_effect: Annotated[Seconds, Bounds(ge=0, le=0.5), Help("A smaller relative difference counts as none.")] = 0.01
    measure_s: Annotated[
        Seconds, Bounds(ge=0.1, le=3600), Help("Measure for at most so many seconds.", flag="--measure")
    ] = 60.0
    quiet_hub: Annotated[Flag, Help("Give no other user a phone on the same hub meanwhile.")] = False
    quiesce: Quiesce = None
    model_b: Annotated[Sha256, ArtifactOf("model"), Help("The model of B; left out: A's.", option=False)]
    name_b: Annotated[Name, Help("What people call the model of B.", option=False)]
    target_b: Annotated[TargetText | None, Help("The target of B, if not that of A.")] = None
    precision_b: Annotated[PrecisionName | None, Help("The precision of B, if not that of A.")] = None
    texture_b: Annotated[Flag, Help("Textures for B; without it B uses buffers.")] = False
    records_b: Annotated[
        Sha256 | None, ArtifactOf("records"), Help("Tuning records of B; without them B is not tuned.")
    ] = None
    bundle: Annotated[Name | None, Help("Runtime bundle to run A under; needs --bundle-b.", complete="bundles")] = None
    bundle_b: Annotated[Name | None, Help("Runtime bundle to compare with --bundle.", complete="bundles")] = None
    inputs: Annotated[
        Sha256 | None, ArtifactOf("arrays"), Help(".npz with one array per model input, for both.", flag="--input")
    ] = None

    def __post_init__(self) -> None:
        """Refuse builds that do not differ as the spec says."""
        if (self.bundle is None) != (self.bundle_b is None):
            raise UserError(
                "bundles are compared two at a time", Code.BAD_SPEC, hint="give both: --bundle NAME --bundle-b NAME"
            )
        a = (self.model, self.target, self.precision, self.records)
        b = (self.target_b or self.target, self.precision_b or self.precision, self.records_b or self.records)
        if self.bundle is not None and a != (self.model_b, *b):
            raise UserError(
                "two bundles are compared with one build of one model",
                Code.BAD_SPEC,
                hint="leave out B with all its fields",
            )

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """B is A where no model is given for it: built another way, or run under another bundle."""
        return {**given, "model_b": given["model"]} if "model" in given and not given.get("model_b") else dict(given)

    def builds(self) -> tuple[ModelSpec, ...]:
        """A and B. A field left out for B is as in A, except records and textures: without its own, B has none."""
        b = ModelSpec(
            on=self.on,
            model=self.model_b,
            name=self.name_b,
            target=self.target_b or self.target,
            precision=self.precision_b or self.precision,
            texture=self.texture if self.bundle else self.texture_b,
            shapes=self.shapes,
            dtypes=self.dtypes,
            records=self.records if self.bundle else self.records_b,
        )
        return self, b


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareTask(ModelTask[CompareSpec]):
    """A comparison for one phone: its spec, and the daemon's additions."""

    spec: CompareSpec  # declared again: pydantic does not look up the parameter of a base class
    target_b: Any  # as `target`
    bundles: tuple[BundleUse, BundleUse] | None = None  # of A and B, which are one build then
