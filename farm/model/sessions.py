"""Values that pass between the TVM server and leasing: peers, sessions and how sessions end. No I/O.

A *session* is one RPC connection under a lease; a *match key* is the secret by which a client proves the lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from farm.common.errors import UserError

if TYPE_CHECKING:
    import socket


STOPPING = "the farm is stopping"  # why a session or a lease ends with it


class NoSuchMatchKeyError(UserError):
    """No current lease has this match key."""

    code = "no_such_match_key"


class MatchKeyBusyError(UserError):
    """A session is already open under this match key's lease."""

    code = "match_key_busy"


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a TCP connection. `user` is the owner of the loopback socket, else the address."""

    address: str
    port: int
    user: str = ""

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class SessionOutcome(StrEnum):
    """How a session ended."""

    CLOSED = "closed"  # the client said goodbye (TVM's shutdown packet), or left while nothing was outstanding
    VANISHED = "vanished"  # the client left while the phone still worked for it
    PHONE_CLOSED = "phone-closed"  # the phone's server ended it: a crash, an unplug, a lost adb stream
    TIMED_OUT = "timed-out"  # longer than the client's own session_timeout
    IDLE = "idle"  # no byte for the idle limit
    CUT = "cut"  # an operator, a lost device or the farm's shutdown ended it
    NOT_OPENED = "not-opened"  # the phone's server could not be reached or refused the handshake
    ABANDONED = "abandoned"  # the client left before the phone's server had answered


# After these the phone may still be busy or hurt: it must be looked at before the next user gets it.
ABNORMAL_OUTCOMES = frozenset(
    {
        SessionOutcome.VANISHED,
        SessionOutcome.PHONE_CLOSED,
        SessionOutcome.TIMED_OUT,
        SessionOutcome.IDLE,
        SessionOutcome.CUT,
        SessionOutcome.NOT_OPENED,
    }
)


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The one report the gate makes about a session. `seconds` counts from the accepted handshake."""

    outcome: SessionOutcome
    bytes_up: int = 0  # client to phone
    bytes_down: int = 0  # phone to client
    seconds: float = 0.0
    detail: str = ""  # one line for a person


@dataclass(frozen=True, slots=True)
class PhoneStream:
    """A connected, non-blocking socket to a phone's RPC server, and the key of that server."""

    sock: socket.socket
    server_secret: str


@dataclass(frozen=True, slots=True)
class UpstreamSession:
    """The phone's side of a session that a match key opened. `ended` must be called exactly once, last."""

    device: str
    session: str  # session id
    key: str  # the key that the client asked for: answered as `server:<key>`
    dial: Callable[[float], Awaitable[PhoneStream]]  # argument: timeout in seconds
    opened: Callable[[], None]  # the phone's server has answered
    ended: Callable[[SessionEnd], None]
    fence: int = 0  # of its lease
    # Asked when the daemon stops: whether the session continues without it. If so, `ended` is not called.
    detach: Callable[[], bool] = lambda: False
    elsewhere: bool = False  # `dial` leads to the gate of another host, which acts as the phone's server


@dataclass(frozen=True, slots=True)
class OrphanedSession:
    """A session that outlived the daemon which had granted it, as the gate reports it to the next one."""

    session: str
    fence: int
    device: str
    key: str
    peer: Peer
    seconds: float  # since it was opened
    secret: str = field(repr=False)  # of the phone's server
    ended: bool = False  # while no daemon was there


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key in the tracker's summary."""

    key: str
    free: int
    pending: int


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One device in service under one of its keys."""

    key: str
    device: str


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """The part of the tracker's summary about the farm's own devices."""

    keys: tuple[KeyRow, ...] = ()
    servers: tuple[ServerRow, ...] = ()
