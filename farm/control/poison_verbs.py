"""Verbs about artifacts that killed what ran them.

Everybody may see them, who holds a phone may tell of what killed there, operators let one be run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import Nothing, Sha256, form, read_fields
from farm.control.server import ControlCall, ControlServer
from farm.core.errors import NotAllowedError
from farm.jobs.poison import REFUSED_AFTER, PoisonLedger
from farm.leasing import Holder

MAX_ARTIFACTS = 10_000  # asked about at once


@form
class OneArtifact:
    """`poison.forget`: an artifact by its whole hash."""

    artifact: Sha256


@form
class Look:
    """`poison.look`: artifacts by their whole hashes."""

    artifacts: Annotated[tuple[Sha256, ...], Field(max_length=MAX_ARTIFACTS)]


@form
class Tell:
    """`poison.tell`: an artifact killed what ran it on a phone that the caller holds, so many times."""

    artifact: Sha256
    device: str
    what: Annotated[str, Field(max_length=1000)]
    kills: Annotated[int, Field(ge=1, le=REFUSED_AFTER)] = 1


class PoisonVerbs:
    """Verbs about poison."""

    def __init__(self, ledger: PoisonLedger, holders: Callable[[], Iterable[Holder]]) -> None:
        """`holders`: who has which phone now."""
        self._ledger = ledger
        self._holders = holders

    def register(self, server: ControlServer) -> None:
        """Add every verb to the door."""
        server.register("poison.list", self.list, Role.VIEWER)
        server.register("poison.look", self.look, Role.VIEWER)
        server.register("poison.tell", self.tell, Role.USER)
        server.register("poison.forget", self.forget, Role.OPERATOR)

    async def list(self, call: ControlCall) -> Mapping[str, Any]:
        """What has killed, the latest first."""
        read_fields(call, Nothing)
        return await asyncio.to_thread(self._ledger.rows)

    async def look(self, call: ControlCall) -> Mapping[str, Any]:
        """Which of these nobody runs any more."""
        artifacts = read_fields(call, Look).artifacts
        return {"poisoned": sorted(await asyncio.to_thread(self._ledger.refused, artifacts))}

    async def tell(self, call: ControlCall) -> Mapping[str, Any]:
        """Have it remembered, under the name of the caller."""
        told, user = read_fields(call, Tell), call.caller.user
        held = (each.lease for each in self._holders() if each.lease.device == told.device)
        lease = next((lease for lease in held if lease.request.user == user), None)
        if lease is None:
            raise NotAllowedError(
                f"{told.device} is not yours now", hint="who holds a phone may tell of what killed there"
            )
        await self._ledger.tell(told.artifact, told.device, told.what, told.kills, user=user, job=lease.request.job)
        return {"artifact": told.artifact}

    async def forget(self, call: ControlCall) -> Mapping[str, Any]:
        """Let an artifact be run again."""
        artifact = read_fields(call, OneArtifact).artifact
        await self._ledger.forget(artifact, call.caller.user)
        return {"artifact": artifact}
