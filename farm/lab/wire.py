r"""The first message of a connection between hosts, and its answer. No I/O.

The dialling host sends a preface and waits for the answer; the bytes behind both are the service's:

    {"lab": 1, "service": "artifact", "fields": {...}}\n
    {"ok": {...}}\n        or        {"error": {"code": ..., "message": ..., ...}}\n, and the connection ends
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from farm.common.errors import FarmError, ProtocolError, error_from_wire, error_to_wire
from farm.common.frames import FrameReader

VERSION = 1  # grows with a change that both hosts must know, other than a new service
MAX_BYTES = 128 << 10  # of a preface or an answer; an error of the longest texts, each character escaped, has 74 kB
_SERVICE = re.compile(r"[a-z][a-z.-]{0,31}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Preface:
    """The request of the dialling host."""

    service: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # JSON
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class PrefaceAnswer:
    """The answer of the host that was dialled: fields of the service, or its refusal."""

    fields: Mapping[str, Any] = field(default_factory=dict)  # JSON
    error: FarmError | None = None


def encode_preface(preface: Preface) -> bytes:
    """The message.

    Raises:
        ProtocolError: it is too long.
    """
    return _line({"lab": preface.version, "service": preface.service, "fields": preface.fields})


def encode_answer(answer: PrefaceAnswer) -> bytes:
    """The message.

    Raises:
        ProtocolError: it is too long.
    """
    return _line({"ok": answer.fields} if answer.error is None else {"error": error_to_wire(answer.error)})


class FirstMessageReader(Generic[T]):
    """Reads the first message of one direction, and keeps the bytes behind it."""

    def __init__(self, decode: Callable[[Mapping[str, Any]], T]) -> None:
        """`decode` makes the message of its fields: `decode_preface` or `decode_answer`."""
        self._decode = decode
        self._frames = FrameReader(max_line_bytes=MAX_BYTES, max_payload_bytes=0)

    def feed(self, data: bytes) -> T | None:
        """The message once it is whole.

        Raises:
            ProtocolError: the other side sends something else.
        """
        found = next(self._frames.feed(data), None)
        return None if found is None else self._decode(found[0])

    def trailing_data(self) -> bytes:
        """The bytes after the message. Empties the reader."""
        return self._frames.trailing_data()


def decode_preface(fields: Mapping[str, Any]) -> Preface:
    """The preface, at the host that was dialled.

    Raises:
        ProtocolError: it is none.
    """
    version, service, wanted = fields.get("lab"), fields.get("service"), fields.get("fields")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ProtocolError("a preface without a version")
    if not isinstance(service, str) or _SERVICE.fullmatch(service) is None:
        raise ProtocolError("a preface that names no service")
    if not isinstance(wanted, dict):
        raise ProtocolError("a preface whose fields are no object")
    return Preface(service, wanted, version)


def decode_answer(fields: Mapping[str, Any]) -> PrefaceAnswer:
    """The answer, at the host that dialled.

    Raises:
        ProtocolError: it is none.
    """
    accepted, error = fields.get("ok"), fields.get("error")
    if isinstance(accepted, dict):
        return PrefaceAnswer(accepted)
    if isinstance(error, dict):
        return PrefaceAnswer(error=error_from_wire(error))
    raise ProtocolError("an answer that is neither ok nor an error")


def _line(fields: Mapping[str, Any]) -> bytes:
    line = json.dumps(fields).encode() + b"\n"
    if len(line) > MAX_BYTES:
        raise ProtocolError(f"a message of {len(line)} bytes; {MAX_BYTES} are allowed")
    return line
