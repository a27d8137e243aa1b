"""`farm watch JOB...`: what happens to jobs, until all have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.cli import work
from farm.cli.context import JsonFlag, print_json_line, tell
from farm.cli.progress import Progress


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(watch)


def watch(
    jobs: Annotated[list[str], typer.Argument(help="Ids of jobs or arrays.")],
    since: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Print events of jobs until all have ended; the exit code is the work's. Ctrl-C only stops watching.

    With --json an event a line.
    """
    with work.client() as farm:
        progress = Progress(farm.jobs(jobs=jobs[: work.ASKED_NAMES], limit=work.ASKED_JOBS), ends=True)
        for event in farm.watch(jobs, since=since):
            if event is None:
                continue
            if json:
                print_json_line(event.to_wire())
            else:
                line = progress.line(event)
                if line:
                    tell(f"{event.at.astimezone():%H:%M:%S} {line}")
        outcomes = farm.wait(jobs, fetch_outputs=False)
    if not json:
        work.print_failures(outcomes)
    raise typer.Exit(work.exit_code(outcomes))
