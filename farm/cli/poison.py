"""`farm poison ...`: libraries that killed what ran them, and are not run any more."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from farm.cli.context import JsonFlag, call, print_json, print_table, tell, when
from farm.core.errors import UserError

app = typer.Typer(help="Libraries that killed the phone's RPC worker: from the second time on nobody runs them.")

SHOWN_HASH_CHARS = 12


@app.command("list")
def list_poison(json: JsonFlag = False) -> None:
    """What has killed, the latest first."""
    answer = call("poison.list")
    if json:
        print_json(answer)
        return
    print_table(
        ("LIBRARY", "KILLS", "STATE", "LAST", "DEVICE", "USER", "JOB", "WHAT"),
        (
            (
                row["artifact"][:SHOWN_HASH_CHARS], str(row["kills"]), "refused" if row["refused"] else "suspect",
                when(datetime.fromisoformat(row["last_at"])), row["device"], row["user"], row["job"], row["what"],
            )
            for row in answer["poison"]
        ),
    )  # fmt: skip
    if answer["more"]:
        tell(f"{answer['more']} more")


@app.command()
def forget(
    library: Annotated[str, typer.Argument(help="Its SHA-256, or the beginning that `farm poison list` shows.")],
    json: JsonFlag = False,
) -> None:
    """Let a library be run again (operators)."""
    known = [row["artifact"] for row in call("poison.list")["poison"] if row["artifact"].startswith(library)]
    if len(known) > 1:
        raise UserError(f"{len(known)} libraries begin with {library!r}", hint="write more of it")
    answer = call("poison.forget", artifact=known[0] if known else library)
    if json:
        print_json(answer)
    else:
        tell(f"{answer['artifact'][:SHOWN_HASH_CHARS]} may be run again")
