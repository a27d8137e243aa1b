"""Kind `run`: run a model once and keep its outputs, or over labelled inputs and say how right it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from farm.common.errors import Code, UserError
from farm.common.limits import MAX_TOP_K
from farm.model.specs import (
    DEFAULT_METRIC,
    OUTPUT,
    ArtifactOf,
    Bounds,
    Flag,
    Help,
    LabelledInputsFile,
    Metric,
    ModelSpec,
    Sha256,
    Whole,
    check_quality,
    exclusive,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(ModelSpec):
    """Compile a model, run it once, keep its outputs and, if asked, each output's largest elements."""

    kind: ClassVar[str] = "run"

    inputs: Annotated[
        Sha256 | None, ArtifactOf("arrays"), Help(".npz with one array per model input.", flag="--input")
    ] = None
    fill: Annotated[
        Literal["random", "zeros", "ones"], Help("Of inputs that --input does not give; random is seeded.")
    ] = "random"
    top_k: Annotated[Whole, Bounds(ge=0, le=MAX_TOP_K), Help("Print each output's largest elements.", group=OUTPUT)] = 0
    labels: Annotated[
        Sha256 | None, ArtifactOf("labels"), Help("Class names for --top-k, one per line.", group=OUTPUT)
    ] = None
    quality: LabelledInputsFile = None
    metric: Metric = DEFAULT_METRIC
    locate: Annotated[
        Flag,
        Help("Name the first wrong operator, and who is to blame; -o writes a package that shows it.", group=OUTPUT),
    ] = False

    def __post_init__(self) -> None:
        """Refuse mistakes that would otherwise show only once a phone is leased."""
        others = {"--input": self.inputs, "--top-k": self.top_k, "--fill": self.fill != "random"}
        check_quality(self.quality, self.metric, {**others, "--locate": self.locate})
        if self.locate and self.top_k:  # it keeps no outputs
            raise exclusive("--locate", "--top-k")
        if self.labels and not self.top_k:
            raise UserError(
                "labels are for the largest elements, and top_k is 0", Code.BAD_SPEC, hint="give top_k too, say 5"
            )
