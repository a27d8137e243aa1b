"""A phone in a script's hands: what it needs to know, for as long as a `with` block lasts."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from farm.client.door import Door
from farm.client.streams import watched, with_idle
from farm.core.errors import ProtocolError, UserError

GRANTED = "granted"  # step of job.progress when the phone is the user's
LOOK_S = 2.0
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
    async def of(cls, door: Door, job: str) -> Self | None:
        """The lease of a job; None when nobody holds a phone for it (yet, or any more).

        Raises:
            ProtocolError: the daemon tells of it in another form.
        """
        try:
            facts = await door.call("lease.show", lease=job)
        except UserError as error:
            if error.code == NOT_HELD:
                return None
            raise
        try:
            return cls(
                job=job,
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

    async def release(self) -> None:
        """Give it back, if it has not ended already; it is cleaned for the next one. Leaving `with` does it."""
        try:
            await self.door.call("lease.release", lease=self.lease)
        except UserError as error:
            if error.code != NOT_HELD:
                raise


async def granted(door: Door, job: str) -> AsyncLease | None:
    """The lease of a job as soon as there is one; None when the job ended without."""
    async with aclosing(with_idle(watched(door, (job,), 0), LOOK_S)) as told:
        async for each in told:
            if isinstance(each, tuple):
                break
            # Progress is not kept: over a restart it may be missed, so silence is a reason to look too.
            if each is None or (each.kind == "job.progress" and each.data.get("step") == GRANTED):
                lease = await AsyncLease.of(door, job)
                if lease is not None:
                    return lease
    return None
