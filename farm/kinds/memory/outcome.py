"""The outcome of a memory job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.client.model import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOutcome(Outcome):
    """The phases of a model's life on one phone."""

    phases: Sequence[Mapping[str, Any]]  # rows of the result; empty unless it succeeded
    peak_bytes: int  # of memory and swap, over all phases; 0 unless it succeeded

    def brief(self) -> str:
        """The most memory that it needed."""
        return f"{self.peak_bytes / 1e6:.1f} MB" if self.phases else "-"

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        return {"phases": result.get("phases", ()), "peak_bytes": result.get("peak_bytes", 0)}
