"""The outcome of a memory job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.client.model import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOutcome(Outcome):
    """The phases of a model's life on one phone."""

    phases: Sequence[Mapping[str, Any]] = ()  # rows of the result; empty unless it succeeded
    peak_bytes: int = 0  # of memory and swap, over all phases; 0 unless it succeeded

    def brief(self) -> str:
        """The most memory that it needed."""
        return f"{self.peak_bytes / 1e6:.1f} MB" if self.phases else "-"
