"""The outcome of a program that timed a model."""

from __future__ import annotations

from dataclasses import dataclass

from farm.kinds.bench.outcome import BenchOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutcome(BenchOutcome):
    """A model timed on one phone by a program; `target` is the program's runtime."""
