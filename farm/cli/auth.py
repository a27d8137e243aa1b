"""`farm auth`: accounts for remote users and the web page; the audit log."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer

from farm.cli import complete
from farm.cli.connection import JsonFlag, call, call_and_emit
from farm.cli.output import emit, local_time, print_note, table
from farm.common.durations import parse_since
from farm.common.errors import UserError

app = typer.Typer(help="Accounts for remote users and the web page; the audit log.")


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The user that owns what it does.")],
    role: Annotated[
        Literal["viewer", "user", "operator"],
        typer.Option(help="A viewer reads, a user uses phones, an operator changes the lab."),
    ],
    web: Annotated[bool, typer.Option("--web", help="A token for the web page instead of a key.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the key file or token here (mode 0600).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Make a key for remote clients, or a token."""
    kept = None if out is None else _file_for_secret(out)  # before there is one: an account is made once
    answer: dict[str, Any] = {}
    try:
        answer = call("auth.new", name=name, role=role, web=web)
        text = answer["token"] + "\n" if web else key_file(answer)
        if kept is not None:
            kept.write(text)
            kept.close()
    except BaseException as error:
        if kept is not None and out is not None:
            with contextlib.suppress(OSError):
                kept.close()
            out.unlink(missing_ok=True)
        if answer:  # its secret was never shown
            call("auth.revoke", name=name)
        if isinstance(error, OSError):
            raise UserError(f"{out} cannot be written: {error.strerror}; {name} has no account") from error
        raise
    if out is not None:
        answer = {"name": answer["name"], "role": answer["role"], "file": str(out)}
    given = f"wrote {out}: give it to {answer['name']} over a safe way, then delete it here"
    emit(answer, text.splitlines() if out is None else given, json=json)
    if out is None and not json:
        print_note("this is shown once: farm keeps no copy" + "; sign in to the web page with it" * web)
    if not web and out is not None:
        print_note(
            f"they use it with: farm --key {out.name} status (add --daemon tcp://HOST:PORT for another way there)"
        )


def key_file(answer: dict[str, str]) -> str:
    """The client's key file."""
    rows = [f"# {answer['name']}'s key ({answer['role']}): keep it to yourself, mode 0600"]
    rows += [f'{name} = "{answer[name]}"' for name in ("name", "daemon", "server_key", "public_key", "secret_key")]
    return "\n".join(rows) + "\n"


@app.command("list")
def list_(json: JsonFlag = False) -> None:
    """Every account: role, keys and tokens, when it was used last."""
    answer = call("auth.list")
    rows = (
        (
            row["name"], row["role"], " ".join(what for what in ("key", "token") if row[what]) or "-",
            local_time(row["made_at"], to="minutes"), row["made_by"], local_time(row["used_at"], to="minutes"),
            f"revoked {local_time(row['revoked_at'], to='minutes')}" if row["revoked_at"] else "live",
        )
        for row in answer["accounts"]
    )  # fmt: skip
    titles, none = ("NAME", "ROLE", "HAS", "MADE", "BY", "USED", "STATE"), "no accounts: farm auth new NAME --role ROLE"
    emit(answer, table(titles, rows, none=none), json=json)
    wrong = answer["wrong"]
    if (wrong["keys"] or wrong["tokens"]) and not json:
        print_note(f"wrong since the daemon's start: {wrong['keys']} keys, {wrong['tokens']} tokens")


@app.command()
def revoke(name: Annotated[str, typer.Argument(autocompletion=complete.accounts)], json: JsonFlag = False) -> None:
    """Take an account's key and token; connections that use them end at once."""
    call_and_emit("auth.revoke", "{name} has no key and no token any more", json=json, name=name)


@app.command()
def audit(
    user: Annotated[str, typer.Option(help="Only changes by this user.")] = "",
    verb: Annotated[str, typer.Option(help="Only this verb; `device.` stands for all verbs of that group.")] = "",
    since: Annotated[str, typer.Option(help="Only rows since this time: 2026-11-22 or 2026-11-22T08:00.")] = "",
    until: Annotated[str, typer.Option(help="Only rows before this time.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many rows.")] = 50,
    before: Annotated[int, typer.Option(min=0, help="Only rows before this number, the last of the page before.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Changes and attempts at changes, with their users, the latest first."""
    fields = {"user": user, "verb": verb, "limit": limit, "before": before}
    now = datetime.now().astimezone()
    fields |= {name: parse_since(text, now).isoformat() for name, text in (("since", since), ("until", until)) if text}
    answer = call("audit.list", **fields)
    rows = (
        (
            row["seq"], local_time(row["at"]), row["user"] or "-", row["role"], row["origin"], row["kind"],
            row["subject"] or "-", row["outcome"],
        )
        for row in answer["rows"]
    )  # fmt: skip
    titles = ("SEQ", "AT", "USER", "ROLE", "FROM", "VERB", "ABOUT", "OUTCOME")
    emit(answer, table(titles, rows, none="no such changes"), json=json)
    if len(answer["rows"]) == limit and not json:
        print_note(f"earlier ones: --before {answer['rows'][-1]['seq']}")


def _file_for_secret(path: Path) -> TextIO:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
    except OSError as error:
        raise UserError(
            f"{path} cannot be made: {error.strerror}; no account was made",
            hint="name a file that is not there yet, in a folder that is there and yours",
        ) from error
