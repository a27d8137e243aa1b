"""The picture of `farm watch`: events in, a job's picture out; pictures in, lines of text of the view's size out.

No clock, no terminal: times come with the events and the view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from farm.cli.output import OLD, escaped, plots, style_of
from farm.cli.output.terminal import Glyphs
from farm.cli.top_picture import aligned, cut
from farm.common.durations import digits, format_duration, time_unit, with_unit
from farm.measure.conditions import uncertainty_words
from farm.model.job import FINAL, JobState

if TYPE_CHECKING:
    from farm.client import Event, JobInfo
    from farm.client.model import Outcome

MAX_STEPS = 200  # kept; a job that repeats a step forever must not grow its watcher
MAX_POINTS = 5_000  # of a tuning's curve
FINAL_KINDS = {f"job.{state.value}": state for state in FINAL}
SHOWN_PHASES = 6  # the latest ones
SHOWN_TASKS = 5
CURVE_ROWS = 8
BAR_CELLS = 30


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step of an attempt, and when it began."""

    step: str
    at: datetime
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
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
    tries: tuple[AttemptRow, ...] = ()
    phases: tuple[StepRow, ...] = ()
    timing: Mapping[str, Any] | None = None  # of a bench: its interval and latest samples
    tuning: Mapping[str, Any] | None = None  # of a tuning: the search's progress
    points: tuple[tuple[float, float], ...] = ()  # of its curve: trial, estimated milliseconds
    result: str = ""  # of a job that is done


def picture_of(job: JobInfo) -> JobPicture:
    """A job before its first event."""
    return JobPicture(
        id=job.id, kind=job.kind, name=job.name, state=job.state.value, submitted=job.submitted_at, waits=job.waits,
        device=job.on or job.device, error=job.error.message if job.error else "", ended=job.ended_at,
    )  # fmt: skip


def refreshed(picture: JobPicture, job: JobInfo) -> JobPicture:
    """The picture with the reasons for waiting, which only the daemon's list of jobs has."""
    if picture.state in FINAL:
        return picture
    return replace(picture, waits=job.waits, state=job.state.value if not job.ended else picture.state)


def with_result(picture: JobPicture, outcome: Outcome) -> JobPicture:
    """The picture of a job that has ended."""
    return replace(picture, result=outcome.brief().removeprefix("-"))


def after(picture: JobPicture, event: Event) -> JobPicture:
    """The picture after an event about its job."""
    data: Mapping[str, Any] = event.data
    match event.kind:
        case "attempt.started":
            began = AttemptRow(len(picture.tries) + 1, str(data.get("device", "")), event.at)
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
            # The last standing may be that of a try that is not the reported one.
            return replace(picture, state=state, ended=event.at, waits="", error=_message(data), timing=None)
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
    phases = (*picture.phases, StepRow(step, event.at, len(picture.tries)))
    return replace(picture, phases=phases[-MAX_STEPS:])


def _points(known: tuple[tuple[float, float], ...], tuning: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    """The curve with the points that a standing brings: from `points_from` on they take the place of known ones."""
    first = int(tuning.get("points_from") or 0)
    new = [
        (float(point[0]), float(point[2]) * 1e3)
        for point in tuning.get("points", ())
        if len(point) == 3 and point[2] is not None
    ]
    # A watcher that came later lacks the first ones: the rest stays a curve all the same.
    return (*known[: min(first, len(known))], *new)[-MAX_POINTS:]


def _message(data: Mapping[str, Any]) -> str:
    error = data.get("error")
    return str(error.get("message", "")) if isinstance(error, Mapping) else ""


@dataclass(frozen=True, slots=True)
class WatchView:
    """The terminal, the time, and facts that no job has."""

    now: datetime
    width: int
    height: int
    marks: Glyphs
    temperatures: Mapping[str, str]  # by phone, in words: 41.2C 2h ago
    notice: str = ""  # about the daemon: gone, or back


def lines_of(pictures: Sequence[JobPicture], view: WatchView) -> list[Text]:
    """All lines, none wider than the view and no more than it is high."""
    if not pictures:  # none of the names is a job's, which the daemon is about to say
        return []
    lines = list(_alone(pictures[0], view)) if len(pictures) == 1 else _many(pictures, view)
    if view.notice:
        lines.insert(0, Text(escaped(view.notice), "bold yellow"))
    for line in lines:
        cut(line, view.width, view.marks)
    if len(lines) > view.height:
        return [*lines[: view.height - 1], Text(f"{view.marks.more} {len(lines) - view.height + 1} lines more")]
    return lines


def _alone(job: JobPicture, view: WatchView) -> Iterator[Text]:
    took = format_duration(((job.ended or view.now) - job.submitted).total_seconds())
    yield Text.assemble(
        (job.id, "bold"), " ", (job.state, style_of(job.state)), f"  {job.kind} {escaped(job.name)}  {took}"
    )
    if job.device:
        heat = _heat(job, view)
        yield Text.assemble(f"  phone    {job.device}", ", " if heat else "", heat)
    if job.waits:
        yield Text(f"  waits    {escaped(job.waits)}")
    for each in job.tries if len(job.tries) > 1 else ():
        why = f": {escaped(each.error)}" if each.error else ""
        yield Text(f"  attempt {each.number}  {each.device} {each.state}{why}", style_of(each.state))
    yield from _phases(job, view)
    if job.tuning is not None:
        yield from _tuning(job, job.tuning, view)
    elif job.timing is not None:
        yield from _timing(job.timing, view)
    if job.result:
        yield Text(f"  result   {escaped(job.result)}")
    if job.error:
        yield Text(f"  error    {escaped(job.error)}", "red")


def _phases(job: JobPicture, view: WatchView) -> Iterator[Text]:
    current = [phase for phase in job.phases if phase.attempt == len(job.tries)]
    last = job.tries[-1].ended if job.tries else None
    ends = [*(phase.at for phase in current[1:]), job.ended or last or view.now]
    for phase, until in list(zip(current, ends, strict=False))[-SHOWN_PHASES:]:
        seconds = max(0.0, (until - phase.at).total_seconds())
        now = phase is current[-1] and job.ended is None and last is None
        took = f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)
        mark = ">" if now else " "
        yield Text(f"  {mark} {escaped(phase.step):<40} {took}", "bold" if now else "dim")


def _timing(progress: Mapping[str, Any], view: WatchView) -> Iterator[Text]:
    low, median, high = (progress.get(name) for name in ("low_ms", "median_ms", "high_ms"))
    if not (isinstance(low, int | float) and isinstance(median, int | float) and isinstance(high, int | float)):
        return
    half, wanted = float(progress.get("half_width") or 0.0), float(progress.get("wanted_half_width") or 0.0)
    unit, scale = time_unit(median)
    between = f"{digits(low * scale)} to {digits(high * scale)}"
    yield Text(
        f"  median   {digits(median * scale)} {unit} ({between}), "
        f"{uncertainty_words(half, wanted)}, {progress.get('count')} samples"
    )
    samples = [float(each) for each in progress.get("samples_ms", ()) if isinstance(each, int | float)]
    room = max(20, min(60, view.width - 11))
    if samples:
        yield Text(f"  course   {plots.sparkline(samples, room, view.marks)}", "cyan")
        for line in plots.histogram(samples, room, view.marks):
            yield Text(" " * 11 + line, "cyan")


def _tuning(job: JobPicture, progress: Mapping[str, Any], view: WatchView) -> Iterator[Text]:
    trials, wanted = int(progress.get("trials") or 0), int(progress.get("wanted") or 0)
    eta = progress.get("eta_s")
    left = f", {format_duration(float(eta))} left" if eta is not None else ""
    yield Text(
        f"  trials   {plots.bar(trials / wanted if wanted else 0.0, BAR_CELLS, view.marks)} {trials} of {wanted}{left}"
    )
    phones = progress.get("phones") or ()
    yield Text(f"  phones   {progress.get('busy', 0)} of {len(phones)} busy: {escaped(', '.join(map(str, phones)))}")
    if progress.get("waits"):
        yield Text(f"  waits    {escaped(str(progress['waits']))}")
    if isinstance(progress.get("estimate_s"), int | float) and not progress.get("left_out"):
        yield Text(f"  best     {with_unit(float(progress['estimate_s']) * 1e3)} estimated for the whole model")
    picture = plots.curve(job.points, trials, wanted, min(view.width - 4, 100), CURVE_ROWS, view.marks)
    if picture:
        yield Text("  estimated latency, ms, over trials", "dim")
        yield from (Text("  " + line, "cyan") for line in picture)
    tasks = sorted((row for row in progress.get("tasks", ()) if row.get("trials")), key=lambda row: -row["trials"])
    for row in tasks[:SHOWN_TASKS]:
        best = "-" if row.get("best_ms") is None else f"{digits(row['best_ms'])} ms"
        yield Text(f"    {escaped(str(row['name'])):<40} {row['trials']:>6} trials  best {best}", "dim")


def _many(pictures: Sequence[JobPicture], view: WatchView) -> list[Text]:
    """A line per job; of too many those that run first, then those that failed, then the rest; ahead of it a sum."""
    by_state: dict[str, int] = {}
    for job in pictures:
        by_state[job.state] = by_state.get(job.state, 0) + 1
    ended = sum(job.ended is not None for job in pictures)
    head = Text(f"{ended} of {len(pictures)} jobs have ended ")
    head.append(plots.bar(ended / len(pictures), BAR_CELLS, view.marks) + "  ")
    for state, count in sorted(by_state.items()):
        head.append(f"{count} {state}  ", style_of(state))
    order = {"running": 0, "failed": 1, "cancelled": 2, "queued": 3, "held": 3, "blocked": 3}
    ranked = sorted(pictures, key=lambda job: order.get(job.state, 4))
    return [head, *aligned([_cells(job, view) for job in ranked])]


def _heat(job: JobPicture, view: WatchView) -> Text:
    """The temperature of a job's phone, grey where it is old."""
    words = view.temperatures.get(job.device, "")
    return Text(words, "dim" if words.endswith(OLD) else "")


def _cells(job: JobPicture, view: WatchView) -> list[Text]:
    progress = job.tuning or {}
    if job.error or job.waits or job.result:
        text = job.error or job.waits or job.result
    elif progress.get("wanted"):
        text = f"trial {progress['trials']} of {progress['wanted']}"
    else:
        text = job.phases[-1].step if job.phases and job.ended is None else ""
    tries = f"try {len(job.tries)}" if len(job.tries) > 1 else ""
    return [
        Text(job.id), Text(job.state, style_of(job.state)), Text(job.device or "-"),
        Text("") if job.ended else _heat(job, view), Text(tries), Text(escaped(text)),
    ]  # fmt: skip
