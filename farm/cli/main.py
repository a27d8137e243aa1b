"""The `farm` command. Each command is a module of its own, imported when it is asked for (farm.cli.lazy)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from farm import __version__
from farm.cli.lazy import group_of
from farm.core.errors import ExitCode, FarmError, UserError

MisusedError: Any = typer.BadParameter.__base__  # whatever typer says of the words of a command; its name for it varies
COMPLETE = "__complete"  # what the scripts of `farm completions` call at each TAB

# Heading in `farm --help` -> command -> its module in farm.cli (farm.cli.lazy.Commands), and what it is for: below 60
# characters, so that a terminal of 80 columns shows it.
SECTIONS = {
    "Models": {
        "bench": ("bench", "Time a model on phones, and say whether to trust it"),
        "compare": ("compare", "Say which of two builds of a model is faster"),
        "tune": ("tune", "Search for fast schedules of a model's operators"),
        "run": ("run", "Run a model once, on a phone or here; keep its outputs"),
        "compile": ("compile_model", "Compile a model into a package"),
        "history": ("history", "What a model measured over time, with regressions"),
        "records": ("records", "What tunings found out: list, merge, export"),
        "model": ("model", "Model files: what is in one; import and make some"),
    },
    "Jobs": {
        "submit": ("submit", "Queue the jobs of a file: models x phones x targets"),
        "shell": ("shell", "Run a line in the shells of phones"),
        "job": ("job", "List jobs, show, cancel, hold and resume them"),
        "watch": ("watch", "Show what happens to jobs until all have ended"),
        "logs": ("logs", "What a job's attempt said"),
        "explain": ("explain", "Why a phone, a key or a job has to wait"),
    },
    "Phones": {
        "status": ("status", "The tracker's keys and every phone, once"),
        "top": ("top", "Phones, jobs and events as they change"),
        "device": ("device", "List phones, let them in, look after them"),
        "lease": ("lease", "A phone of your own for a while; who holds which"),
        "reservation": ("reservation", "Phones that are kept for somebody for a time"),
        "usage": ("usage", "Who used phones for how long"),
        "alias": ("alias", "Keys that stock TVM clients ask for"),
        "forward": ("forward", "adb forward and reverse entries that stay"),
        "trace": ("trace", "Record a phone's health over time, and look at it"),
    },
    "The farm": {
        "auth": ("auth", "Accounts for people elsewhere; who did what"),
        "serve": ("serve", "Run the daemon in the foreground"),
        "gate": ("gate", "Hold the TVM port and its sessions, apart from the daemon"),
        "reload": ("reload", "Have the daemon read its configuration again"),
        "drain": ("drain", "Hand out no phone any more, for an upgrade"),
        "doctor": ("doctor", "Check this host; each finding with what fixes it"),
        "bundle": ("bundle", "TVM runtimes that are pushed to phones"),
        "toolchain": ("toolchain", "Host interpreters with a TVM, and their bundles"),
        "store": ("store", "The database: check, copy, prune it"),
        "poison": ("poison", "Libraries that killed what ran them"),
        "demo": ("demo", "The farm on virtual phones: nothing to plug in"),
        "install-service": ("install_service", "Run farm as a service of systemd"),
        "uninstall": ("uninstall", "Take farm off every phone and this host"),
    },
    "This command line": {
        "man": ("man", "The manual page of all commands"),
        "completions": ("completions", "Completion of commands and names in your shell"),
    },
}  # fmt: skip

app = typer.Typer(
    name="farm",
    cls=group_of(SECTIONS),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Android phones on this host as a measurement lab for ML compilers.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"farm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    socket: Annotated[
        Path | None, typer.Option(help="The daemon's control socket.", envvar="FARM_SOCKET", show_default=False)
    ] = None,
    daemon: Annotated[
        str, typer.Option(help="A daemon elsewhere, tcp://HOST:PORT.", envvar="FARM_DAEMON", show_default=False)
    ] = "",
    key: Annotated[
        str, typer.Option(help="The key file for it (farm auth new).", envvar="FARM_KEY", show_default=False)
    ] = "",
    version: Annotated[  # noqa: ARG001 (its callback acts)
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options of every command."""
    if socket is not None:
        os.environ["FARM_SOCKET"] = str(socket)
    given = {name for name in ("socket", "daemon", "key") if _on_the_line(context, name)}
    if given == {"socket"}:  # said now, so it counts for more than what the environment says
        daemon = key = ""
    for name, value in (("FARM_DAEMON", daemon), ("FARM_KEY", key)):
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def _on_the_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def main() -> None:
    """Entry point: every way a command can end has its exit code (docs/interfaces.md), and none is a traceback."""
    try:
        if sys.argv[1:2] == [COMPLETE]:
            from farm.cli.complete import answer

            answer(sys.argv[2:])
            return
        sys.exit(app(prog_name="farm", standalone_mode=False))
    except FarmError as error:
        from farm.cli.context import report

        sys.exit(report(error))
    except MisusedError as error:
        sys.exit(_misused(error))
    except BrokenPipeError:  # `farm status | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _misused(error: Any) -> int:
    """Words that fit no command, said as every other error is; a group without any is asked for its help."""
    from farm.cli.context import report

    said = error.format_message()
    if error.ctx is None or said == error.ctx.get_help():
        error.show()
        return ExitCode.USAGE
    usage = error.ctx.get_usage().removeprefix("Usage: ")
    said = " ".join(said.split())  # choices stand on lines of their own there
    return report(UserError(said[:1].lower() + said[1:].rstrip("."), hint=f"{usage} (--help says more)"))
