"""The messages between `farm gate` and the daemon: one datagram is one message. Bytes in, values out, no I/O.

A message is a JSON object with `kind` and exactly the fields of its class, records in them likewise; those in `CARRIES`
come with a descriptor. `n` is the gate's number of a connection: of one client, for as long as the gate lives.
docs/protocol.md, "The gate".
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, NoReturn, get_type_hints

from farm.common.errors import ProtocolError
from farm.model.sessions import OrphanedSession, Peer, SessionEnd

VERSION = 5  # of everything below; a gate and a daemon of different versions refuse each other
MAX_MESSAGE_BYTES = 64 << 10
MAX_TEXT = 8192  # characters of one field
MAX_DETAIL = 500  # characters of what people read
_BIGGEST = (1 << 63) - 1


class Signal(StrEnum):
    """The subject of a `Notice`."""

    DAEMON_READY = "daemon_ready"  # daemon: the kept sessions are adopted; clients may be handed over
    CLIENT_TAKEN = "client_taken"  # daemon: the handed-over client is served here now
    CLIENT_LEFT = "client_left"  # daemon: that connection has ended
    END_NOTED = "end_noted"  # daemon: the session's end is recorded
    ALL_KEPT = "all_kept"  # gate: all kept sessions have been sent
    SESSION_OPENED = "session_opened"  # gate: the phone's server has answered
    ALIVE = "alive"  # gate: its event loop runs; sent every second


@dataclass(frozen=True, slots=True)
class Notice:
    """Either side: a message without further fields. `n` is 0 where it is about no connection."""

    signal: Signal
    n: int = 0


@dataclass(frozen=True, slots=True)
class DaemonHello:
    """Daemon, first: its identity, and after how long a session without a byte ends."""

    v: int
    farm: str  # its release
    id: str  # the same for every daemon of one state folder
    pid: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class Welcome:
    """Gate, to a daemon that it accepts: where it listens. Each `KeptSession`, and its `SessionEnded`, follow."""

    v: int
    farm: str
    pid: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """Gate, to a daemon that it does not accept; it closes."""

    v: int
    farm: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeptSession:
    """Gate: a session that an earlier daemon granted, and whose end no daemon has noted."""

    n: int
    session: OrphanedSession
    reported: bool  # whether a daemon knows that it was opened


@dataclass(frozen=True, slots=True)
class ClientHandoff:
    """Gate: a tracker connection, with its descriptor; `first` is the bytes read so far, in base64."""

    n: int
    peer: Peer
    first: str


@dataclass(frozen=True, slots=True)
class ClientElsewhere:
    """Daemon: a client of another host of the lab, with the descriptor of a connection that leads there.

    `first` is the bytes read so far, in base64.
    """

    peer: Peer
    first: str


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """Daemon: `idle_s` of sessions that open from now on."""

    idle_s: float


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Gate: where does this match key lead? Answered by SessionGranted or SessionRefused."""

    n: int
    key: str
    peer: Peer
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SessionGranted:
    """Daemon: to this device, under this lease's fence. `elsewhere`: through the gate of another host."""

    n: int
    session: str
    fence: int
    device: str
    key: str
    elsewhere: bool


@dataclass(frozen=True, slots=True)
class SessionRefused:
    """Daemon: no session. `code`: unknown (no such key), busy (a session is open), failed (the phone, or farm)."""

    n: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class DialPhone:
    """Gate: dial the device of a granted session. Answered by PhoneDialled or SessionRefused."""

    n: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class PhoneDialled:
    """Daemon: the dialled phone's descriptor, and the key of its server."""

    n: int
    secret: str


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """Gate: the session is over, or its client left before it was granted. Repeated until a daemon has noted it."""

    n: int
    end: SessionEnd


@dataclass(frozen=True, slots=True)
class CutSession:
    """Daemon: end the session now, whatever its stage."""

    n: int
    reason: str


@dataclass(frozen=True, slots=True)
class PhoneActive:
    """Gate: a phone has sent bytes in some session, this long ago."""

    ago_s: float


@dataclass(frozen=True, slots=True)
class ConnectionsRefused:
    """Gate: the users whose connections are closed because they have too many; "" when there are none any more."""

    problem: str


FromDaemon = (
    Notice | DaemonHello | IdleLimit | ClientElsewhere | SessionGranted | SessionRefused | PhoneDialled | CutSession
)  # fmt: skip
FromGate = (
    Notice | Welcome | Rejected | KeptSession | ClientHandoff | OpenSession | DialPhone | SessionEnded | PhoneActive
    | ConnectionsRefused
)  # fmt: skip
Message = FromDaemon | FromGate
Side = Mapping[str, type[Message]]  # the messages that one side may send, by kind
CARRIES = (ClientHandoff, ClientElsewhere, PhoneDialled)  # come with one descriptor


def kind_of(message: type[Message]) -> str:
    """A class's name on the wire: `SessionEnded` is `session_ended`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__).lower()


FROM_DAEMON: Side = {kind_of(each): each for each in FromDaemon.__args__}
FROM_GATE: Side = {kind_of(each): each for each in FromGate.__args__}


def encode(message: Message) -> bytes:
    """One datagram.

    Raises:
        ProtocolError: it would be refused at the other end.
    """
    data = json.dumps({"kind": kind_of(type(message)), **asdict(message)}, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a gate message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are sent")
    return data


def decode(data: bytes, side: Side) -> Message:
    """One datagram from `side` (FROM_DAEMON or FROM_GATE).

    Raises:
        ProtocolError: it is not exactly one message of that side.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        _fail(f"more than {MAX_MESSAGE_BYTES} bytes")
    try:
        value = json.loads(data, parse_constant=_fail)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a gate message: no JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        _fail("no JSON object")
    kind = value.pop("kind", None)
    if not isinstance(kind, str) or kind not in side:
        _fail("its kind is not one that this side may send")
    message: Message = _read(kind, value, side[kind])
    return message


def version_of(data: bytes) -> int | None:
    """The version that a first message of whatever release states; None when it states none."""
    try:
        value = json.loads(data[:MAX_MESSAGE_BYTES])
    except (ValueError, RecursionError):
        return None
    version = value.get("v") if isinstance(value, dict) else None
    return version if type(version) is int else None


def pack(data: bytes) -> str:
    """Bytes as text of a message."""
    return base64.b64encode(data).decode("ascii")


def unpack(text: str) -> bytes:
    """The message that `pack` made.

    Raises:
        ProtocolError: it did not.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError("not a gate message: no base64") from error


def clip(text: str) -> str:
    """A line for people, short enough for a message, and text that it takes."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_DETAIL else f"{text[: MAX_DETAIL - 1]}…"


@cache
def _field_types(wanted: Any) -> Mapping[str, Any]:
    """The annotations of a record's fields; none of anything else."""
    return get_type_hints(wanted) if is_dataclass(wanted) else {}


def _read(name: str, value: Any, wanted: Any) -> Any:
    """A JSON value in the type of its field's annotation."""
    if types := _field_types(wanted):
        if not isinstance(value, dict) or value.keys() != types.keys():
            _fail(f"{name} does not have these fields")
        return wanted(**{field: _read(field, value[field], types[field]) for field in types})
    if wanted is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _BIGGEST:
            _fail(f"{name} is no number of seconds")
        return float(value)
    if issubclass(wanted, StrEnum):
        if value not in list(wanted):
            _fail(f"{name} is no {wanted.__name__}")
        return wanted(value)
    if type(value) is not wanted:
        _fail(f"{name} is no {wanted.__name__}")
    if isinstance(value, int) and not 0 <= value <= _BIGGEST:
        _fail(f"{name} is out of range")
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            _fail(f"{name} has more than {MAX_TEXT} characters")
        if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
            _fail(f"{name} has no UTF-8")
    return value


def _fail(what: str) -> NoReturn:
    raise ProtocolError(f"not a gate message: {what}")
