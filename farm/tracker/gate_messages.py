"""What `farm gate` and the daemon tell each other: one datagram is one message. Bytes in, values out, no I/O.

A message is a JSON object with `kind` and exactly the fields of its class; those in `CARRIES` come with a descriptor.
`n` is the gate's number of a connection: of one client, for as long as the gate lives. docs/interfaces.md, "The gate".
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import NoReturn, get_type_hints

from farm.core.errors import ProtocolError

VERSION = 1  # of everything below; a gate and a daemon of different versions refuse each other
MAX_MESSAGE_BYTES = 64 << 10
MAX_TEXT = 8192  # characters of one field
MAX_DETAIL = 500  # characters of what people read
_BIGGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Hello:
    """Daemon, first: who it is, and after how long a session without a byte ends."""

    v: int
    farm: str  # its release
    id: str  # the same for every daemon of one state folder
    pid: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class Welcome:
    """Gate, to a daemon that it will work for: where it listens. `Kept`, with its `Ended` if it is over, follow."""

    v: int
    farm: str
    pid: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Unwelcome:
    """Gate, to a daemon that it will not work for; it closes."""

    v: int
    farm: str
    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Gate: a session that an earlier daemon granted, and whose end nobody has noted."""

    n: int
    session: str
    fence: int
    device: str
    key: str
    secret: str  # of the phone's server: the next daemon takes that over with it
    address: str
    port: int
    user: str
    seconds: float  # since it was opened
    up: int  # bytes so far
    down: int
    told: bool  # that it was opened


@dataclass(frozen=True, slots=True)
class AllKept:
    """Gate: that was all of them."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Daemon: what was kept is taken up; newcomers may come."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Gate: a tracker connection, with its descriptor; `first` is what was read of it, in base64."""

    n: int
    address: str
    port: int
    user: str
    first: str


@dataclass(frozen=True, slots=True)
class Use:
    """Daemon: what `idle_s` is from now on."""

    idle_s: float


@dataclass(frozen=True, slots=True)
class Taken:
    """Daemon: the newcomer is served here now."""

    n: int


@dataclass(frozen=True, slots=True)
class Left:
    """Daemon: that connection has ended."""

    n: int


@dataclass(frozen=True, slots=True)
class Open:
    """Gate: where does this match key lead? Answered by Granted or Refused."""

    n: int
    key: str
    address: str
    port: int
    user: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Gate: nobody waits for the answer any more, whatever it is."""

    n: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Daemon: to this device, under this lease's fence."""

    n: int
    session: str
    fence: int
    device: str
    key: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Daemon: nowhere. `code`: unknown (no such key), busy (a session is open), failed (the phone, or the farm)."""

    n: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Dial:
    """Gate: dial the device of a granted session. Answered by Stream or Refused."""

    n: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Stream:
    """Daemon: the dialled phone's descriptor, and what its server wants to hear."""

    n: int
    secret: str


@dataclass(frozen=True, slots=True)
class Opened:
    """Gate: the phone's server has answered."""

    n: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Gate: the session is over; said again to the next daemon until one has noted it."""

    n: int
    outcome: str
    up: int
    down: int
    seconds: float
    detail: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Daemon: the end is known."""

    n: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Daemon: end the session now, whatever its stage."""

    n: int
    reason: str


@dataclass(frozen=True, slots=True)
class Heard:
    """Gate: a phone has said something in some session, this long ago."""

    ago_s: float


@dataclass(frozen=True, slots=True)
class Alive:
    """Gate: it moves. Said every second."""


@dataclass(frozen=True, slots=True)
class Crowded:
    """Gate: who is sent away because of too many connections, in words; "" when nobody is any more."""

    problem: str


FROM_DAEMON = (Hello, Ready, Use, Taken, Left, Granted, Refused, Stream, Noted, Cut)
FROM_GATE = (Welcome, Unwelcome, Kept, AllKept, Newcomer, Open, Withdraw, Dial, Opened, Ended, Heard, Alive, Crowded)
CARRIES = (Newcomer, Stream)  # come with one descriptor

Message = (
    Hello | Ready | Use | Taken | Left | Granted | Refused | Stream | Noted | Cut
    | Welcome | Unwelcome | Kept | AllKept | Newcomer | Open | Withdraw | Dial | Opened | Ended
    | Heard | Alive | Crowded
)  # fmt: skip


def kind_of(message: type[object]) -> str:
    """A class's name on the wire: `AllKept` is `all_kept`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__).lower()


_TYPES: Mapping[type[object], Mapping[str, type]] = {each: get_type_hints(each) for each in (*FROM_DAEMON, *FROM_GATE)}
_KINDS: Mapping[tuple[type[object], ...], Mapping[str, type[object]]] = {
    side: {kind_of(each): each for each in side} for side in (FROM_DAEMON, FROM_GATE)
}


def encode(message: Message) -> bytes:
    """One datagram.

    Raises:
        ProtocolError: it would be refused at the other end.
    """
    data = json.dumps({"kind": kind_of(type(message)), **asdict(message)}, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a gate message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are sent")
    return data


def decode(data: bytes, side: tuple[type[object], ...]) -> Message:
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
    kind = _KINDS[side].get(value.pop("kind", None)) if isinstance(value.get("kind"), str) else None
    if kind is None:
        _fail("its kind is not one that this side may send")
    wanted = _TYPES[kind]
    if value.keys() != wanted.keys():
        _fail(f"{kind_of(kind)} does not have these fields")
    message: Message = kind(**{name: _field(name, value[name], wanted[name]) for name in wanted})  # type: ignore[assignment]
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
    """What `pack` made.

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


def secretless(message: Message) -> str:
    """A message for a log."""
    hidden = {"secret", "key", "first"}
    said = (f"{each.name}={getattr(message, each.name)}" for each in fields(message) if each.name not in hidden)
    return f"{kind_of(type(message))} {' '.join(said)}"


def _field(name: str, value: object, wanted: type) -> object:
    if wanted is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _BIGGEST:
            _fail(f"{name} is no number of seconds")
        return float(value)
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
