"""The servers of both control sockets: requests of people, each with the role it needs, and of workers.

One socket serves all workers. Each is admitted by a token of its attempt and fence, and may only speak for its own
attempt. When the attempt has ended, so has its token: a late report is refused as stale.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.common.errors import Code, FarmError, NotAllowedError, ProtocolError, UserError
from farm.common.tasks import end_tasks
from farm.common.verbs import Count, Verb, arguments, verb, verbs_of
from farm.control.artifacts import ArtifactFolder
from farm.control.audit import OK, AuditTrail, about_call
from farm.control.callers import Accounts, Caller, KeyPeer, LocalPeer, LocalUsers, Operators, Principal, Role
from farm.control.limits import CallQuota, StreamTurns
from farm.control.listeners import CurveListener, UnixListener
from farm.control.messages import Reply, Request, decode_request, encode_request
from farm.control.router import Answer, Call, CallerGoneError, Router, Sender
from farm.jobs.attempt import LiveAttempt

logger = logging.getLogger(__name__)

REVOKED_LINGER_S = 0.2  # for the answers that say so, before a revoked key's connections are cut
UNKNOWN = "?"  # an unknown kind in the audit log: its name is the caller's text
TOKEN_BYTES = 24  # 192 random bits

Progress = Callable[..., Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCall(Call):
    """A request with its caller."""

    caller: Caller

    @property
    def fields(self) -> Mapping[str, Any]:
        """The request's own fields, unchecked."""
        return self.request.fields


Handler = Callable[[ControlCall], Awaitable[Mapping[str, Any] | Answer]]
# Lets another host of the lab answer a request about its phone or itself; None: this host is to answer.
ForwardRequest = Callable[[Request, str, Caller, Sender], Awaitable[Answer | None]]


def handler(method: Callable[..., Any]) -> Handler:
    """A verb's method as the control channel calls it; raises FieldError for a wrong field."""

    async def handle(call: ControlCall) -> Mapping[str, Any] | Answer:
        answer: Mapping[str, Any] | Answer = await method(**arguments(method, call.request.kind, call.fields, call))
        return answer

    return handle


class ArtifactVerbs:
    """Verbs that move artifacts, of people and of workers."""

    def __init__(self, artifacts: ArtifactFolder) -> None:
        self._artifacts = artifacts

    @verb("artifact.put", Role.USER, subject="sha256", frame=True)
    async def put(self, call: Call, sha256: str, offset: Count, total_bytes: Count) -> Mapping[str, Any]:
        """A piece of a file, which goes into the farm."""
        sender = call.caller.user if isinstance(call, ControlCall) else f"attempt {call.request.attempt}"
        stored = await self._artifacts.put(sha256, offset, b"".join(call.request.frames), total_bytes, sender)
        return {"size_bytes": stored.size_bytes, "complete": stored.complete}

    @verb("artifact.get", Role.VIEWER, subject="sha256")
    async def get(self, sha256: str, offset: Count) -> Answer:
        """A piece of a file of the farm."""
        data, total_bytes = await self._artifacts.get(sha256, offset)
        return Answer({"total_bytes": total_bytes}, (data,))


class ControlServer:
    """Answers every control socket. Build it, `register` handlers, `start`; `artifact.put` and `.get` come with it.

    Requests come from a unix socket, from TCP with keys, and by `ask` from the web page.
    """

    def __init__(
        self,
        path: Path,
        *,
        artifacts: ArtifactFolder,
        principal_of: Callable[[int], Awaitable[Principal]] | None = None,
        gid: int | None = None,
        audit: AuditTrail | None = None,
        accounts: Accounts | None = None,
        remote: CurveListener | None = None,
    ) -> None:
        """Prepare the server with its sockets.

        Args:
            path: of the unix socket.
            artifacts: what clients put and get.
            principal_of: name and role by uid.
            gid: the group that may connect besides the daemon's own user.
            audit: None: nothing is written.
            accounts: of remote users; needed with `remote`.
            remote: the port for them; None: there is none.
        """
        self._audit = audit
        self.accounts = accounts
        self._streams: set[str] = set()  # verbs that are streams
        quota = CallQuota(stream_kinds=self._streams, operators=Operators(accounts))
        self._turns = StreamTurns()
        self._router = Router(UnixListener(path, gid), self._answer, quota=quota)
        self._remote = None if remote is None else Router(remote, self._answer, quota=quota)
        if accounts is not None:
            accounts.on_revoked(self._end_calls_of)
        self._principal_of = principal_of or LocalUsers().principal_of
        self._handlers: dict[str, tuple[Verb, Handler]] = {}
        self.forward: ForwardRequest | None = None  # None: there is no other host
        for owner in (self, ArtifactVerbs(artifacts)):
            for declared, method in verbs_of(owner).items():
                self.register(declared, handler(method))

    @property
    def endpoint(self) -> str:
        """The ZeroMQ address clients connect to."""
        return self._router.endpoint

    def register(self, declared: Verb, handler: Handler) -> None:
        """Answer requests of a verb with `handler`."""
        if declared.kind in self._handlers:
            raise ValueError(f"two handlers for {declared.kind}")
        self._handlers[declared.kind] = declared, handler
        if declared.stream:
            self._streams.add(declared.kind)

    async def start(self) -> None:
        """Open the sockets.

        Raises:
            ControlSocketError: a socket cannot be opened.
        """
        await self._router.start()
        if self._remote is not None:
            try:
                await self._remote.start()
                logger.info("remote users connect to %s", self._remote.endpoint)
            except BaseException:
                await self._router.stop()
                raise

    async def stop(self) -> None:
        """End running calls and close the sockets."""
        if self._remote is not None:
            await self._remote.stop()
        await self._router.stop()

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """Tasks that run while the sockets are open."""
        return [task for router in (self._router, self._remote) if router is not None for task in router.tasks]

    def problems(self) -> list[str]:
        """Problems of the sockets now."""
        routers = (self._router, self._remote)
        return [router.problem for router in routers if router is not None and router.problem]

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """Every verb by its kind."""
        return {kind: declared for kind, (declared, _) in self._handlers.items()}

    async def ask(
        self,
        caller: Caller,
        kind: str,
        fields: Mapping[str, Any],
        *,
        frames: Sequence[bytes] = (),
        progress: Progress | None = None,
    ) -> Answer:
        """Ask in the name of `caller`, with the limits, roles and audit of every control socket.

        Calls begin one by one, users in turn: readers of pages hold the loop no longer than one. Cancelling this ends
        the call as the end of a client's connection does.

        Args:
            caller: the caller, as the web page has authenticated it.
            kind: the verb.
            fields: its fields, as JSON has them.
            frames: raw bytes (`artifact.put`), each of at most 1 MiB.
            progress: gets as keywords what comes ahead of the answer; None: it is dropped.

        Raises:
            NotAllowedError: the caller's role is too low.
            FarmError: what the verb reports, or the request is none.
        """
        request = Request(secrets.token_hex(8), kind, fields, tuple(frames))
        request = decode_request(encode_request(request))  # with the same bounds as a message of the unix socket

        async def send(reply: Reply) -> None:
            if progress is not None:
                await progress(**reply.fields)

        await self._turns.wait(caller.user)
        call = Call(request, caller.peer, send)
        work = asyncio.ensure_future(self.serve(call, caller))
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            call.caller_gone.set()
            await end_tasks(work)
            raise
        return work.result()

    async def serve(self, call: Call, caller: Caller) -> Answer:
        """Check the role, have the verb answered, and write down its changes.

        Raises:
            UserError: there is no such verb.
            NotAllowedError: the caller's role is too low.
            FarmError: what the verb reports.
        """
        kind = call.request.kind
        if kind not in self._handlers:
            await self.audit(caller, UNKNOWN, "", Code.NO_SUCH_KIND)
            raise UserError(
                f"the daemon does not know {kind!r}",
                Code.NO_SUCH_KIND,
                hint="client and daemon must be the same farm release",
            )
        declared, handler = self._handlers[kind]
        role, fields = Role(declared.role), call.request.fields
        about = about_call(declared, fields)
        if caller.role < role:
            await self.audit(caller, kind, about, NotAllowedError.code)
            raise NotAllowedError(
                f"{kind} needs the role {role.word}; {caller.user} is {caller.role.word}",
                hint=_how_to_become(role, caller),
            )
        changes = declared.changes and role > Role.VIEWER
        send = self._in_turn(call.send, caller) if declared.stream else call.send
        try:
            _check_frames(call.request, declared)
            answer: Mapping[str, Any] | Answer | None = None
            if self.forward is not None and (subject := declared.host_subject(fields)):
                answer = await self.forward(call.request, subject, caller, send)
            if answer is None:
                answer = await handler(ControlCall(call.request, call.peer, send, call.caller_gone, caller=caller))
        except asyncio.CancelledError:
            if changes and self._audit is not None:
                self._audit.record_later(caller, kind, about, CallerGoneError.code)
            raise
        except Exception as error:
            if changes or isinstance(error, NotAllowedError):
                await self.audit(caller, kind, about, error.code if isinstance(error, FarmError) else "bug")
            raise
        whole = answer if isinstance(answer, Answer) else Answer(answer)
        if changes and whole.fields.get("complete", True):  # a piece of an artifact changes nothing
            await self.audit(caller, kind, about_call(declared, fields, whole.fields), OK)
        return whole

    def _in_turn(self, send: Sender, caller: Caller) -> Sender:
        async def send_in_turn(reply: Reply) -> None:
            await self._turns.wait(caller.user)
            await send(reply)

        return send_in_turn

    @property
    def calls(self) -> Mapping[str, int]:
        """Calls that change something or were refused, by outcome: ok, refused, failed. The same mapping each time."""
        return {} if self._audit is None else self._audit.outcomes

    async def audit(self, caller: Caller, kind: str, about: str, outcome: str) -> None:
        """Write a row of the audit log, also of an action without a verb, such as a sign-in."""
        if self._audit is not None:
            await self._audit.record(caller, kind, about, outcome)

    async def _answer(self, call: Call) -> Answer:
        peer = call.peer
        if isinstance(peer, LocalPeer):
            principal = await self._principal_of(peer.uid)
            return await self.serve(call, Caller(principal.user, principal.role, peer.origin, peer))
        assert isinstance(peer, KeyPeer)
        account = None if self.accounts is None else await self.accounts.by_curve_key(peer.key)
        if account is None or account.user != peer.account:
            anonymous = Caller(peer.account, Role.VIEWER, peer.origin, peer)
            await self.audit(anonymous, UNKNOWN, "", NotAllowedError.code)
            raise _revoked(peer.account)
        return await self.serve(call, Caller(account.user, account.role, peer.origin, peer))

    def _end_calls_of(self, name: str) -> None:
        """An account was revoked: its calls end, and so do its connections, once the answers are sent."""
        if self._remote is not None:
            leaving = self._remote.end_calls_of(name, _revoked(name))
            asyncio.get_running_loop().call_later(REVOKED_LINGER_S, self._remote.cut, leaving)

    @verb("ping", Role.VIEWER)
    async def ping(self, call: ControlCall) -> Mapping[str, Any]:
        """Who the caller is, and with which role."""
        return {"user": call.caller.user, "role": call.caller.role.word}


def _check_frames(request: Request, declared: Verb | None) -> None:
    """Refuse a raw frame that the verb does not read.

    Raises:
        ProtocolError: there is one.
    """
    if request.frames and (declared is None or not declared.frame):
        raise ProtocolError(f"{request.kind} has no raw frame")


def _revoked(name: str) -> NotAllowedError:
    return NotAllowedError(f"the key of {name} was revoked", hint="ask an operator for another")


def _how_to_become(role: Role, caller: Caller) -> str:
    if not isinstance(caller.peer, LocalPeer):
        return f"have an operator make you an account of that role: farm auth new NAME --role {role.word}"
    if role is Role.OPERATOR:
        return "operators are root and the user the daemon runs as: sudo -u farm farm ..."
    return "have an operator add you to the group farm: sudo usermod -aG farm USER"


@dataclass(frozen=True, slots=True)
class _Admitted:
    fence: int
    token: str
    verbs: LiveAttempt


class WorkerServer:
    """Implements farm.jobs.attempt.WorkerListener."""

    def __init__(self, path: Path, artifacts: ArtifactFolder, *, gid: int | None = None) -> None:
        """`gid` is the workers' group when they run as another user."""
        self._path = path
        self._router = Router(UnixListener(path, gid), self._answer)
        self._verbs = {each.kind: (each, method) for each, method in verbs_of(ArtifactVerbs(artifacts)).items()}
        self._admitted: dict[str, _Admitted] = {}

    @property
    def socket_path(self) -> str:
        """The socket workers connect to."""
        return str(self._path)

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """Tasks that run while the socket is open."""
        return self._router.tasks

    async def start(self) -> None:
        """Open the socket.

        Raises:
            ControlSocketError: the socket cannot be opened.
        """
        await self._router.start()

    async def stop(self) -> None:
        """Close the socket."""
        await self._router.stop()

    def admit(self, attempt: str, fence: int, verbs: LiveAttempt) -> str:
        """Let the worker of `attempt` in from now on; returns the token it must show."""
        if attempt in self._admitted:
            raise ValueError(f"attempt {attempt} runs already")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._admitted[attempt] = _Admitted(fence, token, verbs)
        return token

    def dismiss(self, attempt: str) -> None:
        """Refuse this attempt's worker from now on."""
        self._admitted.pop(attempt, None)

    async def _answer(self, call: Call) -> Answer:
        request = call.request
        admitted = self._admitted.get(request.attempt)
        if admitted is None or admitted.fence != request.fence:
            raise FarmError(
                f"attempt {request.attempt or '(none)'} with fence {request.fence} is not running", Code.STALE_REPORT
            )
        if not hmac.compare_digest(admitted.token, request.token):
            raise NotAllowedError(f"that is not the token of attempt {request.attempt}")
        declared, method = self._verbs.get(request.kind, (None, None))
        _check_frames(request, declared)
        if method is None:
            return Answer(await admitted.verbs.handle(request.kind, request.fields))
        await admitted.verbs.handle("heartbeat", {})  # a long transfer is a sign of life
        answer = await method(**arguments(method, request.kind, request.fields, call, strict=True))
        return answer if isinstance(answer, Answer) else Answer(answer)
