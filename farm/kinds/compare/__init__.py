"""Kind `compare`: time two builds in turns on the same phone and say which is faster, and whether it is worse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from farm.common.errors import Code, UserError
from farm.kinds.program import ProgramUse, Settings
from farm.model.specs import (
    DEFAULT_METRIC,
    MEASURING,
    RUNTIME,
    SIDE_B,
    ArtifactOf,
    Bounds,
    BundleUse,
    Flag,
    Help,
    LabelledInputsFile,
    MeasureSeconds,
    MeasureSpec,
    Metric,
    ModelSpec,
    ModelTask,
    Name,
    PrecisionName,
    Seconds,
    Sha256,
    TargetText,
    check_quality,
    fields_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSpec(MeasureSpec):
    """Time two builds in turns (ABBA) on the same phone: which is faster, by how much, how sure. `model` is A."""

    kind: ClassVar[str] = "compare"

    min_effect: Annotated[
        Seconds, Bounds(ge=0, le=0.5), Help("A smaller relative difference counts as none.", group=MEASURING)
    ] = 0.01
    measure_s: MeasureSeconds = 60.0
    model_b: Annotated[Sha256, ArtifactOf("model"), Help("The model of B; left out: A's.", option=False)]
    name_b: Annotated[Name, Help("What people call the model of B.", option=False)]
    target_b: Annotated[TargetText | None, Help("The target of B, if not that of A.", group=SIDE_B)] = None
    precision_b: Annotated[PrecisionName | None, Help("The precision of B, if not that of A.", group=SIDE_B)] = None
    texture_b: Annotated[Flag, Help("Textures for B; without it B uses buffers.", group=SIDE_B)] = False
    records_b: Annotated[
        Sha256 | None, ArtifactOf("records"), Help("Tuning records of B; without them B is not tuned.", group=SIDE_B)
    ] = None
    bundle: Annotated[
        Name | None, Help("Runtime bundle to run A under; needs --bundle-b.", complete="bundles", group=RUNTIME)
    ] = None
    bundle_b: Annotated[
        Name | None, Help("Runtime bundle to compare with --bundle.", complete="bundles", group=SIDE_B)
    ] = None
    program: Annotated[
        Sha256 | None, ArtifactOf("program"), Help("The program that times A, in place of TVM.", option=False)
    ] = None
    program_b: Annotated[
        Sha256 | None, ArtifactOf("program"), Help("The program that times B, in place of TVM.", option=False)
    ] = None
    settings: Annotated[
        Settings, Help("A setting of A's program, NAME=VALUE.", flag="--set", form="settings", group=RUNTIME)
    ] = field(default_factory=dict)
    settings_b: Annotated[
        Settings, Help("A setting of B's program, NAME=VALUE.", flag="--set-b", form="settings", group=SIDE_B)
    ] = field(default_factory=dict)
    quality: LabelledInputsFile = None
    metric: Metric = DEFAULT_METRIC

    def __post_init__(self) -> None:
        """Refuse one bundle without another, two for anything but one build under TVM, and builds that nobody runs."""
        others = {"--input": self.inputs, "--bundle": self.bundle}
        check_quality(self.quality, self.metric, {**others, "--runtime": self.program, "--runtime-b": self.program_b})
        self._check_programs()
        if (self.bundle is None) != (self.bundle_b is None):
            raise UserError(
                "bundles are compared two at a time", Code.BAD_SPEC, hint="give both: --bundle NAME --bundle-b NAME"
            )
        if self.bundle is None:
            return
        if self.program or self.program_b:
            raise UserError(
                "bundles are TVM's: other runtimes have none", Code.BAD_SPEC, hint="leave out --bundle and --bundle-b"
            )
        a = (self.model, self.target, self.precision, self.records)
        b = (self.target_b or self.target, self.precision_b or self.precision, self.records_b or self.records)
        if a != (self.model_b, *b):
            raise UserError(
                "two bundles are compared with one build of one model",
                Code.BAD_SPEC,
                hint="leave out the model B and all options that end in -b, except --bundle-b",
            )

    def _check_programs(self) -> None:
        """Refuse options of a build that nobody makes: a side that a program times is not built."""
        of_b = ("target_b", "precision_b", "texture_b", "records_b") if self.program_b else ()
        of_a = ("texture", "records") if self.program else ()
        of_both = ("target", "precision", "shapes", "dtypes", "inputs") if of_a and of_b else ()
        for name in (*of_b, *of_a, *of_both):
            if getattr(self, name) != (known := fields_of(CompareSpec)[name]).default:
                flag = known.help.flag or f"--{name.replace('_', '-')}"
                about = f"{flag} is for TVM, and another runtime's program runs there"
                raise UserError(about, Code.BAD_SPEC, hint=f"leave out {flag}; a program has settings: --set, --set-b")

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
    programs: tuple[ProgramUse | None, ProgramUse | None] | None = None  # that time A and B; None: TVM does
