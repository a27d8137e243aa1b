"""The outcome of a sustained run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.client.model import Outcome
from farm.common.durations import in_one_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainOutcome(Outcome):
    """A model that ran on one phone for minutes."""

    buckets: Sequence[Mapping[str, Any]] = ()  # rows of the result, a minute each; empty unless it succeeded
    throttled_after_s: float | None = None  # None: it did not, or it failed
    plateau: Mapping[str, Any] | None = None  # None: it reached none
    stopped: str = ""  # why it ended early, or empty

    def brief(self) -> str:
        """The first minute's median and the last one's."""
        if not self.buckets:
            return "-"
        return ", then ".join(in_one_unit([self.buckets[place]["median_ms"] for place in (0, -1)], aligned=False))
