"""`farm shell --on SELECTOR -- LINE`: a line in a phone's shell, queued like any other work."""

from __future__ import annotations

import sys
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli import work
from farm.cli.context import JsonFlag, print_json
from farm.core.errors import UserError

if TYPE_CHECKING:
    from farm.client import Client, Event, Submitted

OUTPUTS = {"stdout": sys.stdout, "stderr": sys.stderr}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shell")(shell)


def shell(
    line: Annotated[list[str], typer.Argument(help="The line, after --; the phone's shell reads it.")],
    on: work.Selector,
    devices: work.Devices = "1",
    timeout: work.Timeout = None,
    priority: work.Priority = work.PRIORITY,
    deadline: work.Deadline = None,
    max_attempts: work.Attempts = work.MAX_TRIES,
    after: work.After = None,
    hold: work.Hold = False,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Run a line in a phone's shell, as adb's shell user; its output comes as it is written. Ctrl-C cancels.

    Exit code 1 when the line's own is not 0 (it is said), 3 when no phone matches.
    """
    from farm.jobs.specs import ShellSpec

    options = work.job_options(on, devices, timeout, priority, deadline, max_attempts, after, hold)
    command = " ".join(line)
    if not command.strip():
        raise UserError("the line is empty", hint="farm shell --on android -- getprop ro.product.model")
    spec = ShellSpec.from_wire({"command": command, **options})
    with work.client() as farm:
        submitted = work.submit(farm, spec)
        if detach or hold:
            work.print_ids([submitted], json=json)
            return
        if json:
            with work.cancelled_by_ctrl_c(farm, [submitted]):
                work.follow(farm, [submitted], quiet=True)
        else:
            _stream(farm, submitted)
        outcomes = farm.wait(submitted)
    if json:
        results = [work.outcome_json(each) for each in outcomes]
        print_json({"ok": all(each.ok for each in outcomes), "spec": spec.to_wire(), "results": results})
    else:
        work.print_failures(outcomes)
    raise typer.Exit(work.exit_code(outcomes))


def _stream(farm: Client, submitted: Submitted) -> None:
    """Print what the phones say while they say it, each line with its phone's name when there are several."""
    several = len(submitted.jobs) > 1

    def copy(job: str, number: int, prefix: str) -> None:
        for line in farm.logs(job, attempt=number, follow=True):
            out = OUTPUTS.get(line.source)
            if out is not None:
                out.write(f"{prefix}{line.text}\n")
                out.flush()

    # Not a pool: it waits for its threads whatever happened, and they end only when the jobs do.
    readers: list[Thread] = []

    def began(event: Event) -> None:
        if event.kind == "attempt.started":
            number = int(event.subject.rpartition(".")[2])
            prefix = f"{event.data['device']}: " if several else ""
            readers.append(Thread(target=copy, args=(str(event.data["job"]), number, prefix), daemon=True))
            readers[-1].start()

    with work.cancelled_by_ctrl_c(farm, [submitted]):
        work.follow(farm, [submitted], on_event=began)
        for reader in readers:
            reader.join()
