"""Accounts for people elsewhere and for the web page; who did what."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from farm.cli import complete
from farm.cli.context import JsonFlag, act, call, local_time, print_json, print_table, say, shown, tell
from farm.core.errors import UserError

app = typer.Typer(help="Accounts for people elsewhere and for the web page; who did what.")


class RoleName(StrEnum):
    """What an account may do; each may do what the ones before it may."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose it is; a user of that name owns what it does.")],
    role: Annotated[RoleName, typer.Option(help="viewer looks, user uses phones, operator changes the lab.")],
    web: Annotated[bool, typer.Option("--web", help="A token for the web page instead of a key.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the key file or token here (mode 0600).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Make a key for clients elsewhere, or a token."""
    kept = None if out is None else _file_for_secret(out)  # before there is one: an account is made once
    answer: dict[str, Any] = {}
    try:
        answer = call("auth.new", name=name, role=role.value, web=web)
        text = answer["token"] + "\n" if web else key_file(answer)
        if kept is not None:
            kept.write(text)
            kept.close()
    except BaseException as error:
        if kept is not None and out is not None:
            with contextlib.suppress(OSError):
                kept.close()
            out.unlink(missing_ok=True)
        if answer:  # nobody has its secret
            call("auth.revoke", name=name)
        if isinstance(error, OSError):
            raise UserError(f"{out} cannot be written: {error.strerror}; {name} has no account") from error
        raise
    if out is not None:
        answer = {"name": answer["name"], "role": answer["role"], "file": str(out)}
    if json:
        print_json(answer)
    elif out is not None:
        tell(f"wrote {out}: give it to {answer['name']} over a safe way, then delete it here")
    else:
        for line in text.splitlines():
            tell(line)
        say("this is shown once: farm keeps no copy")
    if not web and out is not None:
        say(f"they use it with: farm --key {out.name} status (add --daemon tcp://HOST:PORT for another way there)")


def key_file(answer: dict[str, str]) -> str:
    """The client's key file."""
    rows = [f"# {answer['name']}'s key ({answer['role']}): keep it to yourself, mode 0600"]
    rows += [f'{name} = "{answer[name]}"' for name in ("name", "daemon", "server_key", "public_key", "secret_key")]
    return "\n".join(rows) + "\n"


@app.command("list")
def list_(json: JsonFlag = False) -> None:
    """Every account: role, what it has, when it was used last."""
    answer = call("auth.list")
    if json:
        print_json(answer)
        return
    print_table(
        ("NAME", "ROLE", "HAS", "MADE", "BY", "USED", "STATE"),
        [
            (
                row["name"], row["role"], " ".join(what for what in ("key", "token") if row[what]) or "-",
                local_time(row["made_at"], to="minutes"), row["made_by"], local_time(row["used_at"], to="minutes"),
                f"revoked {local_time(row['revoked_at'], to='minutes')}" if row["revoked_at"] else "live",
            )
            for row in answer["accounts"]
        ],
    )  # fmt: skip
    wrong = answer["wrong"]
    if wrong["keys"] or wrong["tokens"]:
        say(f"wrong since the daemon's start: {wrong['keys']} keys, {wrong['tokens']} tokens")


@app.command()
def revoke(name: Annotated[str, typer.Argument(autocompletion=complete.accounts)], json: JsonFlag = False) -> None:
    """Take an account's key and token; whoever is in with them is put out at once."""
    act("auth.revoke", "{name} has no key and no token any more", json=json, name=name)


@app.command()
def audit(
    user: Annotated[str, typer.Option(help="Only what this user did.")] = "",
    verb: Annotated[str, typer.Option(help="Only this verb; `device.`: all of that group.")] = "",
    since: Annotated[str, typer.Option(help="Not earlier, e.g. 2026-11-22 or 2026-11-22T08:00.")] = "",
    until: Annotated[str, typer.Option(help="Earlier than this.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many rows.")] = 50,
    before: Annotated[int, typer.Option(min=0, help="Rows before this one: the last number of the page before.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Who changed what or tried to, the latest first."""
    fields = {"user": user, "verb": verb, "limit": limit, "before": before}
    fields |= {name: _moment(text) for name, text in (("since", since), ("until", until)) if text}
    answer = call("audit.list", **fields)
    if json:
        print_json(answer)
        return
    rows = answer["rows"]
    print_table(
        ("SEQ", "AT", "USER", "ROLE", "FROM", "VERB", "ABOUT", "OUTCOME"),
        [
            (
                row["seq"], local_time(row["at"]), row["user"] or "-", row["role"], row["origin"], row["kind"],
                shown(row["subject"]) or "-", row["outcome"],
            )
            for row in rows
        ],
    )  # fmt: skip
    if len(rows) == limit:
        say(f"earlier ones: --before {rows[-1]['seq']}")


def _file_for_secret(path: Path) -> TextIO:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
    except OSError as error:
        raise UserError(
            f"{path} cannot be made: {error.strerror}; no account was made",
            hint="name a file that is not there yet, in a folder that is there and yours",
        ) from error


def _moment(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except ValueError as error:
        raise UserError(f"{text!r} is no time", hint="2026-11-22 or 2026-11-22T08:00") from error
