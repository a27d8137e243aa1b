"""The `farm` command. Each command is a module of its own, imported when it is asked for (farm.cli.lazy)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from farm import __version__
from farm.cli.lazy import group_of
from farm.core.errors import FarmError

# Heading in `farm --help` -> command -> its module in farm.cli, which has `app` (a group) or `register(app)`.
SECTIONS = {
    "Models": {
        "bench": "bench", "compare": "compare", "tune": "tune", "run": "run", "compile": "compile",
        "history": "history", "records": "records", "model": "model",
    },
    "Jobs": {
        "submit": "submit", "shell": "shell", "job": "job", "watch": "watch", "logs": "logs", "explain": "explain",
    },
    "Phones": {
        "status": "status", "device": "device", "lease": "lease", "reservation": "reservation", "usage": "usage",
        "alias": "alias", "forward": "forward", "trace": "trace",
    },
    "The farm": {
        "serve": "serve", "doctor": "doctor", "bundle": "bundle", "toolchain": "toolchain", "store": "store",
        "poison": "poison", "demo": "demo", "uninstall": "uninstall",
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
    socket: Annotated[
        Path | None, typer.Option(help="The daemon's control socket.", envvar="FARM_SOCKET", show_default=False)
    ] = None,
    version: Annotated[  # noqa: ARG001 (its callback acts)
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options of every command."""
    if socket is not None:
        os.environ["FARM_SOCKET"] = str(socket)


def main() -> None:
    """Entry point: every way a command can end has its exit code (docs/interfaces.md), and none is a traceback."""
    try:
        app(prog_name="farm")
    except FarmError as error:
        from farm.cli.context import report

        sys.exit(report(error))
    except BrokenPipeError:  # `farm status | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
