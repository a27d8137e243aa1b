"""What a watcher knows of a job: events in, a picture out. No clock, no terminal: times come with the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from farm.core.job import FINAL, JobState

if TYPE_CHECKING:
    from farm.client import Event, JobInfo

MOST_PHASES = 200  # kept; a job that repeats a step for ever must not grow its watcher
MOST_POINTS = 5_000  # of a tuning's curve
FINAL_KINDS = {f"job.{state.value}": state for state in FINAL}


@dataclass(frozen=True, slots=True)
class Phase:
    """A step of an attempt, and when it began."""

    step: str
    at: datetime
    attempt: int


@dataclass(frozen=True, slots=True)
class Try:
    """An attempt."""

    number: int
    device: str
    began: datetime
    ended: datetime | None = None
    state: str = "running"
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobPicture:
    """One job as its watcher knows it."""

    id: str
    kind: str
    name: str
    state: str
    submitted: datetime
    device: str = ""  # its latest attempt's, or the one it is pinned to
    waits: str = ""
    error: str = ""
    ended: datetime | None = None
    tries: tuple[Try, ...] = ()
    phases: tuple[Phase, ...] = ()
    timing: Mapping[str, Any] | None = None  # of a bench: its interval and latest samples
    tuning: Mapping[str, Any] | None = None  # of a tuning: how the search stands
    points: tuple[tuple[float, float], ...] = ()  # of its curve: trial, estimated milliseconds


def picture_of(job: JobInfo) -> JobPicture:
    """A job whose events have yet to be read."""
    return JobPicture(
        id=job.id, kind=job.kind, name=job.name, state=job.state.value, submitted=job.submitted_at, waits=job.waits,
        device=job.on or job.device, error=job.error.message if job.error else "", ended=job.ended_at,
    )  # fmt: skip


def brought_up_to_date(picture: JobPicture, job: JobInfo) -> JobPicture:
    """With what only the daemon's list of jobs says: why it waits."""
    if picture.state in FINAL:
        return picture
    return replace(picture, waits=job.waits, state=job.state.value if not job.ended else picture.state)


def heard(picture: JobPicture, event: Event) -> JobPicture:
    """The picture after an event about its job."""
    data: Mapping[str, Any] = event.data
    match event.kind:
        case "attempt.started":
            began = Try(len(picture.tries) + 1, str(data.get("device", "")), event.at)
            return replace(
                picture, state=JobState.RUNNING.value, device=began.device, waits="", timing=None,
                tries=(*picture.tries, began),
            )  # fmt: skip
        case "attempt.ended" if picture.tries:
            error = _message(data)
            last = replace(picture.tries[-1], ended=event.at, state=str(data.get("state", "")), error=error)
            return replace(picture, tries=(*picture.tries[:-1], last))
        case "job.progress":
            return _stepped(picture, event)
        case "job.queued" | "job.held" | "job.resumed" | "job.blocked":
            state = "queued" if event.kind == "job.resumed" else event.kind.removeprefix("job.")
            return replace(picture, state=state)
        case kind if kind in FINAL_KINDS:
            state = FINAL_KINDS[kind].value
            return replace(picture, state=state, ended=event.at, waits="", error=_message(data))
        case _:
            return picture


def _stepped(picture: JobPicture, event: Event) -> JobPicture:
    data: Mapping[str, Any] = event.data
    step, tuning, timing = str(data.get("step", "")), data.get("tuning"), data.get("timing")
    if isinstance(tuning, Mapping):
        return replace(picture, tuning=tuning, points=_points(picture.points, tuning))
    if isinstance(timing, Mapping):
        picture = replace(picture, timing=timing)
    if picture.phases and (picture.phases[-1].step, picture.phases[-1].attempt) == (step, len(picture.tries)):
        return picture
    phases = (*picture.phases, Phase(step, event.at, len(picture.tries)))
    return replace(picture, phases=phases[-MOST_PHASES:])


def _points(known: tuple[tuple[float, float], ...], tuning: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    """The curve with the points that a standing brings: from `points_from` on they take the place of known ones."""
    first = int(tuning.get("points_from") or 0)
    new = [
        (float(point[0]), float(point[2]) * 1e3)
        for point in tuning.get("points", ())
        if len(point) == 3 and point[2] is not None
    ]
    # A watcher who came later has not the first ones: what it has stays a curve all the same.
    return (*known[: min(first, len(known))], *new)[-MOST_POINTS:]


def _message(data: Mapping[str, Any]) -> str:
    error = data.get("error")
    return str(error.get("message", "")) if isinstance(error, Mapping) else ""
