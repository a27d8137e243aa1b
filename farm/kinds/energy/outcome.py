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

    energy: Mapping[str, Any] | None = None  # of the result; None unless the meter resolved it
    unresolved: Mapping[str, Any] | None = None  # why it did not

    def brief(self) -> str:
        """The joules."""
        return f"{digits(self.energy['net_j'] * 1e3)} mJ" if self.energy else "-"
