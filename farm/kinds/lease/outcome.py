"""The outcome of a personal lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.client.model import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOutcome(Outcome):
    """A personal lease that has ended."""

    held_s: float | None
    reason: str  # why it ended

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        return {"held_s": result.get("held_s"), "reason": result.get("ended", "")}
