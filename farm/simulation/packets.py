"""Packets of the adb transport, without I/O: bytes to packets and back.

Rules of the format (measured against adb 29 and 36, see docs/facts.md; all integers little-endian):

- A packet is a 24-byte header (command, arg0, arg1, length, check, command ^ 0xffffffff) and `length` payload bytes.
- `check` is the plain sum of the payload bytes. Once both sides speak version 0x01000001 or later it is ignored.
- CNXN and AUTH carry at most 4096 bytes; everything else at most what the smaller side announced.

`PacketDecoder` offers the buffer to read into, so that a megabyte of payload is never copied on its way in.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from farm.common.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

Buffer = bytes | bytearray | memoryview

VERSION_MIN = 0x01000000
VERSION_SKIP_CHECKSUM = 0x01000001  # from here on `check` is ignored
HANDSHAKE_PAYLOAD_BYTES = 4096  # CNXN and AUTH, whatever was announced
MAX_PAYLOAD_BYTES = 1024 * 1024  # what current adbd and adb announce
HEADER = struct.Struct("<6I")
_STAGING_BYTES = 64 * 1024  # holds a burst of small packets; larger payloads get a buffer of their own
_UINT32 = 0xFFFFFFFF


class Command(IntEnum):
    """Packet types: four ASCII letters read as a little-endian integer."""

    SYNC = 0x434E5953
    CNXN = 0x4E584E43
    AUTH = 0x48545541
    OPEN = 0x4E45504F
    OKAY = 0x59414B4F
    WRTE = 0x45545257
    CLSE = 0x45534C43
    STLS = 0x534C5453


class AuthKind(IntEnum):
    """First argument of AUTH."""

    TOKEN = 1
    SIGNATURE = 2
    PUBLIC_KEY = 3


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet. `payload` may be a view into a buffer that the receiver may keep: it is never written again."""

    command: Command
    arg0: int
    arg1: int
    payload: Buffer = b""

    def encode(self) -> list[Buffer]:
        """The packet as buffers to send one after the other; the payload is not copied.

        The sum is filled in for the packets a peer may read before the version is agreed on.
        """
        checked = self.command in HANDSHAKE
        return [encode_header(self.command, self.arg0, self.arg1, self.payload, checked=checked), self.payload]


HANDSHAKE = frozenset({Command.CNXN, Command.AUTH})
_COMMANDS = {int(command): command for command in Command}


def checksum(payload: Buffer) -> int:
    """The sum of the payload's bytes, as version 0x01000000 wants it."""
    return sum(payload) & _UINT32


def encode_header(command: int, arg0: int, arg1: int, payload: Buffer, *, checked: bool) -> bytes:
    """The 24 bytes before a payload; its sum is computed only when `checked`."""
    check = checksum(payload) if checked else 0
    return HEADER.pack(command, arg0, arg1, len(payload), check, command ^ _UINT32)


class Receiver(Protocol):
    """Takes received bytes in."""

    def writable(self) -> memoryview:
        """Where the next bytes belong; never empty."""

    def wrote(self, count: int, /) -> None:
        """`count` bytes of the last `writable()` are now filled."""


def pieces(data: Buffer, to: Receiver) -> Iterator[None]:
    """Copy received bytes to where they belong, as many at a time as fit: at each yield take the complete packets."""
    rest = memoryview(data)
    while rest:
        target = to.writable()
        count = min(len(target), len(rest))
        target[:count] = rest[:count]
        to.wrote(count)
        rest = rest[count:]
        yield


class PacketDecoder:
    """Turns received bytes into packets.

    Receive into `writable()`, tell `wrote(count)`, then call `next_packet()` until it returns None. `max_payload` and
    `check_sums` follow what the two sides agreed on.
    """

    def __init__(self) -> None:
        self.max_payload = HANDSHAKE_PAYLOAD_BYTES
        self.check_sums = True
        self._staging = bytearray(_STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._start = 0
        self._end = 0
        self._pending: tuple[Command, int, int, int] | None = None  # the header of a payload that is still coming
        self._payload = bytearray()
        self._filled = 0

    def writable(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._pending is not None:
            return memoryview(self._payload)[self._filled :]
        return self._view[self._end :]

    def wrote(self, count: int) -> None:
        """`count` bytes of the last `writable()` are now filled."""
        if self._pending is not None:
            self._filled += count
        else:
            self._end += count

    def feed(self, data: Buffer) -> list[Packet]:
        """Copy `data` in and return every packet it completes, at the current limits."""
        return [packet for _ in pieces(data, self) for packet in iter(self.next_packet, None)]

    def next_packet(self) -> Packet | None:
        """The next complete packet, or None when more bytes are needed."""
        if self._pending is not None:
            if self._filled < len(self._payload):
                return None
            (command, arg0, arg1, check), payload = self._pending, self._payload
            self._pending, self._payload, self._filled = None, bytearray(), 0
            self._verify(command, arg0, payload, check)
            return Packet(command, arg0, arg1, memoryview(payload))
        start, available = self._start, self._end - self._start
        if available < HEADER.size:
            self._compact()
            return None
        command, arg0, arg1, length, check = self._parse_header(start)
        start += HEADER.size
        if available - HEADER.size >= length:
            payload_bytes = bytes(self._view[start : start + length])
            self._start = start + length
            self._verify(command, arg0, payload_bytes, check)
            return Packet(command, arg0, arg1, payload_bytes)
        self._pending = (command, arg0, arg1, check)
        self._payload = bytearray(length)
        self._filled = self._end - start
        self._payload[: self._filled] = self._view[start : self._end]
        self._start = self._end = 0
        return None

    def _parse_header(self, start: int) -> tuple[Command, int, int, int, int]:
        number, arg0, arg1, length, check, magic = HEADER.unpack_from(self._staging, start)
        if magic != number ^ _UINT32:
            raise ProtocolError("adb packet with a wrong magic", evidence=bytes(self._view[start : start + 24]).hex())
        command = _COMMANDS.get(number)
        if command is None:
            raise ProtocolError(f"unknown adb command 0x{number:08x}")
        limit = HANDSHAKE_PAYLOAD_BYTES if command in HANDSHAKE else self.max_payload
        if length > limit:
            raise ProtocolError(f"adb {command.name} with {length} bytes of payload, {limit} allowed")
        return command, arg0, arg1, length, check

    def _verify(self, command: Command, arg0: int, payload: Buffer, check: int) -> None:
        if not self.check_sums:
            return
        if command is Command.CNXN and arg0 >= VERSION_SKIP_CHECKSUM and check == 0:
            return  # a peer that already counts on the newer version
        if check != checksum(payload):
            raise ProtocolError(f"adb {command.name} with a wrong checksum", evidence=f"{check} != {checksum(payload)}")

    def _compact(self) -> None:
        rest = self._end - self._start
        if self._start:
            self._view[:rest] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, rest
