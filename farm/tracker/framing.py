"""What the tracker protocol and the session handshake share: numbers and lengths of a byte stream. No I/O.

Every number is a little-endian int32. Rules of this file, wire.py and handshake.py:
- A parser is fed with `receive_data` and asked with `next_event` until that returns None (more bytes are needed).
- Bytes that break the framing raise ProtocolError, and the parser raises it again for ever: the connection is lost.
- No limit is checked after memory was spent on what it limits.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from farm.core.errors import ProtocolError

INT32 = struct.Struct("<i")


class Parser:
    """A queue of bytes that fails for good. Base of the tracker's and the handshake's parsers."""

    __slots__ = ("_buffer", "_error")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._error: ProtocolError | None = None

    def receive_data(self, data: bytes | memoryview) -> None:
        """Append bytes from the peer."""
        if self._error is None:
            self._buffer += data

    @property
    def held_bytes(self) -> int:
        """What has been received beyond the last event."""
        return len(self._buffer)

    def trailing_data(self) -> bytes:
        """What has been received beyond the last event. Empties the parser."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def fail(self, reason: str) -> NoReturn:
        """Refuse the connection for good."""
        self._error = ProtocolError(reason, evidence=bytes(self._buffer[:32]).hex(" "))
        self._buffer.clear()
        raise self._error

    def check_alive(self) -> None:
        """Raise the error that ended this connection, if there was one."""
        if self._error is not None:
            raise self._error

    def peek_int32(self) -> int | None:
        """The first number, left in place; None when it has not arrived."""
        if len(self._buffer) < INT32.size:
            return None
        value: int = INT32.unpack_from(self._buffer)[0]
        return value

    def take_int32(self) -> int | None:
        """The first number, removed; None when it has not arrived."""
        value = self.peek_int32()
        if value is not None:
            del self._buffer[: INT32.size]
        return value

    def take_body(self, limit: int, what: str) -> bytes | None:
        """A length from 1 to `limit`, then that many bytes; None when they have not all arrived."""
        length = self.peek_int32()
        if length is None:
            return None
        if not 0 < length <= limit:
            self.fail(f"{what} of {length} bytes; 1 to {limit} are allowed")
        end = INT32.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[INT32.size : end])
        del self._buffer[:end]
        return body
