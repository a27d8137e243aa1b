"""Secrets that people give to commands: never as an argument, which every user of the machine can read in `ps`."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from farm.common.errors import Code, UserError
from farm.common.token_text import BUILDER_TOKEN, HOST_TOKEN

MAX_TOKEN_BYTES = 64 * 1024

TokenFile = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="A file with the token; else stdin, or a prompt on a terminal.")
]


def read_token(file: Path | None) -> str:
    """The token in a file, on stdin, or typed at the prompt, which does not show it.

    Raises:
        UserError: the argument is a token itself, or the file cannot be read.
    """
    if file is None:
        return getpass("token: ") if sys.stdin.isatty() else sys.stdin.read(MAX_TOKEN_BYTES)
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(MAX_TOKEN_BYTES)
    except OSError as error:
        if file.name.startswith((HOST_TOKEN, BUILDER_TOKEN)):
            raise UserError(
                "every user of this machine can read an argument",
                Code.SECRET_IN_ARGUMENT,
                hint="nothing was changed; make another token, and paste it when the command asks, or name its file",
            ) from error
        raise UserError(
            f"the token's file {file} cannot be read: {error.strerror}",
            hint="name a file that you can read; or leave it out, and paste the token",
        ) from error


def without_password(url: str) -> str:
    """A URL that was given as an option.

    Raises:
        UserError: it has a password.
    """
    parts = urlsplit(url)
    if parts.password or "password" in parse_qs(parts.query):
        raise UserError(
            "every user of this machine can read the URL's password",
            Code.SECRET_IN_ARGUMENT,
            hint="nothing was changed; change that password, and leave it to ~/.pgpass (PostgreSQL) or the environment "
            "(PGPASSWORD, MLFLOW_TRACKING_PASSWORD)",
        )
    return url
