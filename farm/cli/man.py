"""`farm man [COMMAND]`: the manual page, made of the commands that there are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Annotated

import typer

from farm.core.errors import HostError, UserError


def man(
    command: Annotated[list[str] | None, typer.Argument(help="Only about this command: job list.")] = None,
    roff: Annotated[bool, typer.Option("--roff", help="Print the page's source, as in man/farm.1.")] = False,
) -> None:
    """Show the manual page of all commands, or of one, by the program `man`."""
    from typer.main import get_command

    from farm.cli.main import SECTIONS, app
    from farm.cli.manual import page

    try:
        source = page(get_command(app), SECTIONS, only=tuple(command or ()))
    except KeyError as error:
        raise UserError(f"there is no command {' '.join(command or ())!r}", hint="farm --help lists them") from error
    if roff:
        sys.stdout.write(source)
    elif shutil.which("man"):
        subprocess.run(["man", "-l", "-"], input=source.encode(), check=False)
    else:
        raise HostError(
            "there is no program `man` here",
            hint="farm COMMAND --help says the same; its source: farm man --roff",
        )
