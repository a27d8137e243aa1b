"""Kind `memory`: how long each phase of a model's life takes on a phone, and how much memory it needs there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from farm.model.specs import HalfWidth, HistorySpec, MeasureSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpec(HistorySpec):
    """Load a model, run it, load it again in a new process: the seconds and the memory of each phase."""

    kind: ClassVar[str] = "memory"

    half_width: HalfWidth = 0.01
    measure_s: MeasureSeconds = 30.0
