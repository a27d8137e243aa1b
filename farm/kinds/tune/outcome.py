"""The outcome of a tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.client.model import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOutcome(Outcome):
    """A model tuned on one or several phones."""

    trials: int  # 0 unless it succeeded, as all that follows is empty
    speedup: float | None  # of the tuned build over the untuned one, on a phone of the pool
    interval: tuple[float, float] | None  # of the speed-up, 99 %
    package: str  # artifact: the tuned model, as `farm run` takes it
    records: str  # artifact

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        gain = result.get("speedup") or {}
        return {
            "trials": result.get("trials", 0),
            "speedup": gain.get("times"),
            "interval": (gain["low"], gain["high"]) if gain else None,
            "package": result.get("package", ""),
            "records": (result.get("records") or {}).get("artifact", ""),
        }
