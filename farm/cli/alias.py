"""`farm alias ...`: stock TVM keys of your own."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.cli import complete
from farm.cli.context import JsonFlag, act, call, print_json, print_table, say, tell

app = typer.Typer(help="Aliases: keys stock TVM clients ask for.")

Alias = Annotated[str, typer.Argument(help="The key.", autocompletion=complete.aliases)]


@app.command("list")
def list_aliases(json: JsonFlag = False) -> None:
    """Every key, the phones that answer to it, and the selector behind it when it was set by hand."""
    rows = call("alias.list")["aliases"]
    if json:
        print_json(rows)
        return
    print_table(
        ("ALIAS", "DEVICES", "SELECTOR"), ((r["alias"], ", ".join(r["devices"]) or "-", r["selector"]) for r in rows)
    )


@app.command("set")
def set_alias(
    alias: Alias,
    selector: Annotated[
        str, typer.Argument(help="Which phones answer to it, e.g. gpu=adreno-740.", autocompletion=complete.selectors)
    ],
    json: JsonFlag = False,
) -> None:
    """Let every phone that matches SELECTOR answer to ALIAS."""
    answer = call("alias.set", alias=alias, selector=selector)
    if json:
        print_json(answer)
    else:
        tell(f"{answer['alias']}: {', '.join(answer['devices']) or 'no phone now'}")
    if answer["alias"] != alias.lower():
        say(f"warning: the key is {answer['alias']}: letters, digits and . _ - only")
    if answer["no_match"]:
        say(f"warning: {answer['no_match']}")


@app.command()
def remove(alias: Alias, json: JsonFlag = False) -> None:
    """Remove a key that was set by hand."""
    act("alias.remove", "removed {alias}", json=json, alias=alias)
