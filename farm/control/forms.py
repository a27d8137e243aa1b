"""Kinds of fields that several verbs' forms have: what the host and the database behind them can take."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import AfterValidator, Field

from farm.core.errors import UserError

MAX_COUNT = 2**63 - 1  # a database's integer, a file's offset
MAX_PATH_BYTES = 4095  # PATH_MAX without its NUL (limits.h)
MAX_NAME_BYTES = 255  # NAME_MAX


def _possible(path: str) -> str:
    """A path that the host's file system could have.

    Raises:
        UserError: it could not.
    """
    named = os.fsencode(path) if path.isprintable() else b"\0"
    if b"\0" in named:
        raise UserError("a path has no control characters", hint="write it as `ls` shows it")
    longest = max(named.split(b"/"), key=len)
    if len(named) > MAX_PATH_BYTES or len(longest) > MAX_NAME_BYTES:
        raise UserError(
            f"the path {path[:40]}... is too long",
            hint=f"at most {MAX_NAME_BYTES} bytes between two slashes, {MAX_PATH_BYTES} in all",
        )
    return path


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
HostPath = Annotated[str, AfterValidator(_possible)]  # on the daemon's host; "" passes
