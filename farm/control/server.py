"""The job door: people's requests, each with the role it needs, answered by handlers the daemon registers."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.control.accounts import Accounts
from farm.control.artifacts import ArtifactFolder
from farm.control.audit import OK, AuditTrail, subject_of
from farm.control.callers import Caller, KeyPeer, Peer, People, Person, Role
from farm.control.curve_entrance import CurveEntrance
from farm.control.entrances import UnixEntrance
from farm.control.messages import Reply, Request, decode_request, encode_request
from farm.control.router import Answer, Call, CallerGoneError, Router
from farm.control.shares import Shares
from farm.core.errors import FarmError, NotAllowedError, UserError

STREAMS = frozenset({"events", "job.watch", "job.logs"})  # last as long as what they follow
# Verbs of users and operators that change nothing: only refusals of them are worth a row of the audit log.
ONLY_LOOK = frozenset({"job.check", "lease.show", "store.check", "auth.list", "audit.list"})
logger = logging.getLogger(__name__)

LAST_WORDS_S = 0.2  # for the answers that say so, before a revoked key's connections are cut
UNKNOWN = "?"  # a kind that nobody registered, in the audit log: its name is the caller's own words

Progress = Callable[..., Awaitable[None]]


class UnknownKindError(UserError):
    """The daemon does not know this request."""

    code = "unknown_kind"


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


class ControlServer:
    """The desk behind every door. Build it, `register` handlers, `start`; `artifact.put` and `.get` come with it.

    People come through the job door (a unix socket) and, by `ask`, through whatever else the daemon has: the page.
    """

    def __init__(
        self,
        path: Path,
        *,
        artifacts: ArtifactFolder,
        who_is: Callable[[int], Awaitable[Person]] | None = None,
        gid: int | None = None,
        audit: AuditTrail | None = None,
        accounts: Accounts | None = None,
        elsewhere: CurveEntrance | None = None,
    ) -> None:
        """A desk with its doors.

        Args:
            path: of the job door's socket.
            artifacts: what clients put and get.
            who_is: name and role by uid.
            gid: the group that may connect besides the daemon's own user.
            audit: None: nothing is written.
            accounts: people elsewhere; needed with `elsewhere`.
            elsewhere: the way in for them; None: there is none.
        """
        self._audit = audit
        self.accounts = accounts
        shares = Shares(stream_kinds=STREAMS)
        self._router = Router(UnixEntrance(path, gid), self._answer, shares=shares)
        self._remote = None if elsewhere is None else Router(elsewhere, self._answer, shares=shares)
        if accounts is not None:
            accounts.on_revoked(self._put_out)
        self._who_is = who_is or People()
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
        """Open the doors.

        Raises:
            DoorError: a socket cannot be opened.
        """
        await self._router.start()
        if self._remote is not None:
            try:
                await self._remote.start()
                logger.info("people elsewhere come in at %s", self._remote.endpoint)
            except BaseException:
                await self._router.stop()
                raise

    async def stop(self) -> None:
        """End running calls and close the doors."""
        if self._remote is not None:
            await self._remote.stop()
        await self._router.stop()

    @property
    def parts(self) -> Sequence[asyncio.Task[None]]:
        """What runs for as long as the doors are open."""
        return [part for door in (self._router, self._remote) if door is not None for part in door.parts]

    def problems(self) -> list[str]:
        """What is wrong with the doors now."""
        doors = (self._router, self._remote)
        return [door.problem for door in doors if door is not None and door.problem]

    @property
    def verbs(self) -> Mapping[str, Role]:
        """Every verb, and the least role that may call it."""
        return {kind: registered.role for kind, registered in self._handlers.items()}

    async def ask(
        self,
        caller: Caller,
        kind: str,
        fields: Mapping[str, Any],
        *,
        frames: Sequence[bytes] = (),
        progress: Progress | None = None,
    ) -> Answer:
        """Ask in the name of `caller`, with the limits, roles and audit of every door.

        Whoever cancels this has gone away: the call is ended as when a client's connection ends.

        Args:
            caller: who asks; the door in front of this has made sure of it.
            kind: the verb.
            fields: its fields, as JSON has them.
            frames: raw bytes (`artifact.put`), each of at most 1 MiB.
            progress: gets as keywords what comes ahead of the answer; None: nobody wants it.

        Raises:
            NotAllowedError: the caller's role is too low.
            FarmError: what the verb reports, or the request is none.
        """
        request = Request(secrets.token_hex(8), kind, fields, tuple(frames))
        request = decode_request(encode_request(request))  # nothing gets in here that the job door would refuse

        async def send(reply: Reply) -> None:
            if progress is not None:
                await progress(**reply.fields)

        call = Call(request, caller.peer, send)
        work = asyncio.ensure_future(self.serve(call, caller))
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            call.gone.set()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
        return work.result()

    async def serve(self, call: Call, caller: Caller) -> Answer:
        """Check the role, have the verb answered, and write down what it changed.

        Raises:
            UnknownKindError: there is no such verb.
            NotAllowedError: the caller's role is too low.
            FarmError: what the verb reports.
        """
        kind = call.request.kind
        registered = self._handlers.get(kind)
        if registered is None:
            await self.tell(caller, UNKNOWN, "", UnknownKindError.code)
            raise UnknownKindError(
                f"the daemon does not know {kind!r}", hint="client and daemon must be the same farm release"
            )
        about = subject_of(call.request.fields)
        if caller.role < registered.role:
            await self.tell(caller, kind, about, NotAllowedError.code)
            raise NotAllowedError(
                f"{kind} needs the role {registered.role.word}; {caller.user} is {caller.role.word}",
                hint=_how_to_become(registered.role, caller),
            )
        changes = registered.role > Role.VIEWER and kind not in ONLY_LOOK
        try:
            answer = await registered.handler(ControlCall(call, caller))
        except asyncio.CancelledError:
            if changes and self._audit is not None:
                self._audit.tell_later(caller, kind, about, CallerGoneError.code)
            raise
        except Exception as error:
            if changes or isinstance(error, NotAllowedError):
                await self.tell(caller, kind, about, error.code if isinstance(error, FarmError) else "bug")
            raise
        whole = answer if isinstance(answer, Answer) else Answer(answer)
        if changes and not (kind == "artifact.put" and not whole.fields.get("complete")):  # a piece changes nothing
            await self.tell(caller, kind, about or subject_of(whole.fields), OK)
        return whole

    @property
    def calls(self) -> Mapping[str, int]:
        """Calls that change something or were refused, by outcome: ok, refused, failed. The same mapping each time."""
        return {} if self._audit is None else self._audit.told

    async def tell(self, caller: Caller, kind: str, about: str, outcome: str) -> None:
        """Write down what was done without a verb: somebody signed in."""
        if self._audit is not None:
            await self._audit.tell(caller, kind, about, outcome)

    async def _answer(self, call: Call) -> Answer:
        peer = call.peer
        if isinstance(peer, Peer):
            person = await self._who_is(peer.uid)
            return await self.serve(call, Caller(person.user, person.role, peer.origin, peer))
        assert isinstance(peer, KeyPeer)
        account = None if self.accounts is None else self.accounts.named(peer.account)
        if account is None:
            raise _revoked(peer.account)
        return await self.serve(call, Caller(account.name, account.role, peer.origin, peer))

    def _put_out(self, name: str) -> None:
        """An account was revoked: what it has under way ends, and so do its connections, once they have heard it."""
        if self._remote is not None:
            leaving = self._remote.put_out(name, _revoked(name))
            asyncio.get_running_loop().call_later(LAST_WORDS_S, self._remote.cut, leaving)

    async def _ping(self, call: ControlCall) -> Mapping[str, Any]:
        return {"user": call.caller.user, "role": call.caller.role.word}

    async def _put(self, call: ControlCall) -> Mapping[str, Any]:
        return await put_artifact(self._artifacts, call.request, call.caller.user)

    async def _get(self, call: ControlCall) -> Answer:
        return await get_artifact(self._artifacts, call.request)


async def put_artifact(artifacts: ArtifactFolder, request: Request, sender: str) -> Mapping[str, Any]:
    """The verb `artifact.put` {sha256, offset, total_bytes} + one raw frame -> {size_bytes, complete}."""
    stored = await artifacts.put(
        text_field(request, "sha256"),
        number_field(request, "offset"),
        request.frames[0] if request.frames else b"",
        number_field(request, "total_bytes"),
        sender,
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


def _revoked(name: str) -> NotAllowedError:
    return NotAllowedError(f"the key of {name} was revoked", hint="ask an operator for another")


def _how_to_become(role: Role, caller: Caller) -> str:
    if not isinstance(caller.peer, Peer):
        return f"have an operator make you an account of that role: farm auth new NAME --role {role.word}"
    if role is Role.OPERATOR:
        return "operators are root and the user the daemon runs as: sudo -u farm farm ..."
    return "have an operator add you to the group farm: sudo usermod -aG farm USER"
