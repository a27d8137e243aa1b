"""The outcome of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.client.model import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOutcome(Outcome):
    """Two builds timed in turns on one phone."""

    answer: str  # what B is: faster, slower, same, "cannot tell"; empty unless it succeeded
    ratio: float | None  # B's time over A's
    interval: tuple[float, float] | None  # of the ratio, 99 %

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        found = result.get("comparison") or {}
        return {
            "answer": found.get("answer", ""),
            "ratio": found.get("ratio"),
            "interval": (found["low"], found["high"]) if found else None,
        }
