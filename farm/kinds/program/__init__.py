"""Kind `program`: time a model under another runtime, by that runtime's own benchmark program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from farm.common.limits import MAX_NUMBER, MAX_REPEAT
from farm.model.requests import LeaseClass
from farm.model.specs import (
    MEASURING,
    RUNTIME,
    ArtifactOf,
    Bounds,
    Branch,
    Commit,
    HalfWidth,
    Help,
    JobSpec,
    MeasureSeconds,
    Name,
    Quiesce,
    QuietHub,
    Remeasure,
    Sha256,
    Whole,
)

Settings = dict[Name, Annotated[str, Bounds(max_length=4096)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSpec(JobSpec):
    """The fields of every kind that takes a program to a phone. Not submitted itself."""

    program: Annotated[
        Sha256, ArtifactOf("program"), Help("The description of the program, a TOML file.", option=False)
    ]
    name: Annotated[Name, Help("What people call the model: its file name; without one, the program.", option=False)]
    model: Annotated[
        Sha256 | None, ArtifactOf("model"), Help("The model file; left out: the description's, if it names one.")
    ] = None
    settings: Annotated[
        Settings,
        Help("A setting of the description, NAME=VALUE. Repeatable.", flag="--set", form="settings", group=RUNTIME),
    ] = field(default_factory=dict)
    runs: Annotated[
        Annotated[Whole, Bounds(ge=1, le=MAX_NUMBER)] | None,
        Help("Timed runs of one call, if not the description's.", group=MEASURING),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec(RuntimeSpec):
    """Run a program that times a model by itself, again and again, until the median of its times is known."""

    kind: ClassVar[str] = "program"
    lease_class: ClassVar[LeaseClass] = LeaseClass.BENCH
    traces: ClassVar[bool] = True

    half_width: HalfWidth = 0.01
    measure_s: MeasureSeconds = 30.0
    remeasure: Remeasure = 1
    repeat: Annotated[
        Annotated[Whole, Bounds(ge=1, le=MAX_REPEAT)] | None,
        Help("Exactly so many samples instead, warm-up among them.", group=MEASURING),
    ] = None
    quiet_hub: QuietHub = False
    quiesce: Quiesce = None
    branch: Branch = None
    commit: Commit = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramUse:
    """A program that is installed on an attempt's phone, as its worker sees it (verbs `program.*`)."""

    description: dict[str, Any]  # of farm.programs.description
    sha256: str  # of the packed program
    runs: int  # of one call
    settings: dict[str, str] = field(default_factory=dict)  # all of the description, as they are in force
    reference: str = ""  # artifact with the expected numbers, .npy


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTask:
    """A program job for one phone: its spec, and the daemon's additions."""

    spec: ProgramSpec
    use: ProgramUse
    target: Any  # of the reference kernel
    cache: str  # folder of compiled kernels
    virtual: bool
    nominals: dict[str, float]  # the phone's seconds of reference kernels, by their keys
