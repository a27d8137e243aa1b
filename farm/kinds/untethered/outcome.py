"""The outcome of an untethered run: that of an energy job, for one run of a program."""

from farm.kinds.energy.outcome import EnergyOutcome as UntetheredOutcome

__all__ = ["UntetheredOutcome"]
