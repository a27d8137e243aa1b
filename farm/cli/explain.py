"""`farm explain`: why a phone is not ready, a key waits, or a job does not run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from farm.cli import complete
from farm.cli.context import JsonFlag, call, print_json, tell
from farm.core.errors import ExitCode


class What(StrEnum):
    """What can be explained."""

    DEVICE = "device"
    KEY = "key"
    JOB = "job"


def explain(
    what: Annotated[What, typer.Argument(help="device, key or job.")],
    name: Annotated[
        str,
        typer.Argument(help="A device's name, a key or selector, or a job's id.", autocompletion=complete.explainable),
    ],
    json: JsonFlag = False,
) -> None:
    """Say why a phone is not handed out, why a request for a key waits, or why a job does not run.

    Exit code 3 for a key that no phone answers to.
    """
    answer = call("explain", what=what.value, name=name)
    if json:
        print_json(answer)
    else:
        for line in answer["lines"]:
            tell(line)
    if not answer.get("matches", True):
        raise typer.Exit(ExitCode.NO_PHONE)
