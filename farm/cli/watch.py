"""`farm watch JOB...`: what happens to jobs, until all have ended: a live picture at a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli import complete, terminal, work
from farm.cli.context import JsonFlag, print_json_line, say, tell
from farm.cli.interrupts import interruptible
from farm.cli.progress import Progress
from farm.core.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Group

    from farm.cli.watch_state import JobPicture
    from farm.client import Client, Event, JobInfo
    from farm.client.outcomes import Outcome

LOOK_S = 2.0  # between two questions for temperatures and for why a job waits
FRAMES_PER_S = 4.0


def watch(
    jobs: Annotated[
        list[str], typer.Argument(help="Ids of jobs or arrays, or beginnings of them.", autocompletion=complete.jobs)
    ],
    since: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    lines: Annotated[bool, typer.Option("--lines", help="A line for each step, at a terminal too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show what happens to jobs until all have ended.

    At a terminal a picture that changes: phases, attempts, the phone's temperature, a bench's interval, a tuning's
    curve. Elsewhere, and with --lines, a line for each step; with --json an event a line. A daemon that restarts is
    waited for, and nothing is left out. The exit code is the work's. Ctrl-C only stops watching.
    """
    live = not json and not lines and terminal.lively(sys.stdout)
    if live:
        outcomes = _live(jobs, since)
    else:
        with work.client() as farm:
            progress = Progress(farm.jobs(jobs=jobs[: work.ASKED_NAMES], limit=work.ASKED_JOBS), ends=True)
            for event in farm.watch(jobs, since=since):
                if event is None:
                    continue
                if json:
                    print_json_line(event.to_wire())
                elif line := progress.line(event):
                    tell(f"{event.at.astimezone():%H:%M:%S} {line}")
            outcomes = farm.wait(jobs, fetch_outputs=False)
    if not json:
        work.print_failures(outcomes)
    raise typer.Exit(work.exit_code(outcomes))


@dataclass(slots=True)
class Showing:
    """The picture and what it is made from; read by the thread that draws, written by the one that listens."""

    pictures: dict[str, JobPicture] = field(default_factory=dict)
    celsius: dict[str, float] = field(default_factory=dict)
    notice: str = ""
    looked_s: float = -LOOK_S

    def begin(self, rows: Iterable[JobInfo]) -> None:
        """Jobs as they stand."""
        from farm.cli.watch_state import picture_of

        self.pictures = {row.id: picture_of(row) for row in sorted(rows, key=lambda row: row.id)}

    def heard(self, event: Event) -> None:
        """Something happened to one of them."""
        from farm.cli.watch_state import heard

        job = str(event.data.get("job") or event.subject)
        if job in self.pictures:
            self.pictures[job] = heard(self.pictures[job], event)

    def look(self, farm: Client, names: Sequence[str]) -> None:
        """What no event tells, now and then: heat of phones, why jobs wait."""
        from farm.cli.watch_state import brought_up_to_date

        if time.monotonic() - self.looked_s < LOOK_S:
            return
        self.looked_s = time.monotonic()
        self.celsius = {each.name: each.temperature_c for each in farm.devices() if each.temperature_c is not None}
        for row in farm.jobs(jobs=names[: work.ASKED_NAMES], state=work.WAITING, limit=work.ASKED_JOBS):
            if row.id in self.pictures:
                self.pictures[row.id] = brought_up_to_date(self.pictures[row.id], row)

    def told(self, notice: str) -> None:
        """The daemon went away, or is back."""
        self.notice = notice


def _live(names: list[str], since: int) -> Sequence[Outcome]:
    from rich.console import Group
    from rich.live import Live

    from farm.cli.watch_screen import Scene, lines_of
    from farm.client import Client

    showing, out = Showing(), terminal.console(sys.stdout)
    marks = terminal.glyphs(sys.stdout)

    def frame() -> Group:
        scene = Scene(
            now=datetime.now(UTC), width=out.width, height=max(3, out.height - 1), marks=marks,
            celsius=dict(showing.celsius), notice=showing.notice,
        )  # fmt: skip
        return Group(*lines_of(list(showing.pictures.values()), scene))

    try:
        with interruptible(), Client(on_notice=showing.told) as farm:
            showing.begin(farm.jobs(jobs=names[: work.ASKED_NAMES], limit=work.ASKED_JOBS))
            with Live(get_renderable=frame, console=out, refresh_per_second=FRAMES_PER_S, redirect_stderr=False):
                for event in farm.watch(names, since=since, idle_s=LOOK_S):
                    if event is not None:
                        showing.heard(event)
                    showing.look(farm, names)
                outcomes = farm.wait(names, fetch_outputs=False)
                showing.notice = ""
    except KeyboardInterrupt:
        say(f"stopped watching; the jobs go on: farm watch {' '.join(names)}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    return outcomes
