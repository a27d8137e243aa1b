"""A phone in a script's hands: what it needs to know, for as long as a `with` block lasts."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from farm.client.door import Door, OnNotice
from farm.client.streams import watched, with_idle
from farm.client.waiting import Reasons
from farm.core.durations import format_duration
from farm.core.errors import ProtocolError, UserError

GRANTED = "granted"  # step of job.progress when the phone is the user's
EXPIRING = "lease.expiring"
LOOK_S = 2.0  # of silence: then it is looked whether the grant was missed, and why it waits
NOT_HELD = "lease_not_ready"  # code of the error when nobody has such a lease


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPhone:
    """One phone under a personal lease."""

    job: str  # id of the job that holds it
    lease: str
    device: str
    serial: str
    tvm_host: str  # tvm.rpc.connect(tvm_host, tvm_port, key=tvm_key); one session at a time
    tvm_port: int
    tvm_key: str = field(repr=False)
    adb_port: int  # ANDROID_ADB_SERVER_PORT: shows only this phone
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncLease(HeldPhone):
    """A phone held by an `AsyncClient`."""

    door: Door = field(repr=False)

    @classmethod
    async def of(cls, door: Door, name: str) -> Self:
        """A lease by its id, its job's, or its device.

        Raises:
            UserError: nobody holds a phone by that name (yet, or any more): its code is NOT_HELD.
            ProtocolError: the daemon tells of it in another form.
        """
        facts = await door.call("lease.show", lease=name)
        try:
            return cls(
                job=facts["job"],
                lease=facts["lease"],
                device=facts["device"],
                serial=facts["serial"],
                tvm_host=facts["tvm_host"],
                tvm_port=int(facts["tvm_port"]),
                tvm_key=facts["tvm_key"],
                adb_port=int(facts["adb_port"]),
                expires_at=datetime.fromisoformat(facts["expires_at"]),
                door=door,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                "the daemon told of a lease in a form this version does not know",
                hint="client and daemon must be the same farm release",
                evidence=f"{type(error).__name__}: {error}",
            ) from error

    async def extend(self, seconds: float) -> datetime:
        """Keep it `seconds` longer; returns when it ends now. Asked over a restart of the daemon, it may count twice.

        Raises:
            FarmError: it has ended, is another's next (a reservation), or would be longer than allowed.
        """
        answer = await self.door.call("lease.extend", lease=self.lease, seconds=seconds)
        return datetime.fromisoformat(answer["expires_at"])

    async def ended(self) -> None:
        """Return when it is over, whichever way. That it soon will be is told to the client's `on_notice`."""
        async with aclosing(watched(self.door, (self.job,), 0)) as told:
            async for each in told:
                if not isinstance(each, tuple) and each.kind == EXPIRING:
                    left_s = (datetime.fromisoformat(str(each.data["expires_at"])) - datetime.now(UTC)).total_seconds()
                    if left_s > 0:  # else it was extended since
                        left = format_duration(left_s)
                        self.door.on_notice(f"the lease on {self.device} ends in {left}, unless it is extended")

    async def release(self) -> None:
        """Give it back, if it has not ended already; it is cleaned for the next one. Leaving `with` does it."""
        try:
            await self.door.call("lease.release", lease=self.lease)
        except UserError as error:
            if error.code != NOT_HELD:
                raise
            # A daemon just started may not have resumed it yet. A job that has ended stays as it is.
            await self.door.call("job.cancel", job=self.job)


async def granted(door: Door, job: str, on_wait: OnNotice | None = None) -> AsyncLease | None:
    """The lease of a job as soon as there is one; None when the job ended without.

    `on_wait` hears why there is none yet, when that is news.
    """
    reasons = Reasons()
    async with aclosing(with_idle(watched(door, (job,), 0, attended=True), LOOK_S)) as told:
        async for each in told:
            if isinstance(each, tuple):
                break
            # Progress is not kept: over a restart it may be missed, so silence is a reason to look too.
            if each is None or (each.kind == "job.progress" and each.data.get("step") == GRANTED):
                try:
                    return await AsyncLease.of(door, job)
                except UserError as error:
                    if error.code != NOT_HELD:
                        raise
            if each is None and on_wait is not None:
                waits = (await door.call("job.show", job=job))["job"]["waits"]
                if reasons.is_news(job, waits):
                    on_wait(waits)
    return None
