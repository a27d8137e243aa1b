"""The `farm` command. Each group is a module of its own; heavy imports happen inside the commands that need them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from farm import __version__
from farm.cli import (
    alias,
    bench,
    bundle,
    compare,
    demo,
    device,
    doctor,
    explain,
    forward,
    history,
    job,
    lease,
    logs,
    model,
    poison,
    records,
    reservation,
    run,
    serve,
    shell,
    status,
    store,
    submit,
    toolchain,
    trace,
    tune,
    uninstall,
    usage,
    watch,
)
from farm.cli import compile as compile_
from farm.cli.context import report
from farm.core.errors import FarmError

app = typer.Typer(
    name="farm",
    no_args_is_help=True,
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


COMMANDS = (
    serve, demo, status, compile_, bench, compare, tune, history, run, shell, submit, logs, watch, explain, usage,
    doctor, uninstall,
)  # fmt: skip
for module in COMMANDS:
    module.register(app)
GROUPS = {
    "device": device, "bundle": bundle, "toolchain": toolchain, "alias": alias, "job": job, "lease": lease,
    "reservation": reservation, "forward": forward, "store": store, "poison": poison, "records": records,
    "model": model, "trace": trace,
}  # fmt: skip
for name, group in GROUPS.items():
    app.add_typer(group.app, name=name, no_args_is_help=True)


def main() -> None:
    """Entry point: every way a command can end has its exit code (docs/interfaces.md), and none is a traceback."""
    try:
        app(prog_name="farm")
    except FarmError as error:
        sys.exit(report(error))
    except BrokenPipeError:  # `farm status | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
