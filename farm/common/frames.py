"""Messages on a stream: a line of JSON, and so many bytes after it as its `payload_bytes` says. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from farm.common.errors import ProtocolError

SIZE = "payload_bytes"
MAX_LINE_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 64 << 20  # a candidate with its constants has some kB


def frame(fields: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """One message."""
    return json.dumps({**fields, SIZE: len(payload)}).encode() + b"\n" + payload


class FrameReader:
    """Takes bytes as they come."""

    def __init__(
        self, *, max_line_bytes: int = MAX_LINE_BYTES, max_payload_bytes: int = MAX_PAYLOAD_BYTES
    ) -> None:  # fmt: skip
        """Refuse longer messages."""
        self._max_line_bytes = max_line_bytes
        self._max_payload_bytes = max_payload_bytes
        self._input = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The messages that are whole now, each with its payload.

        Raises:
            ProtocolError: the other side does not speak so.
        """
        self._input += data
        while (end := self._input.find(b"\n")) >= 0:
            if end > self._max_line_bytes:
                break
            fields = _fields(bytes(self._input[:end]), self._max_payload_bytes)
            whole = end + 1 + fields[SIZE]
            if len(self._input) < whole:
                return
            payload = bytes(self._input[end + 1 : whole])
            del self._input[:whole]
            yield fields, payload
        if len(self._input) > self._max_line_bytes:
            raise ProtocolError("a line of a message has no end")

    def trailing_data(self) -> bytes:
        """The bytes after the last whole message. Empties the reader."""
        data = bytes(self._input)
        self._input.clear()
        return data


def _fields(line: bytes, max_payload_bytes: int) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a message's line is no JSON") from error
    if not isinstance(fields, dict) or not isinstance(fields.setdefault(SIZE, 0), int):
        raise ProtocolError("a message's line is no object")
    if not 0 <= fields[SIZE] <= max_payload_bytes:
        raise ProtocolError(f"a message with {fields[SIZE]} bytes")
    return fields
