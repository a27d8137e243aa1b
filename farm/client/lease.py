"""A phone in a script's hands: what it needs to know, for as long as a `with` block lasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from farm.client.door import Door
from farm.core.errors import ProtocolError

GRANTED = "granted"  # step of the job.progress event that carries what the holder needs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPhone:
    """One phone under a personal lease."""

    job: str  # id of the job that holds it
    lease: str
    device: str
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
    def granted(cls, door: Door, job: str, facts: Mapping[str, Any]) -> Self:
        """The lease that the daemon told of.

        Raises:
            ProtocolError: something is missing.
        """
        try:
            return cls(
                job=job,
                lease=facts["lease"],
                device=facts["device"],
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
        """Keep it `seconds` longer; returns when it ends now.

        Raises:
            FarmError: it has ended, is another's next (a reservation), or would be longer than allowed.
        """
        answer = await self.door.call("lease.extend", lease=self.lease, seconds=seconds)
        return datetime.fromisoformat(answer["expires_at"])

    async def release(self) -> None:
        """Give it back; it is cleaned for the next one. Leaving the `with` block does it."""
        await self.door.call("lease.release", lease=self.lease)
