"""What people see of a search while it runs: plain facts, and one line. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farm.core.durations import digits, format_duration

ETA_TRIALS = 8  # of this attempt, before a rate says anything
FIRST_NEWS_S = 1.0  # between two
NEWS_PART = 0.01  # later, of the time spent: the log stays short


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task, as it stands."""

    name: str
    weight: int
    trials: int
    failed: int
    flop: float
    default_s: float  # as TVM schedules it by itself; 0: not known
    best_s: float  # infinite: no candidate ran
    latest_s: float  # of the latest candidate

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON: rates in GFLOPS, times in milliseconds; null where nothing is known."""
        return {
            "name": self.name,
            "weight": self.weight,
            "trials": self.trials,
            "failed": self.failed,
            "default_ms": self.default_s * 1e3 or None,
            "best_ms": _finite(self.best_s * 1e3),
            "best_gflops": _rate(self.flop, self.best_s),
            "latest_gflops": _rate(self.flop, self.latest_s),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A search, as it stands."""

    trials: int
    wanted: int
    estimate_s: float  # the model's latency with the best schedules; infinite: not known
    phones: Sequence[str]
    busy: int
    waits: str
    spent_s: float
    eta_s: float | None
    left_out: int = 0  # tasks of which no candidate ran yet: the estimate is without them
    tasks: int = 0  # in all

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        fields = asdict(self)
        fields["of_tasks"] = fields.pop("tasks")  # `tasks` is their rows
        return {**fields, "phones": list(self.phones), "estimate_s": _finite(self.estimate_s)}

    def line(self) -> str:
        """For people."""
        parts = [f"trial {self.trials} of {self.wanted}"]
        if self.left_out:  # a sum without them would rise with every task that joins it
            parts.append(f"{self.tasks - self.left_out} of {self.tasks} tasks measured")
        elif math.isfinite(self.estimate_s):
            parts.append(f"best {digits(self.estimate_s * 1e3)} ms")
        parts.append(f"{self.busy} of {len(self.phones)} phones busy")
        if self.eta_s is not None:
            parts.append(f"{format_duration(self.eta_s)} left")
        if self.waits:
            parts.append(self.waits)
        return ", ".join(parts)


def eta_s(trials: int, wanted: int, begun_with: int, spent_s: float) -> float | None:
    """Seconds until the last trial at the pace of this attempt; None while nobody can say.

    Args:
        trials: so far.
        wanted: in all.
        begun_with: that this attempt found done.
        spent_s: of this attempt.
    """
    made = trials - begun_with
    return None if made < ETA_TRIALS else round((wanted - trials) * spent_s / made, 1)


def news_due(told_s: float, now_s: float) -> bool:
    """Whether it is time to tell again; both count from the search's begin."""
    return now_s - told_s >= max(FIRST_NEWS_S, NEWS_PART * now_s)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rate(flop: float, seconds: float) -> float | None:
    return round(flop / seconds / 1e9, 3) if flop and seconds and math.isfinite(seconds) else None
