"""The outcome of a program that timed a model: that of a bench; `target` is the program's runtime."""

from farm.kinds.bench.outcome import BenchOutcome as ProgramOutcome

__all__ = ["ProgramOutcome"]
