"""Verbs of those who hold a phone themselves: what is needed to use it, more time, giving it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Caller, Role
from farm.control.forms import Verbs, form, verb
from farm.control.server import ControlCall
from farm.core.errors import NotAllowedError
from farm.jobs.lease import LeaseExecutor


@form
class OneLease:
    """`lease.show` and `lease.release`: a lease's id, its job's, or its device."""

    lease: str


@form
class Extend:
    """`lease.extend`: so many seconds more."""

    lease: str
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PersonalLeaseVerbs(Verbs):
    """Each is for the holder and for operators."""

    def __init__(self, leases: LeaseExecutor) -> None:
        self._leases = leases

    @verb("lease.show", Role.USER)
    async def show(self, asked: OneLease, call: ControlCall) -> Mapping[str, Any]:
        """What is needed to use the phone, the key included."""
        self._may(call.caller, asked.lease)
        return await self._leases.show(asked.lease)

    @verb("lease.extend", Role.USER)
    async def extend(self, asked: Extend, call: ControlCall) -> Mapping[str, Any]:
        """More time."""
        self._may(call.caller, asked.lease)
        expires_at = await self._leases.extend(asked.lease, asked.seconds)
        return {"lease": asked.lease, "expires_at": expires_at.isoformat()}

    @verb("lease.release", Role.USER)
    async def release(self, asked: OneLease, call: ControlCall) -> Mapping[str, Any]:
        """The phone back; answers with the job, which is then done."""
        holder = self._may(call.caller, asked.lease)
        reason = "released" if holder == call.caller.user else f"released by {call.caller.user}"
        return {"lease": asked.lease, "job": self._leases.release(asked.lease, reason)}

    def _may(self, caller: Caller, lease: str) -> str:
        """The lease's holder, if `caller` may act for them.

        Raises:
            LeaseUnusableError: nobody has such a lease now.
            NotAllowedError: it is somebody else's.
        """
        holder = self._leases.holder(lease)
        if caller.role < Role.OPERATOR and caller.user != holder:
            raise NotAllowedError(f"lease {lease} is {holder}'s", hint="its holder or an operator may do that")
        return holder
