"""The messages between the supervisor and a zygote, sans I/O: one message per packet of a SOCK_SEQPACKET pair.

Rules of this file: no sockets; `decode_*` returns a message or raises ProtocolError, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from farm.common.errors import ProtocolError

MAX_MESSAGE_BYTES = 128 << 10  # a packet must fit the socket's send buffer (212,992 bytes by default on Linux)


@dataclass(frozen=True, slots=True)
class Spawn:
    """Fork a child for one attempt. The token follows in a pipe that the child alone reads, not the zygote."""

    attempt: str
    fence: int
    task: str  # the module whose main(payload, daemon) runs: "farm.kinds.bench.worker", "farm.worker.checker"
    token: str
    socket: str  # path of the workers' control socket
    folder: str  # the attempt's own; exists already
    payload: Mapping[str, Any]
    cpu_limit_s: int
    data_limit_bytes: int
    uid: int | None = None  # become this user and group, when the zygote may
    gid: int | None = None
    groups: tuple[int, ...] = ()  # besides `gid`
    type: Literal["spawn"] = "spawn"


@dataclass(frozen=True, slots=True)
class Kill:
    """Send a signal to an attempt's whole process group. Nothing happens when it has ended."""

    attempt: str
    signal: int
    type: Literal["kill"] = "kill"


@dataclass(frozen=True, slots=True)
class Ready:
    """TVM is imported; children can be asked for."""

    threads: int  # at fork; 1 or a child could inherit a lock that a lost thread held
    versions: Mapping[str, str] = field(default_factory=dict)
    type: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Spawned:
    """A child runs, or could not be forked."""

    attempt: str
    pid: int  # also its process group; 0: no child was forked
    problem: str = ""  # why none was
    type: Literal["spawned"] = "spawned"


@dataclass(frozen=True, slots=True)
class Exited:
    """A child ended: with a code, or by a signal. Nothing of its process group is left."""

    attempt: str
    code: int | None
    signal: int | None
    type: Literal["exited"] = "exited"


ToZygote = Spawn | Kill
FromZygote = Ready | Spawned | Exited

Message = TypeVar("Message")
_TO_ZYGOTE: TypeAdapter[ToZygote] = TypeAdapter(Annotated[ToZygote, Field(discriminator="type")])
_FROM_ZYGOTE: TypeAdapter[FromZygote] = TypeAdapter(Annotated[FromZygote, Field(discriminator="type")])


def encode(message: ToZygote | FromZygote) -> bytes:
    """One packet.

    Raises:
        ProtocolError: the message is too large or holds something that is no JSON.
    """
    try:
        packet = json.dumps(asdict(message), separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a {message.type} message is not JSON: {error}") from error
    if len(packet) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a {message.type} message has {len(packet)} bytes; at most {MAX_MESSAGE_BYTES} fit")
    return packet


def _decode(adapter: TypeAdapter[Message], packet: bytes) -> Message:
    try:
        return adapter.validate_json(packet)
    except (ValidationError, RecursionError) as error:
        raise ProtocolError("a zygote message is malformed", evidence=repr(packet[:200])) from error


decode_to_zygote: Callable[[bytes], ToZygote] = partial(_decode, _TO_ZYGOTE)
decode_from_zygote: Callable[[bytes], FromZygote] = partial(_decode, _FROM_ZYGOTE)
