"""A person's or a script's lease: a TVM key of their own and an adb server that shows only their phone; its verbs.

The lease lasts until its time is over, it is given back, or it is taken away. What a daemon after this one needs is in
the attempt's facts: the ports and the key's hash, never a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from farm.adb.errors import AdbPortTaken
from farm.adb.lease_proxy.proxy import LeasedAdb
from farm.adb.lease_proxy.tunnels import Admits
from farm.adb.tunnels import Tunnel
from farm.common.errors import FarmError, NotAllowedError, UserError
from farm.common.limits import MAX_LEASE_S
from farm.common.selector import nearest
from farm.common.tasks import at_most, end_tasks
from farm.common.verbs import verb
from farm.control.callers import Caller, Role
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup
from farm.jobs.executor import AttemptContext, Executor
from farm.kinds.execution import ExecutorParts
from farm.kinds.lease import LeaseSpec
from farm.leasing.model import view_when
from farm.leasing.sessions import digest
from farm.model.device import Life
from farm.model.requests import TIME_OVER, Lease, NoSuchLeaseError
from farm.store.database import run_to_completion

WARNED_BEFORE_S = 60.0  # lease.expiring is published so long before the end: time to extend, or to save things
CLOSE_LIMIT_S = 15.0  # the phone may be gone; streams are cut at once, its adbd forgets reverses with the link
GRANTED = "granted"  # step of job.progress when the phone is the user's
FACTS_VERSION = 1


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A lease as stored for the next daemon."""

    version: int
    device: str
    serial: str
    tvm_host: str
    tvm_port: int
    adb_port: int
    expires_at: datetime
    key_sha256: tuple[str, ...]
    tunnels: tuple[Tunnel, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "expires_at": self.expires_at.isoformat()}


_FACTS: TypeAdapter[LeaseFacts] = TypeAdapter(LeaseFacts)


@dataclass(slots=True, eq=False)
class _Current:
    """One current lease."""

    context: AttemptContext
    adb: LeasedAdb
    facts: LeaseFacts
    ends_at: float  # monotonic seconds
    key: str = ""  # "" after a restart, until its holder asks for a new one
    released: str = ""  # why it ends before its time
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def lease(self) -> Lease:
        return self.context.lease


class LeaseExecutor(Executor):
    """Runs jobs of kind `lease`, and carries out the orders of their holders."""

    def __init__(self, parts: ExecutorParts) -> None:
        """All on one event loop. The monotonic clock decides; leasing's is shown and kept."""
        self._parts = parts
        self._leases = parts.leasing
        self._phones = parts.fleet
        self.wall = parts.leasing.wall
        self._current: dict[str, _Current] = {}  # by lease id
        self.adb_used: Callable[[Lease, str, bool], None] = lambda *_: None  # for the audit log

    # -- an attempt --

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """Hand the phone over and wait for the end of its lease."""
        spec, lease, view = context.spec, context.lease, context.view
        assert isinstance(spec, LeaseSpec)
        await self._phones.note_before_lease(lease.device)
        key = self._leases.new_match_key(lease.id, single_use=False)
        expires_at = self._leases.expires_at(lease.id) or self.wall() + timedelta(seconds=spec.seconds)
        host, port = self._parts.gate()
        facts = LeaseFacts(FACTS_VERSION, lease.device, view.serial, host, port, 0, expires_at, (digest(key),))
        async with self._opened(context, facts, key) as current:
            return await self._until_over(current)

    async def resume(self, context: AttemptContext) -> Mapping[str, Any]:
        """Continue with a lease of the daemon before this one: same key, same adb port, same end."""
        try:
            facts = _FACTS.validate_python(dict(context.attempt.facts))
        except ValidationError as error:
            raise FarmError("what was kept of this lease cannot be read", evidence=str(error)) from error
        self._phones.still_in_hands(facts.device)
        for sha256 in facts.key_sha256:
            self._leases.adopt_match_key(context.lease.id, sha256)
        host, port = self._parts.gate()
        async with self._opened(context, replace(facts, tvm_host=host, tvm_port=port), "") as current:
            tunnels = asyncio.create_task(self._remake_tunnels(current), name=f"tunnels of {context.lease.id}")
            try:
                return await self._until_over(current)
            finally:
                await end_tasks(tunnels)

    # -- what holders and operators want --

    async def show(self, name: str) -> dict[str, Any]:
        """The facts that the holder of a lease needs to use it, its key included.

        After a restart of the daemon the holder's key is valid, but only its hash is known: then this is a further key.

        Args:
            name: a lease's id, its job's, or its device.
        """
        current = self._find(name)
        async with current.writing:
            if not current.key:
                key = self._leases.new_match_key(current.lease.id, single_use=False)
                current.facts = replace(current.facts, key_sha256=(*current.facts.key_sha256, digest(key)))
                await self._save(current)
                current.key = key
        wanted, user = current.context.yield_wanted(), current.context.job.user
        return {**self._facts_of(current), "user": user, "tvm_key": current.key, "yield_wanted": wanted}

    def has(self, name: str) -> bool:
        """Whether a lease of that name is held here."""
        with contextlib.suppress(NoSuchLeaseError):
            return bool(self._find(name))
        return False

    def adb_of(self, name: str) -> LeasedAdb:
        """The adb server of a lease."""
        return self._find(name).adb

    @run_to_completion
    async def extend(self, name: str, seconds: float) -> datetime:
        """Let a lease last `seconds` longer; returns its new end, once that is kept."""
        current = self._find(name)
        async with current.writing:
            now = time.monotonic()
            left_s = current.ends_at + seconds - now
            whole_s = left_s + now - current.lease.granted_at
            if whole_s > MAX_LEASE_S:
                raise UserError(
                    f"a lease lasts at most {MAX_LEASE_S / 86400:g} days in all",
                    hint="release it and acquire another, so that others get their turn",
                )
            expires_at = await self._leases.extend(current.lease.id, left_s)
            current.ends_at = time.monotonic() + left_s
            current.facts = replace(current.facts, expires_at=expires_at)
            await self._save(current)
            current.changed.set()
            return expires_at

    def release(self, name: str, reason: str) -> str:
        """Give a phone back before its time; returns the job's id. Its job is then done."""
        current = self._find(name)
        current.released = current.released or reason
        current.changed.set()
        return current.context.job.id

    def holder(self, name: str) -> str:
        """The user who holds the lease."""
        return self._find(name).context.job.user

    # -- below --

    def _find(self, name: str) -> _Current:
        """A lease by its own id, its job's (their beginning will do), or its device's name."""
        every = tuple(self._current.values())
        for current in every:
            if name in (current.lease.id, current.context.job.id, current.lease.device):
                return current
        found = [one for one in every if name and name in (one.lease.id[: len(name)], one.context.job.id[: len(name)])]
        if len(found) == 1:
            return found[0]
        close = nearest(name, [held for each in every for held in (each.lease.id, each.lease.device)])
        hint = f"did you mean {close[0]}?" if close and not found else "`farm lease list` shows who holds what"
        what = f"{len(found)} leases begin with {name!r}" if found else f"there is no lease {name!r} now"
        raise NoSuchLeaseError(what, hint=hint)

    @contextlib.asynccontextmanager
    async def _opened(self, context: AttemptContext, facts: LeaseFacts, key: str) -> AsyncIterator[_Current]:
        """The leased adb, open; the facts kept, the holder informed. All of it ends with the body."""
        adb = LeasedAdb(
            self._parts.client,
            facts.serial,
            self.admits(context.job.user),
            barred_ports=self._parts.own_ports,
            server_port=lambda: self._phones.server_port(facts.device),
            changed=lambda: self._tunnels_changed(context.lease.id),
            used=lambda service, allowed: self.adb_used(context.lease, service, allowed),
        )
        left_s = (facts.expires_at - self.wall()).total_seconds()
        current = _Current(context, adb, facts, time.monotonic() + left_s, key)
        try:
            port = await self._listen(current)
            current.facts = replace(facts, adb_port=port)
            self._current[context.lease.id] = current
            await self._save(current)
            context.progress(GRANTED, **self._facts_of(current))
            context.log(f"{facts.device} is leased until {facts.expires_at:%Y-%m-%d %H:%M:%S %Z}, adb port {port}")
            yield current
        finally:
            self._current.pop(context.lease.id, None)
            async with at_most(CLOSE_LIMIT_S):
                await adb.close()

    async def _listen(self, current: _Current) -> int:
        facts = current.facts
        try:
            return await current.adb.open(facts.adb_port, facts.tunnels)
        except AdbPortTaken as error:
            port = await current.adb.open(0, facts.tunnels)
            current.context.log(f"the lease's adb has moved from port {facts.adb_port} to {port}: {error}", "warning")
            return port

    async def _until_over(self, current: _Current) -> Mapping[str, Any]:
        """Wait for the end of its time or for its release; the end may be moved meanwhile."""
        warned = False
        while not current.released and (left_s := current.ends_at - time.monotonic()) > 0:
            warned = warned and left_s <= WARNED_BEFORE_S
            if left_s <= WARNED_BEFORE_S and not warned:
                warned = True
                self._warn(current, left_s)
            current.changed.clear()
            async with at_most(left_s if warned else left_s - WARNED_BEFORE_S):
                await current.changed.wait()
        held_s = time.monotonic() - current.lease.granted_at
        return {
            "device": current.lease.device,
            "ended": current.released or TIME_OVER,
            "held_s": round(held_s, 3),
        }

    def _warn(self, current: _Current, left_s: float) -> None:
        self._parts.events.publish(
            "lease.expiring",
            current.lease.id,
            device=current.lease.device,
            user=current.context.job.user,
            job=current.context.job.id,
            expires_at=current.facts.expires_at.isoformat(),
            left_s=round(left_s, 1),
        )

    def _facts_of(self, current: _Current) -> dict[str, Any]:
        """The facts that a holder needs, without the key: events are public, and logged."""
        facts = current.facts
        return {
            "lease": current.lease.id,
            "job": current.context.job.id,
            "device": facts.device,
            "serial": facts.serial,
            "tvm_host": facts.tvm_host,
            "tvm_port": facts.tvm_port,
            "adb_port": facts.adb_port,
            "expires_at": facts.expires_at.isoformat(),
        }

    async def _tunnels_changed(self, lease_id: str) -> None:
        current = self._current.get(lease_id)
        if current is not None:
            async with current.writing:
                current.facts = replace(current.facts, tunnels=current.adb.tunnels)
                await self._save(current)

    async def _save(self, current: _Current) -> None:
        await current.context.save_facts(current.facts.to_wire())

    async def _remake_tunnels(self, current: _Current) -> None:
        """Reverses are the adb server's: when it ended too they are made again, as soon as the phone is there."""
        with view_when(self._phones, current.lease.device, lambda life: life is Life.READY) as ready:
            await ready  # the lease's own end, or its loss, ends this
        for problem in await current.adb.remake_reverses():
            current.context.log(problem, "warning")

    def admits(self, user: str) -> Admits:
        """A check whether a loopback connection is of this user: the reason why not; "": it is."""

        async def admits(connection: socket.socket) -> str:
            try:
                return "" if await self._parts.user_of(connection) in ("", user) else "another user's lease"
            except NotAllowedError as error:
                return error.message

        return admits


class PersonalLeaseVerbs(VerbGroup):
    """Each is for the holder and for operators."""

    def __init__(self, leases: LeaseExecutor) -> None:
        self._leases = leases

    @verb("lease.show", Role.USER, subject="lease", changes=False)
    async def show(self, call: ControlCall, lease: str) -> Mapping[str, Any]:
        """The facts needed to use the phone, the key included."""
        self._may(call.caller, lease)
        return {**await self._leases.show(lease), "now": self._leases.wall().isoformat()}

    @verb("lease.extend", Role.USER, subject="lease", order=("seconds",))
    async def extend(
        self, call: ControlCall, lease: str, seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ) -> Mapping[str, Any]:
        """More time."""
        self._may(call.caller, lease)
        expires_at = await self._leases.extend(lease, seconds)
        return {"lease": lease, "expires_at": expires_at.isoformat(), "now": self._leases.wall().isoformat()}

    @verb("lease.release", Role.USER, subject="lease")
    async def release(self, call: ControlCall, lease: str) -> Mapping[str, Any]:
        """The phone back; answers with the job, which is then done."""
        holder = self._may(call.caller, lease)
        reason = "released" if holder == call.caller.user else f"released by {call.caller.user}"
        return {"lease": lease, "job": self._leases.release(lease, reason)}

    def _may(self, caller: Caller, lease: str) -> str:
        """The lease's holder, if `caller` may act for them."""
        holder = self._leases.holder(lease)
        if caller.role < Role.OPERATOR and caller.user != holder:
            raise NotAllowedError(f"lease {lease} is {holder}'s", hint="its holder or an operator may do that")
        return holder
