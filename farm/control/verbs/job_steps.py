"""What running jobs do just now, folded from the events that tell it: rows show it without reading any history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from farm.core.events import Event, EventLog
from farm.core.job import JobState

STOPS = frozenset(f"job.{state.value}" for state in JobState if state is not JobState.RUNNING)
MOST_POINTS = 2_000  # of a curve: 60 kB; a search that improves oftener is not told whole


@dataclass(frozen=True, slots=True)
class Step:
    """The latest that a running job told."""

    step: str
    at: str  # ISO 8601
    device: str
    attempt: int
    tuning: Mapping[str, Any] = field(default_factory=dict)  # farm.tuning.progress.Standing and `tasks`; {}: no search
    timing: Mapping[str, Any] = field(default_factory=dict)  # a bench's interval so far (docs/measurement.md)
    curve: tuple[tuple[float, ...], ...] = ()  # trial, seconds of search, estimated latency in seconds

    @property
    def done(self) -> int | None:
        """Of a search: trials so far; None where nothing is counted."""
        return _whole(self.tuning.get("trials"))

    @property
    def of(self) -> int | None:
        """Of a search: trials in all."""
        return _whole(self.tuning.get("wanted"))

    def row(self) -> dict[str, Any]:
        """For a list."""
        return {"step": self.step, "step_at": self.at, "done": self.done, "of": self.of}

    def to_wire(self) -> dict[str, Any]:
        """Whole, for one job."""
        return {**self.row(), "device": self.device, "attempt": self.attempt, "tuning": dict(self.tuning),
                "timing": dict(self.timing), "curve": [list(point) for point in self.curve]}  # fmt: skip


def stepped(before: Step | None, event: Event) -> Step:
    """The step after a `job.progress` event. A search tells only the points that are new, and from which one on."""
    data = event.data
    number = _whole(data.get("attempt")) or 0
    timing = data.get("timing")
    now = Step(str(data.get("step", "")), event.at.isoformat(), str(data.get("device", "")), number,
               timing=timing if isinstance(timing, Mapping) else {})  # fmt: skip
    known = before if before is not None and before.attempt == number else None
    told = data.get("tuning")
    if not isinstance(told, Mapping):
        return now if known is None else replace(now, tuning=known.tuning, curve=known.curve)
    first = _whole(told.get("points_from")) or 0
    points = tuple(tuple(map(float, point)) for point in told.get("points", ()))
    curve = ((known.curve[:first] if known else ()) + points)[:MOST_POINTS]
    rest = {name: value for name, value in told.items() if name not in ("points", "points_from")}
    return replace(now, tuning=rest, curve=curve)


class JobSteps:
    """The latest step of each job that runs. Used on one event loop."""

    def __init__(self, events: EventLog) -> None:
        self._steps: dict[str, Step] = {}
        self.stop: Callable[[], None] = events.subscribe(self._heard)

    def of(self, job: str) -> Step | None:
        """Of a job; None when it told nothing, or does not run."""
        return self._steps.get(job)

    def _heard(self, event: Event) -> None:
        if event.kind == "job.progress":
            self._steps[event.subject] = stepped(self._steps.get(event.subject), event)
        elif event.kind in STOPS:
            self._steps.pop(event.subject, None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
