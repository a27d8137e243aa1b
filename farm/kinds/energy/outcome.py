"""The outcome of an energy job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.client.model import Outcome
from farm.common.durations import digits


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyOutcome(Outcome):
    """The joules of one inference on one phone."""

    energy: Mapping[str, Any] | None  # of the result; None unless the meter resolved it
    unresolved: Mapping[str, Any] | None  # why it did not

    def brief(self) -> str:
        """The joules."""
        return f"{digits(self.energy['net_j'] * 1e3)} mJ" if self.energy else "-"

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        return {"energy": result.get("energy"), "unresolved": result.get("unresolved")}
