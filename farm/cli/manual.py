"""`farm man`, the manual page, and `farm completions`, the scripts of completion.

`make man` writes the page with Sphinx from docs/reference-cli.md; typer has the scripts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from farm.cli import complete
from farm.common.errors import HostError, UserError


def man(
    command: Annotated[list[str] | None, typer.Argument(help="Show only this command: job list.")] = None,
    roff: Annotated[bool, typer.Option("--roff", help="Print the page's source.")] = False,
) -> None:
    """Show the manual page of all commands, or of one, with the program `man`."""
    page = sections_of(shipped_page(), command or ())
    if roff:
        sys.stdout.write(page)
    elif shutil.which("man"):
        to = None if sys.stdout.isatty() else subprocess.PIPE
        done = subprocess.run(["man", "-l", "-"], input=page, stdout=to, encoding="utf-8", check=False)
        sys.stdout.write(done.stdout or "")
    else:
        raise HostError(
            "the program `man` is not installed",
            hint="farm COMMAND --help says the same; the page's source: farm man --roff",
        )


def shipped_page() -> str:
    """The page's source: in a source tree beside the package, else where the wheel's share/ was installed."""
    beside, installed = Path(__file__).parents[2], Path(sysconfig.get_path("data"))
    places = (beside / "man", beside / "share/man/man1", installed / "share/man/man1")
    found = next((place / "farm.1" for place in places if (place / "farm.1").is_file()), None)
    if found is None:
        raise HostError("the manual page is not installed", hint="farm COMMAND --help says the same")
    return found.read_text(encoding="utf-8")


def sections_of(page: str, command: Sequence[str]) -> str:
    """The page, or its beginning and the sections about a command and its subcommands.

    Raises:
        UserError: there is no such command.
    """
    if not command:
        return page
    head, name, *sections = re.split(r"^(?=\.SH )", page, flags=re.MULTILINE)
    title = " ".join((".SH FARM", *command)).upper()
    found = [section for section in sections if re.match(rf"{re.escape(title)}[ \n]", section)]
    if not found:
        raise UserError(f"there is no command {' '.join(command)!r}", hint="farm --help lists the commands")
    return "".join((head, name.partition("\n.sp\n")[0], "\n", *found))


def completions(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands, options and names in a shell.

    Names of phones, jobs, keys, bundles and leases are asked of the daemon, for half a second at most; without a daemon
    none are offered.
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="farm", complete_var=complete.VARIABLE, shell=shell)
    sys.stdout.write(f"{script}\n")
