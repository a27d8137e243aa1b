"""`farm man [COMMAND]`: the manual page, made of the commands that there are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Annotated

import typer

from farm.core.errors import UserError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("man")(man)


def man(
    command: Annotated[list[str] | None, typer.Argument(help="Only about this command: job list.")] = None,
    roff: Annotated[bool, typer.Option("--roff", help="Print the page's source, as in man/farm.1.")] = False,
) -> None:
    """Show the manual page of all commands, or of one.

    Without the program `man` its text is printed.
    """
    from typer.main import get_command

    from farm.cli.main import SECTIONS, app
    from farm.cli.manual import page

    try:
        source = page(get_command(app), SECTIONS, only=tuple(command or ()))
    except KeyError as error:
        raise UserError(f"there is no command {' '.join(command or ())!r}", hint="farm --help lists them") from error
    if roff:
        sys.stdout.write(source)
    elif shutil.which("man") and sys.stdout.isatty():
        subprocess.run(["man", "-l", "-"], input=source.encode(), check=False)
    else:
        sys.stdout.write(as_text(source))


def as_text(source: str) -> str:
    """The page without the program `man`: what roff would set, roughly, 80 columns wide."""
    import re
    import textwrap

    names = {"ti": "~", "ha": "^", "ga": "`", "aq": "'", "dq": '"'}
    lines: list[str] = []
    indent, verbatim, head = "       ", False, False
    for raw in source.splitlines():
        request, _, rest = raw.partition(" ") if raw.startswith(".") else ("", "", raw)
        text = re.sub(r"\\f[BIR]|\\&", "", rest.strip('"') if request else rest)
        text = re.sub(r"\\\((..)", lambda found: names[found[1]], text).replace("\\-", "-").replace("\\e", "\\")
        if request in (".SH", ".SS"):
            lines += ["", ("   " if request == ".SS" else "") + text]
            indent = "       "
        elif request in (".nf", ".fi"):
            verbatim = request == ".nf"
        elif request == ".TP":
            head = True
        elif request == ".PP":
            lines.append("")
            indent = "       "
        elif request in ("", ".B", ".I", ".BR", ".RI"):
            if verbatim:
                lines.append(f"           {text}")
            else:
                lines += textwrap.wrap(text, 80, initial_indent=indent, subsequent_indent=indent) or [""]
            if head:
                indent, head = "              ", False
            elif request == "" and indent != "       ":
                indent = "       "
    return "\n".join(lines).lstrip("\n") + "\n"
