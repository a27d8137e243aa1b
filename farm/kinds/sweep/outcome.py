"""The outcome of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.client.model import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome(Outcome):
    """One build under several settings on one phone."""

    settings: Sequence[Mapping[str, Any]]  # rows of the result; empty unless it succeeded
    recommended: str  # a setting in words; empty unless it succeeded

    def brief(self) -> str:
        """The recommended setting."""
        return self.recommended or "-"

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        rows = result.get("settings", ())
        return {"settings": rows, "recommended": rows[result["recommended"]]["setting"] if rows else ""}
