"""`farm explain`: why a phone is not ready, or why a key waits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from farm.cli.context import JsonFlag, call, print_json


class What(StrEnum):
    """What can be explained."""

    DEVICE = "device"
    KEY = "key"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(
    what: Annotated[What, typer.Argument(help="device or key.")],
    name: Annotated[str, typer.Argument(help="A device's name, or a key or selector.")],
    json: JsonFlag = False,
) -> None:
    """Say why a phone is not handed out, or why a request for a key waits."""
    answer = call("explain", what=what.value, name=name)
    if json:
        print_json(answer)
        return
    for line in answer["lines"]:
        typer.echo(line)
