"""TVM's tracker protocol as bytes in, values out. No I/O (source: FACTS-tvm §1; tvm/rpc/{base,tracker}.py).

The rules are those of framing.py, and one more: a well-framed message with wrong contents is an event too
(`Invalid`): it gets an answer, the connection lives.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeGuard

from farm.tracker.framing import INT32, Parser

TRACKER_MAGIC = 0x2F271

# Of one tracker frame. The longest valid one takes 16 KiB, with every character escaped. The stock tracker allows
# 1 MiB: as JSON up to 21 MiB of memory, and 0.1 s in which nobody is served.
MAX_MESSAGE_BYTES = 64 << 10
MAX_KEY_LENGTH = 512  # characters of a key or match key; a farm alias has at most 96
MAX_USER_LENGTH = 256  # characters of the user a client claims to be (stock clients claim "")
MAX_ADDRESS_LENGTH = 255  # characters of a custom address: the longest DNS name
MAX_ECHO_LENGTH = 32  # characters of somebody's nonsense in our answer to it
MAX_PRIORITY = 1 << 31  # beyond it a priority is a mistake, not a wish

# Stock clients split keys on ':' and the handshake splits on whitespace; the C++ server writes JSON without escaping.
_FARM_SECRET = re.compile(r"[0-9a-f]{32}")  # 128 random bits (farm.leasing.sessions)
_KEY = re.compile(r"[^\s:\"'\\]+")


class Code(IntEnum):
    """Message codes of the tracker protocol."""

    FAIL = -1
    SUCCESS = 0
    PING = 1
    STOP = 2
    PUT = 3
    REQUEST = 4
    UPDATE_INFO = 5
    SUMMARY = 6
    GET_PENDING_MATCHKEYS = 7


@dataclass(frozen=True, slots=True)
class Hello:
    """The tracker client's magic; answered by the same four bytes."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""


@dataclass(frozen=True, slots=True)
class Stop:
    """End yourself, if this is your stop key."""

    stop_key: str


@dataclass(frozen=True, slots=True)
class Put:
    """A server offers itself once, under `match_key`."""

    key: str
    port: int
    match_key: str
    custom_address: str | None


@dataclass(frozen=True, slots=True)
class Request:
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
class Summary:
    """A client wants the list of servers and queues."""


@dataclass(frozen=True, slots=True)
class GetPendingMatchKeys:
    """A server asks which of its offers nobody took yet."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """A well-framed message that makes no sense. `code` is None when not even that could be read."""

    code: Code | None
    reason: str


TrackerMessage = Ping | Stop | Put | Request | UpdateInfo | Summary | GetPendingMatchKeys
TrackerEvent = Hello | TrackerMessage | Invalid


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
            return Hello()
        body = self.take_body(MAX_MESSAGE_BYTES, "a tracker message")
        return None if body is None else decode_message(body)


def decode_message(body: bytes) -> TrackerMessage | Invalid:
    """Read one message's JSON. Never raises: what cannot be read is `Invalid`."""
    try:
        value = json.loads(body.decode())  # given bytes, json would also take UTF-16 and 32
    except (ValueError, RecursionError):
        return Invalid(None, "the message is not JSON in UTF-8")
    if not isinstance(value, list) or not value or not _is_int(value[0]):
        return Invalid(None, "the message is not a list that begins with a code")
    try:
        code = Code(value[0])
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
    """Whether `text` looks like one of the farm: the holder of a lease may ask for its own, nobody serves under one."""
    name, _, secret = text.rpartition(":")
    return is_key(name) and _FARM_SECRET.fullmatch(secret) is not None


class _FieldError(Exception):
    """A field of a tracker message is wrong; the text says which and how."""


def _decode_fields(code: Code, fields: list[object]) -> TrackerMessage | Invalid:
    match code:
        case Code.PING:
            return Ping()
        case Code.SUMMARY:
            return Summary()
        case Code.GET_PENDING_MATCHKEYS:
            return GetPendingMatchKeys()
        case Code.STOP:
            return Stop(_text(_field(fields, 0, "stop key"), "stop key", MAX_KEY_LENGTH))
        case Code.REQUEST:
            user = fields[1] if len(fields) > 1 else ""
            priority = fields[2] if len(fields) > 2 else 1
            if not _is_int(priority) or abs(priority) > MAX_PRIORITY:
                raise _FieldError("the priority is not a number a person would choose")
            key = _field(fields, 0, "key")
            asked = key if isinstance(key, str) and is_match_key(key) else _key(key)
            return Request(asked, _text(user, "user", MAX_USER_LENGTH), priority)
        case Code.PUT:
            return _decode_put(fields)
        case Code.UPDATE_INFO:
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
