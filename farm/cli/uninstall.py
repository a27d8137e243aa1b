"""`farm uninstall`: leave nothing on any phone."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.cli.context import JsonFlag, call, print_json, tell
from farm.core.errors import ExitCode, UserError


def uninstall(
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this nothing happens.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove everything farm put on every reachable phone and forget them all."""
    if not yes:
        raise UserError("this stops every phone's RPC server and removes farm from all phones", hint="add --yes")
    answer = call("uninstall")
    if json:
        print_json(answer)
    else:
        for name in answer["cleaned"]:
            tell(f"cleaned {name}")
        for name, reason in answer["failed"].items():
            tell(f"not cleaned {name}: {reason}")
    raise typer.Exit(ExitCode.FAILED if answer["failed"] else ExitCode.OK)
