"""The verbs of the control channel, a module for each subject, and their common parts.

A verb is a method of a `VerbGroup`, marked with `verb` (farm.common.verbs).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator

from farm.common.errors import UserError
from farm.common.verbs import verbs_of
from farm.control.server import ControlServer, handler

MAX_ROWS_BYTES = 7 << 18  # of a page as JSON
MAX_PATH_BYTES = 4095  # PATH_MAX without its NUL (limits.h)
MAX_NAME_BYTES = 255  # NAME_MAX


def _possible(path: str) -> str:
    """A path that the host's file system could have.

    Raises:
        UserError: it could not.
    """
    encoded = os.fsencode(path) if path.isprintable() else b"\0"
    if b"\0" in encoded:
        raise UserError("a path has no control characters", hint="write it as `ls` shows it")
    longest = max(encoded.split(b"/"), key=len)
    if len(encoded) > MAX_PATH_BYTES or len(longest) > MAX_NAME_BYTES:
        raise UserError(
            f"the path {path[:40]}... is too long",
            hint=f"at most {MAX_NAME_BYTES} bytes between two slashes, {MAX_PATH_BYTES} in all",
        )
    return path


HostPath = Annotated[str, AfterValidator(_possible)]  # on the daemon's host; "" passes


def json_of(record: object, *names: str) -> dict[str, Any]:
    """These attributes of a record as JSON: times in ISO 8601, enums by their values."""
    return {name: _json(getattr(record, name)) for name in names}


def fitting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first rows of a page that fit one message, however long their texts are; one row always does."""
    size = 0
    for count, row in enumerate(rows):
        size += len(json.dumps(row))
        if size > MAX_ROWS_BYTES:
            return rows[:count]
    return rows


def _json(value: object) -> object:
    if value is None or type(value) in (str, int, float, bool):  # most values; a status has thousands
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


class VerbGroup:
    """Some of the daemon's verbs: methods that are marked with `verb`."""

    def register(self, server: ControlServer) -> None:
        """Add them to the control channel."""
        for declared, method in verbs_of(self).items():
            server.register(declared, handler(method))
