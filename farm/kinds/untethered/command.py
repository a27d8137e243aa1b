"""`farm untethered SPEC.toml --on SELECTOR`: joules of a program's run on phones whose ports lose their power."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag
from farm.cli.model_command import submit_model
from farm.cli.spec_options import spec_options
from farm.kinds.energy.command import print_results
from farm.kinds.program.command import described
from farm.kinds.untethered import UntetheredSpec

__all__ = ["print_results", "untethered"]


@spec_options(UntetheredSpec, devices="all", leave_out=("model",))
def untethered(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The program's description, a TOML file.")],
    fields: dict[str, Any],
    model: Annotated[Path | None, typer.Option(help="The model file, if not the description's.")] = None,
    wait: work.Wait = None,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Measure the joules of a program's run on phones whose ports have no power meanwhile. Ctrl-C cancels.

    Exit code 1 when the program, the phone or its port failed, 2 for a wrong description, 3 when no phone matches.
    """
    work.refuse_host(fields["on"], "untethered")
    given = described(spec, model, fields)
    submit_model(UntetheredSpec, given.pop("model"), given, wait=wait, detach=detach, json=json)
