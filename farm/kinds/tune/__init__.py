"""Kind `tune`: search for fast schedules on identical phones; `tune_here` does it on this host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from farm.common.errors import Code, UserError
from farm.common.limits import DEFAULT_TRIALS, MAX_TIMEOUT_S, MAX_TRIALS, MIN_TIME_S
from farm.model.requests import LeaseClass
from farm.model.specs import (
    QUEUE,
    SEARCH,
    ArtifactOf,
    Bounds,
    Flag,
    Help,
    ModelSpec,
    ModelTask,
    Quiesce,
    Seconds,
    Sha256,
    Whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSpec(ModelSpec):
    """Search for fast schedules of a model's operators with `devices` identical phones at once; keep the records."""

    kind: ClassVar[str] = "tune"
    lease_class: ClassVar[LeaseClass] = LeaseClass.TUNE
    pooled: ClassVar[bool] = True
    packages: ClassVar[bool] = False

    # Candidates measured in all, those of earlier attempts too.
    trials: Annotated[Whole, Bounds(ge=1, le=MAX_TRIALS), Help("Candidates to measure.", group=SEARCH)] = DEFAULT_TRIALS
    devices: Annotated[
        Annotated[Whole, Bounds(ge=1, le=1000)] | Literal["all"],
        Help("How many identical phones at once; all: as many as there are.", form="devices", group=QUEUE),
    ] = 1
    early_stop: Annotated[
        Annotated[Whole, Bounds(ge=1, le=MAX_TRIALS)] | None,
        Help("End after so many trials without a better estimate.", group=SEARCH),
    ] = None
    timeout_s: Annotated[
        Seconds,
        Bounds(ge=MIN_TIME_S, le=MAX_TIMEOUT_S),
        Help(
            "For all of it, the end included: 30m, 8h; with --on host for the search alone.",
            form="timeout",
            group=SEARCH,
        ),
    ] = MAX_TIMEOUT_S
    prior: Annotated[
        Sha256 | None,
        ArtifactOf("records", kept=True),
        Help("Records to begin with: a set's number, a model's name, a folder or .tar.", form="text", group=SEARCH),
    ] = None
    cost_model: Annotated[Literal["xgb", "random"], Help("What chooses candidates.", group=SEARCH)] = "xgb"
    seed: Annotated[Whole, Bounds(ge=0, le=2**31 - 1), Help("Of the search.", group=SEARCH)] = 0
    candidate_timeout_s: Annotated[
        Seconds, Bounds(ge=0.5, le=600), Help("For one candidate on a phone.", form="duration", group=SEARCH)
    ] = 10.0
    quiesce: Quiesce = None
    texture: Annotated[Flag, Help("No record is for an operator with textures.", option=False)] = False

    def __post_init__(self) -> None:
        """Refuse what no search finds."""
        if self.texture:
            raise UserError("nothing can be tuned with textures", Code.BAD_SPEC, hint="leave out texture")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneTask(ModelTask[TuneSpec]):
    """The task of its worker. `nominals` are the first phone's."""

    spec: TuneSpec  # declared again: pydantic does not look up the parameter of a base class
    job: str  # whose records and progress these are
    builders: str = ""  # the unix socket of the farm's builders; "": there are none
    parts: tuple[Sha256, ...] = ()  # of records that an earlier attempt has kept (farm.compiler.record_files)
    keep_parts: bool = False  # whether the records are kept at another host of the lab, too
    search_s: float  # the search ends so many seconds after its start: what is left of the attempt is for the end


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageTask:
    """Keep the measurements of a tune job that is interrupted."""

    job: str
    name: str  # of the model
    cache: str  # as of a ModelTask
    prior: str | None  # artifact
