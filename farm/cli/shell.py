"""`farm shell --on SELECTOR -- LINE`: a line in a phone's shell, queued like any other work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli import work
from farm.cli.context import JsonFlag, say
from farm.core.errors import UserError

if TYPE_CHECKING:
    from farm.client import Client, Event

OUTPUTS = {"stdout": sys.stdout, "stderr": sys.stderr}


def shell(
    line: Annotated[list[str], typer.Argument(help="The line, after --; the phone's shell reads it.")],
    on: work.Selector,
    devices: work.Devices = "1",
    timeout: work.Timeout = None,
    priority: work.Priority = work.PRIORITY,
    deadline: work.Deadline = None,
    max_attempts: work.Attempts = 1,
    after: work.After = None,
    hold: work.Hold = False,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Run a line in a phone's shell, as adb's shell user; its output comes as it is written. Ctrl-C cancels.

    A line is run once: one that a phone's fault or a restart of the daemon broke off has failed, unless --max-attempts
    allows for more.
    Exit code 1 when the line's own is not 0 (it is said), 3 when no phone matches.
    """
    from farm.jobs.specs import ShellSpec

    options = work.job_options(on, devices, timeout, priority, deadline, max_attempts, after, hold)
    command = " ".join(line)
    if not command.strip():
        raise UserError("the line is empty", hint="farm shell --on android -- getprop ro.product.model")
    spec = ShellSpec.from_wire({"command": command, **options})
    with work.client() as farm:
        readers: list[Thread] = []
        prints = None if json else _printing(farm, readers, several=devices != "1")
        submitted = work.carried_out(farm, spec, detach=detach or hold, json=json, on_event=prints)
        for reader in readers:
            reader.join()
        outcomes = farm.wait(submitted)
    work.finish(outcomes, {"spec": spec.to_wire()}, json=json, show=work.print_failures)


def _printing(farm: Client, readers: list[Thread], *, several: bool) -> Callable[[Event], None]:
    """Print what the phones say while they say it, each line with its phone's name when there may be several.

    Not in a pool: it would wait for its threads whatever happened, and they end only when the jobs do.
    """

    def copy(job: str, number: int, prefix: str) -> None:
        for line in farm.logs(job, attempt=number, follow=True):
            out = OUTPUTS.get(line.source)
            if out is not None:
                out.write(f"{prefix}{line.text}\n")
                out.flush()
            elif line.source == "farm" and line.level == "warning":  # such as that the log is full
                say(f"warning: {prefix}{line.text}")

    def began(event: Event) -> None:
        if event.kind == "attempt.started":
            number = int(event.subject.rpartition(".")[2])
            prefix = f"{event.data['device']}: " if several else ""
            readers.append(Thread(target=copy, args=(str(event.data["job"]), number, prefix), daemon=True))
            readers[-1].start()

    return began
