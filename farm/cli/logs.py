"""`farm logs JOB`: what a job's attempt said."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from farm.cli import complete, work
from farm.cli.context import JsonFlag, print_json_line, tell


def logs(
    job: Annotated[str, typer.Argument(help="A job's id or its beginning.", autocompletion=complete.jobs)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which try; the latest by default.")] = None,
    json: JsonFlag = False,
) -> None:
    """Print an attempt's log: with --json an object a line."""
    with work.client() as farm:
        for line in farm.logs(job, attempt=attempt, follow=follow):
            if json:
                print_json_line(asdict(line))
            else:
                level = "" if line.level == "info" else f"{line.level}: "
                text = f"{line.at.astimezone():%H:%M:%S} {line.source}: {level}{line.text}"
                if sys.stdout.isatty():
                    tell(text)
                else:
                    sys.stdout.write(text + "\n")  # a file or a filter gets the log as it is
                    sys.stdout.flush()
