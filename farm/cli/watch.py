"""`farm watch JOB...`: follow jobs until all have ended: a live picture at a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli import complete, work
from farm.cli.connection import JsonFlag
from farm.cli.output import now_of, print_json_line, print_line, print_note, terminal
from farm.cli.output.job_events import EventLines
from farm.cli.output.terminal import interruptible
from farm.cli.status import figures
from farm.cli.watch_picture import JobPicture, after, picture_of, refreshed, with_result
from farm.common.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Group

    from farm.client import Client, Event
    from farm.client.model import Outcome

ASK_EVERY_S = 2.0  # for temperatures and for why jobs wait
FRAMES_PER_S = 4.0


def watch(
    jobs: Annotated[
        list[str], typer.Argument(help="Ids of jobs or arrays, or beginnings of them.", autocompletion=complete.jobs)
    ],
    since: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    lines: Annotated[bool, typer.Option("--lines", help="Print a line for each step, at a terminal too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Follow jobs until all have ended.

    At a terminal it draws a picture that changes: steps, attempts, the phone's temperature, a bench's interval, a
    tuning's curve. Elsewhere, and with --lines, it prints a line for each step; with --json an event a line. If the
    daemon restarts, it waits and leaves no event out. The exit code is the work's. Ctrl-C only stops watching.
    """
    live = not json and not lines and terminal.is_lively(sys.stdout)
    if live:
        outcomes = _live(jobs, since)
    else:
        with work.client() as farm:
            rows = work.jobs_of(farm, jobs)
            progress = EventLines(rows, ends=True)
            for event in farm.watch(jobs, since=since):
                if event is None:
                    continue
                if json:
                    print_json_line(event.to_wire())
                elif line := progress.line(event):
                    print_line(f"{event.at.astimezone():%H:%M:%S} {line}")
            outcomes = [farm.job(row.id, fetch_outputs=False) for row in rows]
    if not json:
        work.print_failures(outcomes)
    raise typer.Exit(work.exit_code(outcomes))


@dataclass(slots=True)
class WatchedJobs:
    """The jobs' pictures; read by the thread that draws, written by the one that follows events."""

    pictures: dict[str, JobPicture]
    temperatures: dict[str, str] = field(default_factory=dict)
    notice: str = ""  # about the daemon: it went away, or is back
    asked_s: float = -ASK_EVERY_S
    ahead: timedelta = timedelta()  # of the daemon's clock over this host's

    def on_event(self, event: Event) -> None:
        """Update the job that the event is about."""
        job = str(event.data.get("job") or event.subject)
        if job in self.pictures:
            self.pictures[job] = after(self.pictures[job], event)

    def refresh(self, farm: Client, names: Sequence[str]) -> None:
        """Ask now and then for facts that events lack: temperatures of phones, why jobs wait."""
        if time.monotonic() - self.asked_s < ASK_EVERY_S:
            return
        self.asked_s = time.monotonic()
        status = farm.status().raw
        self.ahead = now_of(status) - datetime.now(UTC)
        phones = status["devices"]
        self.temperatures = {row["name"]: words for row in phones if (words := figures(row)[0]) != "-"}
        for row in farm.jobs(jobs=names[: work.ASKED_NAMES], state=work.WAITING, limit=work.ASKED_JOBS):
            if row.id in self.pictures:
                self.pictures[row.id] = refreshed(self.pictures[row.id], row)

    def on_notice(self, notice: str) -> None:
        """The daemon went away, or is back."""
        self.notice = notice


def _live(names: list[str], since: int) -> Sequence[Outcome]:
    from rich.console import Group
    from rich.live import Live

    from farm.cli.watch_picture import WatchView, lines_of
    from farm.client import Client

    watched, out = WatchedJobs({}), terminal.console(sys.stdout)
    marks = terminal.glyphs(sys.stdout)

    def frame() -> Group:
        view = WatchView(
            now=datetime.now(UTC) + watched.ahead, width=out.width, height=max(3, out.height - 1), marks=marks,
            temperatures=dict(watched.temperatures), notice=watched.notice,
        )  # fmt: skip
        return Group(*lines_of(list(watched.pictures.values()), view))

    try:
        with interruptible(), Client(on_notice=watched.on_notice) as farm:
            watched.pictures = {row.id: picture_of(row) for row in work.jobs_of(farm, names)}
            with Live(get_renderable=frame, console=out, refresh_per_second=FRAMES_PER_S, redirect_stderr=False):
                for event in farm.watch(names, since=since, idle_s=ASK_EVERY_S):
                    if event is not None:
                        watched.on_event(event)
                    watched.refresh(farm, names)
                outcomes = [farm.job(job, fetch_outputs=False) for job in watched.pictures]
                watched.pictures = {each.job.id: with_result(watched.pictures[each.job.id], each) for each in outcomes}
                watched.notice = ""
    except KeyboardInterrupt:
        print_note(f"stopped watching; the jobs continue: farm watch {' '.join(names)}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    return outcomes
