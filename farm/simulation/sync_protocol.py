"""The file protocol inside a `sync:` stream, without I/O: requests in, reply bytes out.

All integers little-endian. A request is an id of four letters, a u32 length and a path of at most 1024 bytes. SEND is
followed by DATA messages of at most 64 KiB and one DONE whose number is the mtime; the second versions (SND2, RCV2) put
mode and flags into a second message. Replies are built by the functions below.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.common.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farm.simulation.packets import Buffer

MAX_PATH_BYTES = 1024
MAX_DATA_BYTES = 64 * 1024
FLAG_DRY_RUN = 0x80000000
HEADER = struct.Struct("<4sI")
_SEND_SETUP = struct.Struct("<4sII")
_STAT_V1 = struct.Struct("<4sIII")
_STAT_V2 = struct.Struct("<4sIQQIIIIQqqq")
_DENT_V1 = struct.Struct("<4sIIII")
_DENT_V2 = struct.Struct("<4sIQQIIIIQqqqI")
_PATH_REQUESTS = frozenset({b"STAT", b"STA2", b"LST2", b"LIST", b"LIS2", b"SEND", b"RECV", b"SND2", b"RCV2"})
_UINT32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class StatRequest:
    """STAT, STA2 or LST2 of a path."""

    kind: bytes
    path: bytes


@dataclass(frozen=True, slots=True)
class ListRequest:
    """LIST or LIS2 of a folder."""

    kind: bytes
    path: bytes


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A file (or symlink) comes: data pieces and `SendEnd` follow."""

    path: bytes
    mode: int
    flags: int


@dataclass(frozen=True, slots=True)
class SendPiece:
    """Some of the file's bytes: a view into the received ones."""

    data: memoryview


@dataclass(frozen=True, slots=True)
class SendEnd:
    """The file is complete; `mtime` in seconds since the epoch."""

    mtime: int


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """A file is wanted."""

    path: bytes
    flags: int


@dataclass(frozen=True, slots=True)
class Quit:
    """The client is done."""


Message = StatRequest | ListRequest | SendRequest | SendPiece | SendEnd | ReceiveRequest | Quit


class SyncDecoder:
    """Cuts the client's bytes into messages. File contents are passed through as views, not copied."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._needed = HEADER.size
        self._path: tuple[bytes, bytes] | None = None  # of a second-version request whose set-up message is coming
        self._in_file = False
        self._piece_left = 0

    def feed(self, data: Buffer) -> Iterator[Message]:
        """Yield every message that `data` completes; take them all before feeding again."""
        rest = memoryview(data)
        while rest:
            if self._piece_left:
                piece = rest[: self._piece_left]
                rest = rest[len(piece) :]
                self._piece_left -= len(piece)
                yield SendPiece(piece)
                continue
            missing = self._needed - len(self._head)
            self._head += rest[:missing]
            rest = rest[missing:]
            if len(self._head) == self._needed and (message := self._complete()) is not None:
                yield message

    def _complete(self) -> Message | None:
        """`_head` has all the bytes it needed: a message, or a reason to need more."""
        head = bytes(self._head)
        identifier, number = HEADER.unpack_from(head)
        if self._path is not None:
            return self._set_up(head, *self._path)
        if self._in_file:
            return self._file_message(identifier, number)
        if len(head) == HEADER.size:
            if identifier == b"QUIT":
                self._expect_request()
                return Quit()
            if identifier not in _PATH_REQUESTS:
                raise ProtocolError(f"unknown command {identifier!r}")
            if number > MAX_PATH_BYTES:
                raise ProtocolError("path too long")
            self._needed = HEADER.size + number
            if number:
                return None
        return self._path_request(identifier, head[HEADER.size :])

    def _path_request(self, identifier: bytes, path: bytes) -> Message | None:
        self._expect_request()
        if identifier in {b"SND2", b"RCV2"}:
            self._path = (identifier, path)
            self._needed = _SEND_SETUP.size if identifier == b"SND2" else HEADER.size
            return None
        if identifier in {b"STAT", b"STA2", b"LST2"}:
            return StatRequest(identifier, path)
        if identifier in {b"LIST", b"LIS2"}:
            return ListRequest(identifier, path)
        if identifier == b"RECV":
            return ReceiveRequest(path, 0)
        name, comma, mode = path.rpartition(b",")
        if not comma:
            raise ProtocolError("missing , in ID_SEND_V1")
        if not mode.isdigit():
            raise ProtocolError("bad mode")
        self._in_file = True
        return SendRequest(name, int(mode) & _UINT32, 0)

    def _set_up(self, head: bytes, identifier: bytes, path: bytes) -> Message:
        if head[:4] != identifier:
            raise ProtocolError("invalid setup message")
        self._path = None
        self._expect_request()
        if identifier == b"RCV2":
            return ReceiveRequest(path, HEADER.unpack(head)[1])
        _, mode, flags = _SEND_SETUP.unpack(head)
        self._in_file = True
        return SendRequest(path, mode, flags)

    def _file_message(self, identifier: bytes, number: int) -> Message | None:
        self._expect_request()
        if identifier == b"DATA":
            if number > MAX_DATA_BYTES:
                raise ProtocolError("oversize data message")
            self._piece_left = number
            return None
        if identifier == b"DONE":
            self._in_file = False
            return SendEnd(number)
        raise ProtocolError("invalid data message")

    def _expect_request(self) -> None:
        self._head.clear()
        self._needed = HEADER.size


def encode_ok() -> bytes:
    """The file was taken."""
    return HEADER.pack(b"OKAY", 0)


def encode_fail(message: str) -> bytes:
    """Something went wrong, in the phone's words."""
    text = message.encode("utf-8", "surrogateescape")
    return HEADER.pack(b"FAIL", len(text)) + text


def encode_stat(kind: bytes, found: os.stat_result | None, error: int = 0) -> bytes:
    """The answer to STAT, STA2 or LST2; `error` is an errno, known only to the second version."""
    if kind == b"STAT":
        return _STAT_V1.pack(kind, *_v1_fields(found))
    return _STAT_V2.pack(kind, *_v2_fields(found, error))


def encode_entry(kind: bytes, name: bytes, found: os.stat_result | None, error: int = 0) -> bytes:
    """One entry of the answer to LIST or LIS2."""
    if kind == b"LIST":
        return _DENT_V1.pack(b"DENT", *_v1_fields(found), len(name)) + name
    return _DENT_V2.pack(b"DNT2", *_v2_fields(found, error), len(name)) + name


def encode_list_end(kind: bytes) -> bytes:
    """The end of a listing: DONE, padded to the size of an entry."""
    return b"DONE" + bytes((_DENT_V1 if kind == b"LIST" else _DENT_V2).size - 4)


def encode_receive_end() -> bytes:
    """The end of a file sent to the client."""
    return HEADER.pack(b"DONE", 0)


def _v1_fields(found: os.stat_result | None) -> tuple[int, int, int]:
    if found is None:
        return 0, 0, 0
    return found.st_mode, found.st_size & _UINT32, int(found.st_mtime) & _UINT32


def _v2_fields(found: os.stat_result | None, error: int) -> tuple[int, ...]:
    if found is None:
        return (error, *(0,) * 10)
    return (
        error,
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_nlink & _UINT32,
        found.st_uid,
        found.st_gid,
        found.st_size,
        int(found.st_atime),
        int(found.st_mtime),
        int(found.st_ctime),
    )
