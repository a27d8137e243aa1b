"""Control verbs about a phone or host elsewhere: this host sends them there in the caller's name and role.

The service `verb` {user, role, origin} -> {}, then a frame {kind, fields} with a raw frame behind it, and frames back:
{more: fields} ahead of the answer, {ok: fields} with a raw frame behind it, or {error}. Both hosts check the role and
write their audit log. The answering host believes the caller's name and role: all hosts of a lab trust each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from farm.common.errors import (
    Code,
    FarmError,
    HostError,
    HostUnreachableError,
    ProtocolError,
    UserError,
    error_from_wire,
    error_to_wire,
)
from farm.common.frames import SIZE, FrameReader, frame
from farm.common.selector import did_you_mean
from farm.common.tasks import end_tasks
from farm.control.callers import Caller, Role
from farm.control.messages import MAX_FRAME_BYTES, MAX_HEADER_BYTES, Reply, Request, decode_reply, encode_reply
from farm.control.router import Answer, Sender
from farm.control.server import ControlServer
from farm.head.host_rules import AWAY
from farm.lab.leases import CarriedLeases
from farm.lab.link import HostLink, LinkCall
from farm.leasing.lab_rules import MEND_LINK
from farm.leasing.lab_view import LabPicture, LabView

SERVICE = "verb"
READ_BYTES = 1 << 16
REQUEST_LIMIT_S = 10.0  # from the preface to the whole request
HOST = "host"  # the subject of a verb whose request names a host, not a phone or lease that a host has


class HostForwarder:
    """Sends verbs to the host that has their subject, and answers those of other hosts."""

    def __init__(
        self,
        lab: LabView,
        link: HostLink,
        control: ControlServer,
        has: Callable[[str], bool],
        leases: CarriedLeases,
    ) -> None:
        """`has` says whether this host has a phone of that name or serial."""
        self._lab = lab
        self._link = link
        self._control = control
        self._has = has
        self._leases = leases
        control.forward = self.forward
        link.serve(SERVICE, self._serve)

    async def forward(self, request: Request, subject: str, caller: Caller, send: Sender) -> Answer | None:
        """The answer of the host that has the request's subject; None: this host answers the request.

        Raises:
            HostUnreachableError: that host is away.
            FarmError: the error of the verb there.
        """
        if caller.host:  # sent on once: two hosts that take each other for the right one would send it forever
            return None
        of_host = self._control.verbs[request.kind].subject == HOST
        if subject == self._lab.own if of_host else self._has(subject):
            return None
        picture = await self._lab.look()
        host = _known_host(picture, subject) if of_host else picture.host_of(subject) or picture.host_of_lease(subject)
        if not host:
            return None
        view = picture.host(host)
        if view is not None and view.state in AWAY:
            raise HostUnreachableError(
                f"host {host}, which has {subject}, is {view.state}"
                if host != subject
                else f"host {host} is {view.state}",
                hint="see whether its daemon runs and reaches the database; there: farm doctor",
            )
        if view is not None and view.unreached and (why := await self._lab.still_unreached(host)):
            raise HostUnreachableError(why, hint=f"{MEND_LINK}; or ask at {host}")
        answer = await self._ask(host, request, caller, send)
        if request.kind != "lease.show":
            return answer
        return await self._leases.shown_here(host, answer)

    async def _ask(self, host: str, request: Request, caller: Caller, send: Sender) -> Answer:
        asking = {"user": caller.user, "role": caller.role.word, "origin": caller.origin}
        connection = await self._link.dial(host, SERVICE, asking)
        try:
            reader, writer = await connection.streams()
            writer.write(frame({"kind": request.kind, "fields": dict(request.fields)}, b"".join(request.frames)))
            await connection.drain()
            async for fields, payload in _frames(reader):
                if "error" in fields:
                    raise error_from_wire(fields["error"])
                if "more" not in fields:
                    # As a client reads it: fields that an older host does not send are known as missing.
                    answer = encode_reply(Reply(request.id, _object(fields, "ok")))
                    return Answer(decode_reply(answer, request.kind).fields, (payload,) if payload else ())
                await send(Reply(request.id, _object(fields, "more"), more=True))
        except (OSError, ProtocolError) as error:
            raise _broken_off(host, request.kind, str(error)) from error
        finally:
            await connection.close()
        raise _broken_off(host, request.kind, "it closed the connection")

    # --- for other hosts ------------------------------------------------------------------------------------------

    async def _serve(self, call: LinkCall) -> None:
        """The service `verb`."""
        caller = _caller_of(call)
        await call.accept()
        reader, writer = await call.streams()
        frames = _frames(reader)
        async with asyncio.timeout(REQUEST_LIMIT_S):
            request = await anext(frames, None)
        asked, payload = request or ({}, b"")
        if not isinstance(fields := asked.get("fields"), dict):
            raise ProtocolError("no request")

        async def progress(**fields: Any) -> None:
            writer.write(frame({"more": fields}))
            await call.drain()

        raw = (payload,) if payload else ()
        answering = asyncio.ensure_future(
            self._control.ask(caller, str(asked.get("kind")), fields, frames=raw, progress=progress)
        )
        leaving = asyncio.ensure_future(reader.read(1))  # ends when the caller has gone: it sends nothing more
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                writer.write(_reply(answering))
                await call.drain()
        finally:
            await end_tasks(answering, leaving)


def _known_host(picture: LabPicture, name: str) -> str:
    """The name of a host of the lab.

    Raises:
        UserError: there is no such host.
    """
    if picture.host(name) is None:
        hint = did_you_mean(name, (each.name for each in picture.hosts), "farm host list")
        raise UserError(f"there is no host {name!r} in the lab", hint=hint)
    return name


def _caller_of(call: LinkCall) -> Caller:
    fields = call.fields
    try:
        role = Role[str(fields["role"]).upper()]
        return Caller(str(fields["user"]), role, f"{fields['origin']} at host {call.host}", host=call.host)
    except KeyError as error:
        raise ProtocolError(f"host {call.host} does not name the caller: {error}") from error


def _reply(answered: asyncio.Future[Answer]) -> bytes:
    error = answered.exception()
    if error is None:
        answer = answered.result()
        return frame({"ok": dict(answer.fields)}, b"".join(answer.frames))
    if not isinstance(error, FarmError):
        error = FarmError(f"{type(error).__name__}: {error}", hint="this is a bug; that host's log has the trace")
    return frame({"error": error_to_wire(error)})


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise ProtocolError(f"its answer has no object {name!r}")
    return value


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
    """Each message as it comes, until the end of the stream."""
    frames = FrameReader(max_line_bytes=MAX_HEADER_BYTES, max_payload_bytes=MAX_FRAME_BYTES)
    while data := await reader.read(READ_BYTES):
        for fields, payload in frames.feed(data):
            del fields[SIZE]
            yield fields, payload


def _broken_off(host: str, kind: str, why: str) -> HostError:
    return HostError(
        f"the connection to host {host} was lost before it had answered {kind}: {why}",
        Code.HOST_LOST,
        hint=f"{host} may have carried it out: look before you repeat it",
    )
