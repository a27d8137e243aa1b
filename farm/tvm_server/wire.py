"""TVM's wire formats as bytes in, values out. No I/O (source: tvm/rpc/{base,tracker,server}.py).

The tracker protocol, and the handshake of a session from both sides. Every number is a little-endian int32.
- A parser is fed with `receive_data` and asked with `next_event` until that returns None (more bytes are needed).
- Bytes that break the framing raise ProtocolError, and the parser raises it again forever: the connection is lost.
- A well-framed tracker message with wrong contents is an event too (`Invalid`): it is answered, the connection lives.
- A handshake is one event; what follows it belongs to the session: `trailing_data`.
- No limit is checked after memory was spent on what it limits.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn, TypeGuard

from farm.common.errors import ProtocolError

INT32 = struct.Struct("<i")
TRACKER_MAGIC = 0x2F271
SESSION_MAGIC = 0xFF271

# Of one tracker frame. The longest valid one takes 16 KiB, with every character escaped. The stock tracker allows
# 1 MiB: as JSON up to 21 MiB of memory, and 0.1 s in which no client is served.
MAX_TRACKER_MESSAGE_BYTES = 64 << 10
MAX_KEY_LENGTH = 512  # characters of a key or match key; a farm alias has at most 96
MAX_USER_LENGTH = 256  # characters of the user a client claims to be (stock clients claim "")
MAX_ADDRESS_LENGTH = 255  # characters of a custom address: the longest DNS name
MAX_ECHO_LENGTH = 32  # characters of an unknown message in our answer to it
MAX_PRIORITY = 1 << 31  # a priority beyond it is a mistake

_FARM_SECRET = re.compile(r"[0-9a-f]{32}")  # 128 random bits (farm.leasing.sessions)
# Stock clients split keys on ':' and the handshake splits on whitespace; the C++ server writes JSON without escaping.
_KEY = re.compile(r"[^\s:\"'\\]+")

MAX_HELLO_BYTES = 4096  # of `client:<match key> -timeout=<n>`; stock ones are below 200
MAX_TIMEOUT_S = 30 * 24 * 3600.0  # of a session; a month. Larger ones would overflow timers
# What Python and C++ print for a number. float() alone would also take 1_0, other scripts' digits, nan and infinity.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


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
        """The bytes received after the last event."""
        return len(self._buffer)

    def trailing_data(self) -> bytes:
        """The bytes received after the last event. Empties the parser."""
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


# --- the tracker protocol ------------------------------------------------------------------------------------------


class TrackerCode(IntEnum):
    """Message codes of the tracker protocol."""

    FAIL = -1
    SUCCESS = 0
    PING = 1
    STOP = 2  # end yourself, if this is your stop key
    PUT = 3  # a server offers itself
    REQUEST = 4  # a client wants a server
    UPDATE_INFO = 5  # a server describes itself
    SUMMARY = 6  # a client wants the list of servers and queues
    GET_PENDING_MATCHKEYS = 7  # a server asks which of its offers are not taken yet


@dataclass(frozen=True, slots=True)
class TrackerHello:
    """The tracker client's magic; answered by the same four bytes."""


@dataclass(frozen=True, slots=True)
class Put:
    """A server offers itself once, under `match_key`."""

    key: str
    port: int
    match_key: str
    custom_address: str | None


@dataclass(frozen=True, slots=True)
class TrackerRequest:
    """A client wants a server."""

    key: str
    user: str
    priority: int


@dataclass(frozen=True, slots=True)
class UpdateInfo:
    """A server describes itself; `key` is without its `server:`."""

    key: str
    address: str | None
    port: int


@dataclass(frozen=True, slots=True)
class Invalid:
    """A well-framed message that makes no sense. `code` is None when not even that could be read."""

    code: TrackerCode | None
    reason: str


# A message without fields that matter is its code.
TrackerMessage = TrackerCode | Put | TrackerRequest | UpdateInfo
TrackerEvent = TrackerHello | TrackerMessage | Invalid


class TrackerParser(Parser):
    """The tracker's side of one tracker connection."""

    __slots__ = ("_greeted",)

    def __init__(self) -> None:
        super().__init__()
        self._greeted = False

    def next_event(self) -> TrackerEvent | None:
        """The next message, or None when more bytes are needed.

        Raises:
            ProtocolError: wrong magic, impossible length.
        """
        self.check_alive()
        if not self._greeted:
            magic = self.take_int32()
            if magic is None:
                return None
            if magic != TRACKER_MAGIC:
                self.fail(f"not a tracker client: it began with {magic & 0xFFFFFFFF:#x}")
            self._greeted = True
            return TrackerHello()
        body = self.take_body(MAX_TRACKER_MESSAGE_BYTES, "a tracker message")
        return None if body is None else decode_message(body)


def decode_message(body: bytes) -> TrackerMessage | Invalid:
    """Read one message's JSON. Never raises: a message that cannot be read is `Invalid`."""
    try:
        value = json.loads(body.decode())  # given bytes, json would also take UTF-16 and 32
    except (ValueError, RecursionError):
        return Invalid(None, "the message is not JSON in UTF-8")
    if not isinstance(value, list) or not value or not _is_int(value[0]):
        return Invalid(None, "the message is not a list that begins with a code")
    try:
        code = TrackerCode(value[0])
    except ValueError:
        return Invalid(None, f"message code {str(value[0])[:MAX_ECHO_LENGTH]} is unknown")
    try:
        return _decode_fields(code, value[1:])
    except _FieldError as error:
        return Invalid(code, str(error))


def encode_magic() -> bytes:
    """The tracker magic, for both directions."""
    return INT32.pack(TRACKER_MAGIC)


def encode_json(value: object) -> bytes:
    """A tracker frame: length and JSON in one piece, so that it leaves in one write."""
    body = json.dumps(value).encode()
    return INT32.pack(len(body)) + body


def is_key(text: str) -> bool:
    """Whether every stock client can use `text` as a key."""
    return len(text) <= MAX_KEY_LENGTH and text.isprintable() and _KEY.fullmatch(text) is not None


def is_match_key(text: str) -> bool:
    """Whether `text` looks like one of the farm: the holder of a lease may ask for its own, no server may use one."""
    name, _, secret = text.rpartition(":")
    return is_key(name) and _FARM_SECRET.fullmatch(secret) is not None


class _FieldError(Exception):
    """A field of a tracker message is wrong; the text says which and how."""


def _decode_fields(code: TrackerCode, fields: list[object]) -> TrackerMessage | Invalid:
    match code:
        case TrackerCode.PING | TrackerCode.SUMMARY | TrackerCode.GET_PENDING_MATCHKEYS:
            return code
        case TrackerCode.STOP:
            _text(_field(fields, 0, "stop key"), "stop key", MAX_KEY_LENGTH)
            return code
        case TrackerCode.REQUEST:
            user = fields[1] if len(fields) > 1 else ""
            priority = fields[2] if len(fields) > 2 else 1
            if not _is_int(priority) or abs(priority) > MAX_PRIORITY:
                raise _FieldError("the priority is not a number a person would choose")
            key = _field(fields, 0, "key")
            asked = key if isinstance(key, str) and is_match_key(key) else _key(key)
            return TrackerRequest(asked, _text(user, "user", MAX_USER_LENGTH), priority)
        case TrackerCode.PUT:
            return _decode_put(fields)
        case TrackerCode.UPDATE_INFO:
            return _decode_info(_field(fields, 0, "info"))
        case _:
            raise _FieldError(f"code {code.value} is an answer, not a question")


def _decode_put(fields: list[object]) -> Put:
    key = _key(_field(fields, 0, "key"))
    offer = _field(fields, 1, "[port, match key]")
    if not isinstance(offer, list) or len(offer) != 2:
        raise _FieldError("the offer is not [port, match key]")
    match_key = _text(offer[1], "match key", MAX_KEY_LENGTH)
    prefix, colon, rest = match_key.rpartition(":")
    if not colon or prefix != key or not is_key(rest):
        raise _FieldError(f"the match key is not {key}:<random>")
    return Put(key, _port(offer[0]), match_key, _address(fields[2] if len(fields) > 2 else None))


def _decode_info(info: object) -> UpdateInfo:
    if not isinstance(info, dict):
        raise _FieldError("the info is not an object")
    key = info.get("key")
    if not isinstance(key, str) or not key.startswith("server:"):
        raise _FieldError("the info's key is not server:<key>")
    address = info.get("addr")
    if not isinstance(address, list) or len(address) != 2:
        raise _FieldError("the info's addr is not [address or null, port]")
    return UpdateInfo(_key(key.removeprefix("server:")), _address(address[0]), _port(address[1]))


def _field(fields: list[object], index: int, what: str) -> object:
    if index >= len(fields):
        raise _FieldError(f"the {what} is missing")
    return fields[index]


def _key(value: object) -> str:
    if not isinstance(value, str) or not is_key(value):
        raise _FieldError(
            f"the key is not 1 to {MAX_KEY_LENGTH} characters without ':', quotes, backslashes and spaces"
        )
    return value


def _text(value: object, what: str, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise _FieldError(f"the {what} is not a printable text of at most {limit} characters")
    return value


def _port(value: object) -> int:
    # The C++ server sends the port of UPDATE_INFO as a string.
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 5 else value
    if not _is_int(number) or not 0 < number <= 65535:
        raise _FieldError("the port is not between 1 and 65535")
    return number


def _address(value: object) -> str | None:
    # The C++ server, started without --custom-addr, may send an empty text for null.
    if value is None or value == "":
        return None
    return _text(value, "address", MAX_ADDRESS_LENGTH)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# --- the handshake of a session ------------------------------------------------------------------------------------


class SessionCode(IntEnum):
    """First word of a server's answer to `client:<match key>`."""

    SUCCESS = SESSION_MAGIC
    DUPLICATE = SESSION_MAGIC + 1
    MISMATCH = SESSION_MAGIC + 2


@dataclass(frozen=True, slots=True)
class ClientHello:
    """A client opens a session. `timeout_s` is its session_timeout (0: none); the phone never sees it."""

    match_key: str
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerHello:
    """A server's answer; `server_key` is empty unless `code` is SUCCESS."""

    code: SessionCode
    server_key: str = ""


class ClientHelloParser(Parser):
    """The server's side of a session handshake."""

    __slots__ = ("_done", "_magic_seen")

    def __init__(self) -> None:
        super().__init__()
        self._magic_seen = False
        self._done = False

    def next_event(self) -> ClientHello | None:
        """The client's hello, once; None when more bytes are needed.

        Raises:
            ProtocolError: wrong magic, impossible length, not `client:<match key>`, or a bad timeout.
        """
        self.check_alive()
        if self._done:
            return None
        if not self._magic_seen:
            magic = self.take_int32()
            if magic is None:
                return None
            if magic != SESSION_MAGIC:
                self.fail(f"not an RPC client: it began with {magic & 0xFFFFFFFF:#x}")
            self._magic_seen = True
        body = self.take_body(MAX_HELLO_BYTES, "a session hello")
        if body is None:
            return None
        hello = self._read(body)
        self._done = True
        return hello

    def _read(self, body: bytes) -> ClientHello:
        try:
            words = body.decode().split()
        except UnicodeDecodeError:
            self.fail("a session hello that is not UTF-8")
        if not words or not words[0].startswith("client:"):
            self.fail("a session hello that does not begin with `client:`")
        timeout_s = 0.0
        for option in words[1:]:
            # Unknown options are ignored, as every stock server does.
            if option.startswith("-timeout="):
                timeout_s = self._timeout(option.removeprefix("-timeout="))
        return ClientHello(words[0].removeprefix("client:"), timeout_s)

    def _timeout(self, text: str) -> float:
        if _NUMBER.fullmatch(text) is None:
            self.fail(f"session timeout {text[:32]!r} is not a number")
        timeout_s = float(text)
        if not 0 <= timeout_s <= MAX_TIMEOUT_S:
            self.fail(f"session timeout {text[:32]!r} is not between 0 and {MAX_TIMEOUT_S:.0f} s")
        return timeout_s


class ServerHelloParser(Parser):
    """The client's side of a session handshake."""

    __slots__ = ("_code", "_done")

    def __init__(self) -> None:
        super().__init__()
        self._code: SessionCode | None = None
        self._done = False

    def next_event(self) -> ServerHello | None:
        """The server's answer, once; None when more bytes are needed.

        Raises:
            ProtocolError: an unknown code, an impossible length, or a key that is not UTF-8.
        """
        self.check_alive()
        if self._done:
            return None
        if self._code is None:
            word = self.take_int32()
            if word is None:
                return None
            try:
                self._code = SessionCode(word)
            except ValueError:
                self.fail(f"not an RPC server: it answered {word & 0xFFFFFFFF:#x}")
            if self._code is not SessionCode.SUCCESS:
                self._done = True
                return ServerHello(self._code)
        body = self.take_body(MAX_HELLO_BYTES, "a server key")
        if body is None:
            return None
        try:
            server_key = body.decode()
        except UnicodeDecodeError:
            self.fail("a server key that is not UTF-8")
        self._done = True
        return ServerHello(self._code, server_key)


def encode_client_hello(match_key: str) -> bytes:
    """A client's first message, in one piece and without options."""
    body = f"client:{match_key}".encode()
    return INT32.pack(SESSION_MAGIC) + INT32.pack(len(body)) + body


def encode_server_hello(hello: ServerHello) -> bytes:
    """A server's answer, in one piece."""
    word = INT32.pack(hello.code)
    if hello.code is not SessionCode.SUCCESS:
        return word
    body = hello.server_key.encode()
    return word + INT32.pack(len(body)) + body
