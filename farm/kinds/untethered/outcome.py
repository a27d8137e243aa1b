"""The outcome of an untethered run."""

from __future__ import annotations

from dataclasses import dataclass

from farm.kinds.energy.outcome import EnergyOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class UntetheredOutcome(EnergyOutcome):
    """The joules of one run of a program on one phone."""
