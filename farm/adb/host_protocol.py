"""adb's host protocol, sans-I/O: smart-socket requests and replies, shell,v2 packets, sync packets.

Rules of this file: bytes come in through `feed`, messages come out of `next`; nothing here awaits, reads a clock or
opens a socket. A reader's `wants` is how many bytes complete the item under way, so that a caller which must not
swallow what follows (a `tcp:` stream) can read exactly that many. What a peer may not send raises ProtocolError.

Sources: the wire as two real servers (adb 29.0.6 and 36.0.0) speak it (docs/facts.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from farm.common.errors import ProtocolError, UserError

MAX_REQUEST_BYTES = 0xFFFF  # four hex digits carry the length
STATUS_BYTES = 4  # "OKAY" or "FAIL"
LENGTH_BYTES = 4  # hex4
MAX_SHELL_PACKET_BYTES = 16 << 20  # adbd sends at most its maxdata (1 MiB today); more is a corrupt stream
SHELL_HEADER = struct.Struct("<BI")
SYNC_HEADER = struct.Struct("<4sI")
SYNC_PATH_BYTES = 1024  # adbd refuses longer paths
SYNC_DATA_BYTES = 64 << 10  # the largest DATA chunk adbd accepts
_MAX_SYNC_TEXT_BYTES = 64 << 10  # a FAIL message; adbd's are below 1 KiB


def encode_request(service: str) -> bytes:
    """A smart-socket request: four hex digits of length, then the service in UTF-8.

    Raises:
        UserError: the service is empty or longer than 65535 bytes.
    """
    data = service.encode("utf-8", "surrogateescape")
    if not 0 < len(data) <= MAX_REQUEST_BYTES:
        raise UserError(
            f"an adb request of {len(data)} bytes is not possible (1 to {MAX_REQUEST_BYTES})",
            hint="Shorten the command, or push it as a script and run that.",
        )
    return b"%04x" % len(data) + data


@dataclass(frozen=True, slots=True)
class Okay:
    """The server (or the phone, after a service is open) agreed."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The server or the phone refused, with its words."""

    message: str


OKAY = Okay()


class _AdbReader:
    """Takes bytes as they are received, and keeps those that are not yet consumed."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Add received bytes."""
        if self._start:
            del self._data[: self._start]
            self._start = 0
        self._data += data

    def rest(self) -> bytes:
        """Bytes received beyond the messages of `next`."""
        return self._peek(self._have())

    def _have(self) -> int:
        return len(self._data) - self._start

    def _peek(self, size: int) -> bytes:
        return bytes(self._data[self._start : self._start + size])

    def _take(self, size: int) -> bytes:
        data = self._peek(size)
        self._start += size
        return data


def _hex4(digits: bytes) -> int:
    """The value of four hex digits. `int(x, 16)` alone would also accept '+0a1', ' 0a1' and '0_a1'."""
    if not all(byte in b"0123456789abcdefABCDEF" for byte in digits):
        raise ProtocolError("adb sent a length that is not four hex digits", evidence=repr(digits))
    return int(digits, 16)


class BlockReader(_AdbReader):
    """Reads blocks of hex4 length + text: the answer to a query, or each list of a track-devices stream."""

    @property
    def wants(self) -> int:
        """Bytes that complete the item under way (its length first, then its text); 0 = `next` has a block."""
        have = self._have()
        if have < LENGTH_BYTES:
            return LENGTH_BYTES - have
        return max(0, LENGTH_BYTES + _hex4(self._peek(LENGTH_BYTES)) - have)

    def next(self) -> bytes | None:
        """The next whole block, or None until more is fed."""
        if self.wants:
            return None
        size = _hex4(self._take(LENGTH_BYTES))
        return self._take(size)


class StatusReader(_AdbReader):
    """Reads ONE status, OKAY or FAIL with its message, and no byte beyond `wants`."""

    def __init__(self) -> None:
        super().__init__()
        self._failed: BlockReader | None = None

    @property
    def wants(self) -> int:
        """Bytes that complete the item under way; 0 = `next` has the status."""
        if self._failed is not None:
            return self._failed.wants
        return max(0, STATUS_BYTES - self._have())

    def feed(self, data: bytes | memoryview) -> None:
        """Add received bytes."""
        if self._failed is not None:
            self._failed.feed(data)
            return
        super().feed(data)
        if self._have() < STATUS_BYTES or self._peek(STATUS_BYTES) == b"OKAY":
            return
        word = self._take(STATUS_BYTES)
        if word != b"FAIL":
            raise ProtocolError(
                "the listener there is not an adb server: it answered neither OKAY nor FAIL", evidence=repr(word)
            )
        self._failed = BlockReader()
        self._failed.feed(self._take(self._have()))

    def next(self) -> Okay | Fail | None:
        """The status, or None until more is fed."""
        if self._failed is not None:
            message = self._failed.next()
            return None if message is None else Fail(text_of(message))
        if self._have() < STATUS_BYTES:
            return None
        self._take(STATUS_BYTES)
        return OKAY

    def rest(self) -> bytes:
        """Bytes received beyond the status."""
        return self._failed.rest() if self._failed is not None else super().rest()


def text_of(data: bytes) -> str:
    """Text of an adb server or phone. Bytes that are not UTF-8 survive a round trip back to bytes."""
    return data.decode("utf-8", "surrogateescape")


class ShellPacketId(IntEnum):
    """Kinds of shell,v2 packets."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    EXIT = 3
    CLOSE_STDIN = 4
    WINDOW_SIZE = 5


@dataclass(frozen=True, slots=True)
class ShellPacket:
    """One shell,v2 packet. EXIT carries one byte, the exit code."""

    id: ShellPacketId
    data: bytes


_SHELL_IDS = {int(member): member for member in ShellPacketId}
CLOSE_STDIN_PACKET = SHELL_HEADER.pack(ShellPacketId.CLOSE_STDIN, 0)


class ShellReader(_AdbReader):
    """Reads shell,v2 packets (u8 id, u32 length, data); they cross every boundary below them."""

    def next(self) -> ShellPacket | None:
        """The next whole packet, or None until more is fed."""
        have = self._have()
        if have < SHELL_HEADER.size:
            return None
        number, size = SHELL_HEADER.unpack(self._peek(SHELL_HEADER.size))
        packet_id = _SHELL_IDS.get(number)
        if packet_id is None or size > MAX_SHELL_PACKET_BYTES or (packet_id is ShellPacketId.EXIT and size != 1):
            raise ProtocolError(f"not a shell,v2 packet: id {number}, {size} bytes", evidence=repr(self._peek(64)))
        if have < SHELL_HEADER.size + size:
            return None
        self._take(SHELL_HEADER.size)
        return ShellPacket(packet_id, self._take(size))

    def __iter__(self) -> Iterator[ShellPacket]:
        while (packet := self.next()) is not None:
            yield packet


class SentinelReader:
    """Reads the old `shell:` service, which has no exit code: the wrapped command prints it after a token.

    Output that may still turn out to be the token is held back. A pty that turned our final newline into CR LF did
    so with every other one: `translated` is then true and `finish` undoes it for callers that kept the whole output.
    """

    _TAIL_BYTES = 8  # ":255" + CR LF, rounded up

    def __init__(self, token: str) -> None:
        self._token = b"\n" + token.encode() + b":"
        self._held = bytearray()
        self.exit_code: int | None = None
        self.translated = False

    def wrap(self, command: str) -> str:
        """The command line to send. The command runs in a subshell, so that its `exit` cannot skip the token."""
        return f"(\n{command}\n); farm_rc=$?; echo; echo {self._token[1:].decode()}$farm_rc"

    def feed(self, data: bytes) -> bytes:
        """Add received bytes. Returns output that is certainly not the token."""
        self._held += data
        keep = len(self._token) + self._TAIL_BYTES
        if len(self._held) <= keep:
            return b""
        out = bytes(self._held[:-keep])
        del self._held[:-keep]
        return out

    def finish(self) -> bytes:
        """The stream has ended: the last output; sets `exit_code` if the token is there."""
        at = self._held.rfind(self._token)
        tail = bytes(self._held)
        if at < 0:
            return tail
        words = tail[at + len(self._token) :]
        self.translated = words.endswith(b"\r\n")
        if not words.strip().isdigit():
            return tail
        self.exit_code = int(words)
        out = tail[:at]
        return out.removesuffix(b"\r") if self.translated else out


class SyncWord:
    """Ids of sync requests and replies."""

    STAT = b"STAT"
    SEND = b"SEND"
    SEND_V2 = b"SND2"
    RECV = b"RECV"
    DATA = b"DATA"
    DONE = b"DONE"
    OKAY = b"OKAY"
    FAIL = b"FAIL"


@dataclass(frozen=True, slots=True)
class SyncStat:
    """Answer to STAT. All zero = no such path (or not allowed to see it)."""

    mode: int
    size: int  # modulo 2^32
    mtime: int  # seconds since 1970


@dataclass(frozen=True, slots=True)
class SyncData:
    """A piece of a file being received."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SyncDone:
    """The file being received has ended."""


SyncReply = SyncStat | SyncData | SyncDone | Okay | Fail
_SYNC_STAT = struct.Struct("<III")


def _sync_path(path: str) -> bytes:
    data = path.encode("utf-8", "surrogateescape")
    if not 0 < len(data) <= SYNC_PATH_BYTES:
        raise UserError(f"a path of {len(data)} bytes is not possible on a phone (1 to {SYNC_PATH_BYTES}): {path}")
    return data


def encode_sync(word: bytes, path: str) -> bytes:
    """A sync request that names a path: STAT or RECV."""
    data = _sync_path(path)
    return SYNC_HEADER.pack(word, len(data)) + data


def encode_send(path: str, mode: int) -> bytes:
    """Begins a file with SEND: `path,mode` (decimal, with the regular-file bit)."""
    return encode_sync(SyncWord.SEND, f"{path},{0o100000 | mode & 0o777}")


def encode_send_v2(path: str, mode: int) -> bytes:
    """Begins a file with SND2, which allows a comma in the path: path, then mode and flags (0 = not compressed)."""
    return encode_sync(SyncWord.SEND_V2, path) + struct.pack("<4sII", SyncWord.SEND_V2, 0o100000 | mode & 0o777, 0)


def encode_done(mtime: int) -> bytes:
    """Ends a sent file. `mtime` in seconds since 1970."""
    return SYNC_HEADER.pack(SyncWord.DONE, mtime & 0xFFFFFFFF)


class SyncReader(_AdbReader):
    """Reads sync replies: OKAY, FAIL, STAT, DATA, DONE."""

    def next(self) -> SyncReply | None:
        """The next whole reply, or None until more is fed."""
        have = self._have()
        if have < SYNC_HEADER.size:
            return None
        word, size = SYNC_HEADER.unpack(self._peek(SYNC_HEADER.size))
        if word == SyncWord.STAT:
            need = len(word) + _SYNC_STAT.size
            if have < need:
                return None
            return SyncStat(*_SYNC_STAT.unpack(self._take(need)[len(word) :]))
        if word in (SyncWord.OKAY, SyncWord.DONE):
            self._take(SYNC_HEADER.size)
            return OKAY if word == SyncWord.OKAY else SyncDone()
        limit = {SyncWord.FAIL: _MAX_SYNC_TEXT_BYTES, SyncWord.DATA: SYNC_DATA_BYTES}.get(word)
        if limit is None or size > limit:
            raise ProtocolError(f"not a sync reply: {word!r}, {size} bytes", evidence=repr(self._peek(64)))
        if have < SYNC_HEADER.size + size:
            return None
        self._take(SYNC_HEADER.size)
        body = self._take(size)
        return Fail(text_of(body)) if word == SyncWord.FAIL else SyncData(body)
