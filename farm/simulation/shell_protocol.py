"""Packets inside a `shell,v2` stream, without I/O: u8 id, u32 length (little-endian), then the bytes.

They cross the boundaries of the transport's WRTE packets, so the decoder keeps what is incomplete.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from farm.common.errors import ProtocolError

if TYPE_CHECKING:
    from farm.simulation.packets import Buffer

HEADER = struct.Struct("<BI")
MAX_LENGTH_BYTES = 16 * 1024 * 1024  # far above what any client sends at once; a bound for what a bad one may claim


class ShellId(IntEnum):
    """The content of a shell packet."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    EXIT = 3
    CLOSE_STDIN = 4
    WINDOW_SIZE = 5  # text "rowsxcolumns,xpixelsxypixels"


@dataclass(frozen=True, slots=True)
class ShellPiece:
    """A packet, or a piece of a STDIN packet: input is passed on as it comes."""

    id: ShellId
    data: bytes


def encode(identifier: ShellId, data: Buffer) -> bytes:
    """One packet."""
    return HEADER.pack(identifier, len(data)) + data


class ShellDecoder:
    """Cuts the client's bytes into packets."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._stdin_left = 0

    def feed(self, data: Buffer) -> list[ShellPiece]:
        """Take bytes and return every piece they complete; STDIN comes in as many pieces as it arrives in."""
        self._buffer += data
        pieces: list[ShellPiece] = []
        while (piece := self._next()) is not None:
            pieces.append(piece)
        return pieces

    def _next(self) -> ShellPiece | None:
        if self._stdin_left:
            return self._take_stdin()
        if len(self._buffer) < HEADER.size:
            return None
        number, length = HEADER.unpack_from(self._buffer)
        try:
            identifier = ShellId(number)
        except ValueError as error:
            raise ProtocolError(f"shell packet with unknown id {number}") from error
        if length > MAX_LENGTH_BYTES:
            raise ProtocolError(f"shell packet of {length} bytes, {MAX_LENGTH_BYTES} allowed")
        if identifier is ShellId.STDIN and length:
            del self._buffer[: HEADER.size]
            self._stdin_left = length
            return self._take_stdin()
        if len(self._buffer) < HEADER.size + length:
            return None
        data = bytes(self._buffer[HEADER.size : HEADER.size + length])
        del self._buffer[: HEADER.size + length]
        return ShellPiece(identifier, data)

    def _take_stdin(self) -> ShellPiece | None:
        if not self._buffer:
            return None
        data = bytes(self._buffer[: self._stdin_left])
        del self._buffer[: len(data)]
        self._stdin_left -= len(data)
        return ShellPiece(ShellId.STDIN, data)


def parse_window_size(data: bytes) -> tuple[int, int, int, int]:
    """Rows, columns, x pixels and y pixels of a WINDOW_SIZE packet."""
    try:
        cells, pixels = data.rstrip(b"\0").decode("ascii").split(",")
        rows, columns = (int(number) for number in cells.split("x"))
        x, y = (int(number) for number in pixels.split("x"))
    except ValueError as error:
        raise ProtocolError("window size in another form than 24x80,0x0", evidence=repr(data[:40])) from error
    if not all(0 <= number <= 0xFFFF for number in (rows, columns, x, y)):
        raise ProtocolError("window size beyond 65535", evidence=repr(data[:40]))
    return rows, columns, x, y
