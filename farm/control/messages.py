"""Messages of both control sockets (people's and workers'), sans I/O: frames in, requests and replies out, and back.

Frame 0 is one JSON object; a second one is a piece of an artifact, raw. docs/protocol.md has the fields.
Rules of this file: no sockets, no clock; a decoder returns a message or raises ProtocolError, nothing else. It is
imported by `farm status`, so the standard library must do.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from farm.common.errors import FarmError, MissingFieldError, ProtocolError, error_from_wire, error_to_wire

PROTOCOL_VERSION = 1
MAX_HEADER_BYTES = 2 << 20  # a job with the largest result (1 MiB); a status of 1,000 phones is about 400 kB
MAX_FRAME_BYTES = 1 << 20  # one artifact chunk: large enough for 1 GB/s over ipc, small enough not to stall the loop
MAX_FRAMES = 1  # raw frames in one message
MAX_FENCE = 1 << 62

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")  # kinds
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # request and attempt ids
_TOKEN = re.compile(r"[A-Za-z0-9_-]{0,128}")
_ENVELOPE = frozenset({"v", "id", "kind", "attempt", "fence", "token"})
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # JSON escapes that may name half a character


# Verbs whose answers are shown: what an older daemon does not send is unknown. Answers of other verbs are acted upon.
_SHOWN = re.compile(
    r"[a-z]+\.list|(job|device)\.show|device\.(adb|battery)|doctor|explain|history\.models|status|store\.check|usage"
)


class AnswerFields(dict[str, Any]):
    """An object of an answer: a field that its daemon did not send is one error that names it, never a KeyError."""

    def __missing__(self, name: str) -> Any:
        raise MissingFieldError(name)


class ShownFields(AnswerFields):
    """An object of an answer that is shown: a field that its daemon did not send is an UnknownField."""

    def __missing__(self, name: str) -> Any:
        return UnknownField(name)


class UnknownField(str):
    """Stands for a field of any type that an answer lacks: `unknown` alone, `?` in a longer text, false and empty.

    Its items, sums and quotients are unknown, comparisons with it are false.
    """

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Self:
        """`name`: the field's."""
        made = super().__new__(cls, "unknown")
        made.name = name
        return made

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __float__(self) -> float:
        return math.nan

    def __int__(self) -> int:
        raise MissingFieldError(self.name)

    def __format__(self, _: str) -> str:
        return "?"

    def _itself(self, *_: object) -> Any:
        return self

    def _false(self, *_: object) -> Any:
        return False

    def items(self) -> tuple[()]:
        """As of an empty object."""
        return ()

    keys = values = items
    get = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = _itself
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _itself
    __contains__ = __lt__ = __le__ = __gt__ = __ge__ = _false


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client or a worker. Only workers send `attempt`, `fence` and `token`; a uid names people."""

    id: str
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    frames: tuple[bytes, ...] = ()
    attempt: str = ""
    fence: int = 0
    token: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, or one of several while `more`. A reply with `more` and no fields only says "still at work"."""

    id: str
    fields: dict[str, Any] = field(default_factory=dict)
    frames: tuple[bytes, ...] = ()
    more: bool = False
    error: FarmError | None = None


def encode_request(request: Request) -> list[bytes]:
    """Frames of a request.

    Raises:
        ProtocolError: a field is named like one of the envelope's, is no JSON, or a limit is exceeded.
    """
    clash = _ENVELOPE & request.fields.keys()
    if clash:
        raise ProtocolError(f"request field {min(clash)!r} belongs to the envelope")
    header: dict[str, Any] = {"v": PROTOCOL_VERSION, "id": request.id, "kind": request.kind}
    if request.token:
        header |= {"attempt": request.attempt, "fence": request.fence, "token": request.token}
    _check_envelope(header, request.fence)  # what the other side would refuse never leaves
    return _encode(header | dict(request.fields), request.frames)


def decode_request(frames: Sequence[bytes]) -> Request:
    """The request in `frames`.

    Raises:
        ProtocolError: they are not one.
    """
    header = _decode(frames)
    version = header.get("v")
    if version != PROTOCOL_VERSION or isinstance(version, bool):
        raise ProtocolError(
            f"the message has protocol version {str(version)[:20]}, this farm speaks {PROTOCOL_VERSION}",
            hint="client and daemon must be the same farm release: restart the daemon after an upgrade",
        )
    fence = header.get("fence", 0)
    _check_envelope(header, fence)
    return Request(
        id=header["id"],
        kind=header["kind"],
        fields={name: value for name, value in header.items() if name not in _ENVELOPE},
        frames=tuple(frames[1:]),
        attempt=header.get("attempt", ""),
        fence=fence,
        token=header.get("token", ""),
    )


def _check_envelope(header: Mapping[str, Any], fence: object) -> None:
    for name, pattern in (("kind", _NAME), ("id", _ID), ("attempt", _ID), ("token", _TOKEN)):
        if name in header or name in ("kind", "id"):
            _matching(header, name, pattern)
    if not isinstance(fence, int) or isinstance(fence, bool) or not 0 <= fence <= MAX_FENCE:
        raise ProtocolError("the message's fence is not a whole number")


def request_id(frames: Sequence[bytes]) -> str:
    """The id of a request that could not be decoded, or empty when it has none."""
    try:
        found = _decode(frames[:1]).get("id")
    except ProtocolError:
        return ""
    return found if isinstance(found, str) and _ID.fullmatch(found) else ""


def encode_reply(reply: Reply) -> list[bytes]:
    """Frames of a reply.

    Raises:
        ProtocolError: a field is no JSON, or a limit is exceeded.
    """
    header: dict[str, Any] = {"id": reply.id}
    if reply.error is not None:
        header["error"] = error_to_wire(reply.error)
    else:
        if reply.more:
            header["more"] = True
        if reply.fields or not reply.more:
            header["ok"] = reply.fields
    return _encode(header, reply.frames)


def decode_reply(frames: Sequence[bytes], kind: str = "") -> Reply:
    """The reply in `frames` to a request of that kind.

    Raises:
        ProtocolError: they are not one.
    """
    fields_type = ShownFields if _SHOWN.fullmatch(kind) else AnswerFields
    header = _decode(frames, fields_type)
    identifier, more, fields, error = (
        _matching(header, "id", _ID),
        header.get("more", False),
        header.get("ok", fields_type()),
        header.get("error"),
    )
    if not isinstance(more, bool) or not isinstance(fields, dict) or not ("ok" in header or more or error is not None):
        raise ProtocolError("the reply is neither an answer nor an error")
    if error is not None:
        if not isinstance(error, dict):
            raise ProtocolError("the reply's error is not an object")
        return Reply(identifier, error=error_from_wire(error))
    return Reply(identifier, fields, tuple(frames[1:]), more)


def _encode(header: Mapping[str, Any], frames: Sequence[bytes]) -> list[bytes]:
    try:
        first = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
        _refuse_half_characters(first, header)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a message field is not JSON: {error}") from error
    encoded = [first, *frames]
    _check_sizes(encoded)
    return encoded


def _decode(frames: Sequence[bytes], fields_type: type[dict[str, Any]] | None = None) -> dict[str, Any]:
    _check_sizes(frames)
    try:
        header = json.loads(frames[0], parse_constant=_refuse_constant, object_hook=fields_type)
        _refuse_half_characters(frames[0], header)
    except (ValueError, RecursionError) as error:  # ValueError covers JSON, UTF-8 and over-long numbers
        raise ProtocolError("the message's first frame is not JSON", evidence=repr(bytes(frames[0][:200]))) from error
    if not isinstance(header, dict):
        raise ProtocolError("the message's first frame is not a JSON object")
    return header


def _refuse_half_characters(frame: bytes, header: object) -> None:
    if _SURROGATE.search(frame):
        json.dumps(header, ensure_ascii=False).encode()  # raises UnicodeEncodeError


def _check_sizes(frames: Sequence[bytes]) -> None:
    if not frames:
        raise ProtocolError("the message has no frame")
    if len(frames[0]) > MAX_HEADER_BYTES:
        raise ProtocolError(f"the message's JSON has {len(frames[0])} bytes; at most {MAX_HEADER_BYTES} are allowed")
    if len(frames) - 1 > MAX_FRAMES:
        raise ProtocolError(f"the message has {len(frames) - 1} raw frames; at most {MAX_FRAMES} are allowed")
    for frame in frames[1:]:
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(f"a raw frame has {len(frame)} bytes; at most {MAX_FRAME_BYTES} are allowed")


def _matching(header: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = header.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ProtocolError(f"the message's {name!r} is missing or malformed")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
