"""The job door: people's requests, each with the role it needs, answered by handlers the daemon registers."""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from farm.control.artifacts import ArtifactFolder
from farm.control.messages import Request
from farm.control.router import Answer, Call, Peer, Router
from farm.control.runtime_folder import FARM_GROUP
from farm.control.shares import Shares
from farm.core.errors import NotAllowedError, UserError

STREAMS = frozenset({"events", "job.watch", "job.logs"})  # last as long as what they follow
ROLE_CACHE_S = 60.0  # name services can be slow (LDAP); a changed group counts after a minute


class Role(IntEnum):
    """What a person may do; each may do what the ones before it may."""

    VIEWER = 1  # look
    USER = 2  # use phones
    OPERATOR = 3  # change the lab


class UnknownKindError(UserError):
    """The daemon does not know this request."""

    code = "unknown_kind"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the kernel says."""

    user: str
    role: Role
    peer: Peer


@dataclass(frozen=True, slots=True)
class ControlCall:
    """A request with its caller; `progress` sends something ahead of the answer."""

    call: Call
    caller: Caller

    @property
    def request(self) -> Request:
        """The request itself."""
        return self.call.request

    @property
    def fields(self) -> Mapping[str, Any]:
        """The request's own fields, unchecked: the handler validates them."""
        return self.call.request.fields

    async def progress(self, **fields: Any) -> None:
        """Send `fields` ahead of the answer.

        Raises:
            CallerGoneError: nobody waits for the answer any more.
        """
        await self.call.progress(**fields)


Handler = Callable[[ControlCall], Awaitable[Mapping[str, Any] | Answer]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler and the least role that may call it."""

    handler: Handler
    role: Role


class Roles:
    """Role by uid: root and the service user operate, the group `farm` uses, everybody else looks."""

    def __init__(
        self, service_uid: int | None = None, *, group: str = FARM_GROUP, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._operators = frozenset({0, os.geteuid() if service_uid is None else service_uid})
        self._group = group
        self._clock = clock
        self._known: dict[int, tuple[float, Role]] = {}

    def __call__(self, uid: int) -> Role:
        """The role of `uid`, at most a minute old."""
        now = self._clock()
        known = self._known.get(uid)
        if known is None or now - known[0] > ROLE_CACHE_S:
            known = self._known[uid] = (now, self._read(uid))
        return known[1]

    def _read(self, uid: int) -> Role:
        if uid in self._operators:
            return Role.OPERATOR
        try:
            user, group = pwd.getpwuid(uid), grp.getgrnam(self._group)
        except KeyError:
            return Role.VIEWER
        member = user.pw_gid == group.gr_gid or user.pw_name in group.gr_mem
        return Role.USER if member else Role.VIEWER


class ControlServer:
    """The job door. Build it, `register` handlers, `start`; `artifact.put` and `artifact.get` come with it."""

    def __init__(
        self,
        path: Path,
        *,
        artifacts: ArtifactFolder,
        role_of: Callable[[int], Role] | None = None,
        gid: int | None = None,
    ) -> None:
        """`gid` is the group that may connect besides the daemon's own user."""
        self._router = Router(path, self._answer, gid=gid, shares=Shares(stream_kinds=STREAMS))
        self._role_of = role_of or Roles()
        self._handlers: dict[str, Registered] = {}
        self._artifacts = artifacts
        self.register("ping", self._ping, Role.VIEWER)
        self.register("artifact.put", self._put, Role.USER)
        self.register("artifact.get", self._get, Role.VIEWER)

    @property
    def endpoint(self) -> str:
        """The ZeroMQ address clients connect to."""
        return self._router.endpoint

    def register(self, kind: str, handler: Handler, role: Role) -> None:
        """Answer requests of `kind` from callers of at least `role` with `handler`."""
        if kind in self._handlers:
            raise ValueError(f"two handlers for {kind}")
        self._handlers[kind] = Registered(handler, role)

    async def start(self) -> None:
        """Open the door.

        Raises:
            DoorError: the socket cannot be opened.
        """
        await self._router.start()

    async def stop(self) -> None:
        """End running calls and close the door."""
        await self._router.stop()

    async def _answer(self, call: Call) -> Answer:
        kind = call.request.kind
        registered = self._handlers.get(kind)
        if registered is None:
            raise UnknownKindError(
                f"the daemon does not know {kind!r}", hint="client and daemon must be the same farm release"
            )
        caller = Caller(user_name(call.peer.uid), self._role_of(call.peer.uid), call.peer)
        if caller.role < registered.role:
            raise NotAllowedError(
                f"{kind} needs the role {registered.role.name.lower()}; {caller.user} is {caller.role.name.lower()}",
                hint=_how_to_become(registered.role),
            )
        answer = await registered.handler(ControlCall(call, caller))
        return answer if isinstance(answer, Answer) else Answer(answer)

    async def _ping(self, call: ControlCall) -> Mapping[str, Any]:
        return {"user": call.caller.user, "role": call.caller.role.name.lower()}

    async def _put(self, call: ControlCall) -> Mapping[str, Any]:
        return await put_artifact(self._artifacts, call.request)

    async def _get(self, call: ControlCall) -> Answer:
        return await get_artifact(self._artifacts, call.request)


async def put_artifact(artifacts: ArtifactFolder, request: Request) -> Mapping[str, Any]:
    """The verb `artifact.put` {sha256, offset, total_bytes} + one raw frame -> {size_bytes, complete}."""
    stored = await artifacts.put(
        text_field(request, "sha256"),
        number_field(request, "offset"),
        request.frames[0] if request.frames else b"",
        number_field(request, "total_bytes"),
    )
    return {"size_bytes": stored.size_bytes, "complete": stored.complete}


async def get_artifact(artifacts: ArtifactFolder, request: Request) -> Answer:
    """The verb `artifact.get` {sha256, offset} -> {total_bytes} + one raw frame."""
    data, total_bytes = await artifacts.get(text_field(request, "sha256"), number_field(request, "offset"))
    return Answer({"total_bytes": total_bytes}, (data,))


def text_field(request: Request, name: str) -> str:
    """A field that must be text.

    Raises:
        UserError: it is missing or something else.
    """
    value = request.fields.get(name)
    if not isinstance(value, str):
        raise UserError(f"{request.kind} needs {name!r} as text")
    return value


def number_field(request: Request, name: str) -> int:
    """A field that must be a whole number, zero or more.

    Raises:
        UserError: it is missing or something else.
    """
    value = request.fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UserError(f"{request.kind} needs {name!r} as a whole number")
    return value


def user_name(uid: int) -> str:
    """The login name of `uid`, or `uid-N` (as the TVM door says it) when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def _how_to_become(role: Role) -> str:
    if role is Role.OPERATOR:
        return "operators are root and the user the daemon runs as: sudo -u farm farm ..."
    return "have an operator add you to the group farm: sudo usermod -aG farm USER"
