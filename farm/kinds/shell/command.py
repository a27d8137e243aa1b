"""`farm shell --on SELECTOR -- LINE`: a line in a phone's shell, queued like any other work."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag
from farm.cli.output import OutputError, print_line, print_note
from farm.cli.spec_options import spec_options
from farm.common.errors import FarmError, UserError
from farm.kinds.shell import ShellSpec

if TYPE_CHECKING:
    from farm.client import Client, Event
    from farm.kinds.outcomes import ShellOutcome


@spec_options(ShellSpec)
def shell(
    line: Annotated[list[str], typer.Argument(help="The line, after --; the phone's shell reads it.")],
    fields: dict[str, Any],
    wait: work.Wait = None,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Run a line in a phone's shell, as adb's shell user; its output comes as it is written. Ctrl-C cancels.

    A line is run once: one that a phone's fault or a restart of the daemon broke off has failed, unless --max-attempts
    allows for more.
    Exit code 1 when the line's own is not 0 (which is printed), 3 when no phone matches.
    """
    command = " ".join(line)
    if not command.strip():
        raise UserError("the line is empty", hint="farm shell --on android -- getprop ro.product.model")
    spec = ShellSpec.from_wire({"command": command, **fields})
    with work.client() as farm:
        readers: list[threading.Thread] = []
        failures: list[OutputError] = []
        prints = None if json else _printing(farm, readers, failures, several=fields["devices"] != 1)
        try:
            _, outcomes = work.submit_and_wait(farm, spec, detach=detach, wait=wait, json=json, on_event=prints)
            for reader in readers:
                reader.join()
        finally:
            if failures:
                raise failures[0]
    work.finish(outcomes, {"spec": spec.to_wire()}, json=json, show=work.print_failures)


def _printing(
    farm: Client, readers: list[threading.Thread], failures: list[OutputError], *, several: bool
) -> Callable[[Event], None]:
    """Print the phones' output as it comes, each line with its phone's name when there may be several.

    If stdout cannot be written, the reader adds the error to `failures` and interrupts the command as Ctrl-C does. Not
    in a pool: it would wait for its threads whatever happened, and they end only when the jobs do.
    """

    def copy(job: str, number: int, prefix: str) -> None:
        for line in farm.logs(job, attempt=number, follow=True):
            if line.source in ("stdout", "stderr"):
                out = getattr(sys, line.source)
                out.write(f"{prefix}{line.text}\n")
                out.flush()
            elif line.source == "farm" and line.level == "warning":  # such as that the log is full
                print_note(f"warning: {prefix}{line.text}")

    def read(job: str, number: int, prefix: str) -> None:
        try:
            copy(job, number, prefix)
        except OutputError as error:
            failures.append(error)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        except FarmError as error:
            print_note(f"warning: {prefix}the output is incomplete: {error.message}; its end: farm job show {job}")

    def began(event: Event) -> None:
        if event.kind == "attempt.started":
            number = int(event.subject.rpartition(".")[2])
            prefix = f"{event.data['device']}: " if several else ""
            readers.append(threading.Thread(target=read, args=(str(event.data["job"]), number, prefix), daemon=True))
            readers[-1].start()

    return began


def print_job(outcome: ShellOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the outcome of one command line, for `farm job show`."""
    print_line(f"exit code {outcome.exit_code}")
    for name, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        if text:
            print_line(f"{name}:")
            for line in text.rstrip().split("\n"):
                print_line(line)
