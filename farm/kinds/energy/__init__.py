"""Kind `energy`: joules of one inference, by the phone's power meter, its power rails or its fuel gauge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from farm.model.specs import MEASURING, Bounds, Help, HistorySpec, ModelTask, Seconds

EnergyHalfWidth = Annotated[
    Annotated[float, Bounds(strict=True, ge=0.005, le=0.5)],
    Help("No number unless the 95 % interval of the joules is about ± this part of them.", group=MEASURING),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySpec(HistorySpec):
    """Run a model in windows between idle ones, and read the phone's power: the joules of one inference."""

    kind: ClassVar[str] = "energy"

    half_width: EnergyHalfWidth = 0.1
    measure_s: Annotated[
        Seconds, Bounds(ge=1, le=3600), Help("Measure so long.", flag="--measure", form="duration", group=MEASURING)
    ] = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSource:
    """What measures a phone's power: its meter, else its power rails, else its fuel gauge."""

    meter: tuple[str, ...] = ()  # the words of the command that prints it; (): the phone's own figures
    rails_period_s: float | None = None  # of its power rails, which are read; None: the fuel gauge is
    no_rails: str = ""  # why the fuel gauge is read and not power rails, a clause
    none: str = ""  # why nothing is read, a sentence; "": it is

    def notes(self) -> list[str]:
        """What readers of its figures must know."""
        if self.rails_period_s is not None:
            return ["by power rails: what CPU, GPU, accelerators and memory take, and not the rest of the phone"]
        return [f"by the fuel gauge and not by power rails: {self.no_rails}"] if self.no_rails else []


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyTask(ModelTask[EnergySpec]):
    """An energy job for one phone."""

    spec: EnergySpec  # declared again: pydantic does not look up the parameter of a base class
    power: PowerSource
