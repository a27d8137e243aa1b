"""`farm poison ...`: libraries that killed what ran them, and are not run any more."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from farm.cli.context import JsonFlag, call, print_json, print_table, tell, when
from farm.core.errors import UserError

app = typer.Typer(help="Libraries that killed the phone's RPC worker: from the second time on nobody runs them.")

SHOWN_HASH_CHARS = 12
SHA256_CHARS = 64


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
                row["artifact"][:SHOWN_HASH_CHARS], str(row["kills"]), _state(row),
                when(datetime.fromisoformat(row["last_at"])), row["device"], row["user"], row["job"], row["what"],
            )
            for row in answer["poison"]
        ),
    )  # fmt: skip
    if answer["more"]:
        tell(f"{answer['more']} more")


def _state(row: Mapping[str, Any]) -> str:
    if row["refused"]:
        return "refused"
    return f"refused to {row['user']}" if row["refused_to_user"] else "suspect"


@app.command()
def forget(
    library: Annotated[str, typer.Argument(help="Its SHA-256, or a beginning such as `farm poison list` shows.")],
    json: JsonFlag = False,
) -> None:
    """Let a library be run again (operators)."""
    asked = library.strip().lower()
    known = [row["artifact"] for row in call("poison.list")["poison"] if asked and row["artifact"].startswith(asked)]
    if len(known) > 1:
        raise UserError(f"{len(known)} libraries begin with {library!r}", hint="write more of it")
    if not known and len(asked) != SHA256_CHARS:
        raise UserError(f"no library that killed anything begins with {library!r}", hint="see: farm poison list")
    answer = call("poison.forget", artifact=known[0] if known else asked)
    if json:
        print_json(answer)
    else:
        tell(f"{answer['artifact'][:SHOWN_HASH_CHARS]} may be run again")
