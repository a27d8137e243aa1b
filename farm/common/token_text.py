"""Tokens for people to copy: a prefix, then JSON values in base64 with a checksum, so that a part of one is refused."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

CHECK_BYTES = 4
HOST_TOKEN, BUILDER_TOKEN = "farm-host-", "farm-builder-"  # the prefixes


def token_text(prefix: str, values: Sequence[Any]) -> str:
    """The token of these JSON values."""
    body = json.dumps(values, separators=(",", ":")).encode()
    return prefix + base64.urlsafe_b64encode(_checksum(body) + body).decode().rstrip("=")


def token_values(prefix: str, text: str) -> list[Any]:
    """The values of a token.

    Raises:
        ValueError: it is another's token, none, or not all of one.
    """
    given = text.strip()
    if not given.startswith(prefix):
        raise ValueError("another prefix")
    body = given.removeprefix(prefix)
    data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    if _checksum(data[CHECK_BYTES:]) != data[:CHECK_BYTES]:
        raise ValueError("another checksum")
    try:
        values = json.loads(data[CHECK_BYTES:])
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(values, list):
        raise ValueError("no list")  # noqa: TRY004 (one error for whatever is no token)
    return values


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:CHECK_BYTES]
