"""`farm watch` as a picture: values in, lines of text out. The width and height decide what is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.text import Text

from farm.cli import plots
from farm.cli.context import shown
from farm.cli.terminal import Glyphs
from farm.cli.watch_state import JobPicture
from farm.core.durations import digits, format_duration

SHOWN_PHASES = 6  # the latest ones
SHOWN_TASKS = 5
CURVE_ROWS = 8
BAR_CELLS = 30
STYLES = {
    "running": "cyan", "done": "green", "failed": "red", "cancelled": "yellow", "queued": "blue", "held": "magenta",
    "blocked": "magenta", "ready": "green", "busy": "cyan", "interrupted": "yellow", "yielded": "yellow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scene:
    """What is told besides the jobs."""

    now: datetime
    width: int
    height: int
    marks: Glyphs
    celsius: Mapping[str, float]  # of phones, the latest that is known
    notice: str = ""  # about the daemon: gone, or back


def lines_of(pictures: Sequence[JobPicture], scene: Scene) -> list[Text]:
    """All lines, none wider than the scene and no more than it is high."""
    lines = list(_alone(pictures[0], scene)) if len(pictures) == 1 else _many(pictures, scene)
    if scene.notice:
        lines.insert(0, Text(shown(scene.notice), "bold yellow"))
    for line in lines:
        line.truncate(scene.width, overflow="ellipsis" if scene.marks.more == "…" else "crop")
    if len(lines) > scene.height:
        return [*lines[: scene.height - 1], Text(f"{scene.marks.more} {len(lines) - scene.height + 1} lines more")]
    return lines


def _alone(job: JobPicture, scene: Scene) -> Iterator[Text]:
    took = format_duration(((job.ended or scene.now) - job.submitted).total_seconds())
    yield Text.assemble(
        (job.id, "bold"), " ", (job.state, STYLES.get(job.state, "")), f"  {job.kind} {shown(job.name)}  {took}"
    )
    if job.device:
        celsius = scene.celsius.get(job.device)
        yield Text(f"  phone    {job.device}" + ("" if celsius is None else f", {celsius:.1f} C"))
    if job.waits:
        yield Text(f"  waits    {shown(job.waits)}")
    for each in job.tries if len(job.tries) > 1 else ():
        why = f": {shown(each.error)}" if each.error else ""
        yield Text(f"  attempt {each.number}  {each.device} {each.state}{why}", STYLES.get(each.state, ""))
    yield from _phases(job, scene)
    if job.tuning is not None:
        yield from _tuning(job, job.tuning, scene)
    elif job.timing is not None:
        yield from _timing(job.timing, scene)
    if job.error:
        yield Text(f"  error    {shown(job.error)}", "red")


def _phases(job: JobPicture, scene: Scene) -> Iterator[Text]:
    current = [phase for phase in job.phases if phase.attempt == len(job.tries)]
    last = job.tries[-1].ended if job.tries else None
    ends = [*(phase.at for phase in current[1:]), job.ended or last or scene.now]
    for phase, until in list(zip(current, ends, strict=False))[-SHOWN_PHASES:]:
        seconds = max(0.0, (until - phase.at).total_seconds())
        now = phase is current[-1] and job.ended is None and last is None
        took = f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)
        mark = ">" if now else " "
        yield Text(f"  {mark} {shown(phase.step):<40} {took}", "bold" if now else "dim")


def _timing(told: Mapping[str, Any], scene: Scene) -> Iterator[Text]:
    low, median, high = (told.get(name) for name in ("low_ms", "median_ms", "high_ms"))
    if not (isinstance(low, int | float) and isinstance(median, int | float) and isinstance(high, int | float)):
        return
    half, wanted = float(told.get("half_width") or 0.0), float(told.get("wanted_half_width") or 0.0)
    yield Text(
        f"  median   {digits(median)} ms ({digits(low)} .. {digits(high)}), +-{half:.2%} of +-{wanted:.2%} wanted, "
        f"{told.get('count')} samples"
    )
    samples = [float(each) for each in told.get("samples_ms", ()) if isinstance(each, int | float)]
    room = max(20, min(60, scene.width - 11))
    if samples:
        yield Text(f"  course   {plots.sparkline(samples, room, scene.marks)}", "cyan")
        for line in plots.histogram(samples, room, scene.marks):
            yield Text(" " * 11 + line, "cyan")


def _tuning(job: JobPicture, told: Mapping[str, Any], scene: Scene) -> Iterator[Text]:
    trials, wanted = int(told.get("trials") or 0), int(told.get("wanted") or 0)
    eta = told.get("eta_s")
    left = f", {format_duration(float(eta))} left" if eta is not None else ""
    yield Text(
        f"  trials   {plots.bar(trials / wanted if wanted else 0.0, BAR_CELLS, scene.marks)} {trials} of {wanted}{left}"
    )
    phones = told.get("phones") or ()
    yield Text(f"  phones   {told.get('busy', 0)} of {len(phones)} busy: {shown(', '.join(map(str, phones)))}")
    if told.get("waits"):
        yield Text(f"  waits    {shown(str(told['waits']))}")
    if isinstance(told.get("estimate_s"), int | float) and not told.get("left_out"):
        yield Text(f"  best     {digits(float(told['estimate_s']) * 1e3)} ms estimated for the whole model")
    picture = plots.curve(job.points, trials, wanted, min(scene.width - 4, 100), CURVE_ROWS, scene.marks)
    if picture:
        yield Text("  estimated latency, ms, over trials", "dim")
        yield from (Text("  " + line, "cyan") for line in picture)
    tasks = sorted((row for row in told.get("tasks", ()) if row.get("trials")), key=lambda row: -row["trials"])
    for row in tasks[:SHOWN_TASKS]:
        best = "-" if row.get("best_ms") is None else f"{digits(row['best_ms'])} ms"
        yield Text(f"    {shown(str(row['name'])):<40} {row['trials']:>6} trials  best {best}", "dim")


def _many(pictures: Sequence[JobPicture], scene: Scene) -> list[Text]:
    """A line per job; of too many those that run first, then those that failed, then the rest; ahead of it a sum."""
    by_state: dict[str, int] = {}
    for job in pictures:
        by_state[job.state] = by_state.get(job.state, 0) + 1
    ended = sum(job.ended is not None for job in pictures)
    head = Text(f"{ended} of {len(pictures)} jobs have ended ")
    head.append(plots.bar(ended / len(pictures), BAR_CELLS, scene.marks) + "  ")
    for state, count in sorted(by_state.items()):
        head.append(f"{count} {state}  ", STYLES.get(state, ""))
    order = {"running": 0, "failed": 1, "cancelled": 2, "queued": 3, "held": 3, "blocked": 3}
    ranked = sorted(pictures, key=lambda job: order.get(job.state, 4))
    return [head, *(_line(job, scene) for job in ranked)]


def _line(job: JobPicture, scene: Scene) -> Text:
    celsius = scene.celsius.get(job.device)
    heat = "" if celsius is None or job.ended else f"{celsius:.1f} C"
    told = job.tuning or {}
    if job.error or job.waits:
        said = job.error or job.waits
    elif told.get("wanted"):
        said = f"trial {told['trials']} of {told['wanted']}"
    else:
        said = job.phases[-1].step if job.phases and job.ended is None else ""
    tries = f"try {len(job.tries)}" if len(job.tries) > 1 else ""
    return Text.assemble(
        f"{job.id:<20} ", (f"{job.state:<9} ", STYLES.get(job.state, "")),
        f"{job.device or '-':<20} {heat:<7} {tries:<6} {shown(said)}",
    )  # fmt: skip
