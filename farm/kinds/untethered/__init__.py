"""Kind `untethered`: joules of a program's run on a phone without its cable, by the phone's own fuel gauge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from farm.kinds.energy import EnergyHalfWidth
from farm.kinds.energy.cycles import MAX_MEASURE_S
from farm.kinds.program import RuntimeSpec
from farm.model.requests import LeaseClass
from farm.model.specs import DEFAULT_TIMEOUT_S, MEASURING, QUEUE, Attempts, Bounds, Help, Quiesce, Seconds

DEFAULT_MEASURE_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UntetheredSpec(RuntimeSpec):
    """Call a program on a phone whose port has no power, in windows between idle ones: the joules of a run."""

    kind: ClassVar[str] = "untethered"
    lease_class: ClassVar[LeaseClass] = LeaseClass.BENCH
    traces: ClassVar[bool] = True
    worker: ClassVar[bool] = False
    once: ClassVar[bool] = True

    half_width: EnergyHalfWidth = 0.1
    measure_s: Annotated[
        Seconds,
        Bounds(ge=1, le=MAX_MEASURE_S),
        Help("Measure so long; the phone is away meanwhile.", flag="--measure", form="duration", group=MEASURING),
    ] = DEFAULT_MEASURE_S
    quiesce: Quiesce = None
    # A failure without the cable is known only afterwards, and as a rule happens again.
    max_attempts: Annotated[Attempts, Help("How many attempts at most.", group=QUEUE)] = 1

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The time limit is what a bench has, and twice the run: calls of the program may be long."""
        measure_s = float(given.get("measure_s") or DEFAULT_MEASURE_S)
        return {**given, "timeout_s": given.get("timeout_s") or DEFAULT_TIMEOUT_S + 2 * measure_s}
