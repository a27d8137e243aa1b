"""Verbs about artifacts that killed what ran them.

Everybody may see them, who holds a phone may tell of what killed there, operators let one be run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import Sha256, Verbs, form, verb
from farm.control.server import ControlCall
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


class PoisonVerbs(Verbs):
    """Verbs about poison."""

    def __init__(self, ledger: PoisonLedger, holders: Callable[[], Iterable[Holder]]) -> None:
        """`holders`: who has which phone now."""
        self._ledger = ledger
        self._holders = holders

    @verb("poison.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """What has killed, the latest first."""
        return await asyncio.to_thread(self._ledger.rows)

    @verb("poison.look", Role.VIEWER)
    async def look(self, asked: Look, call: ControlCall) -> Mapping[str, Any]:
        """Which of these are not run any more for the caller."""
        return {"poisoned": sorted(await asyncio.to_thread(self._ledger.refused, asked.artifacts, call.caller.user))}

    @verb("poison.tell", Role.USER)
    async def tell(self, told: Tell, call: ControlCall) -> Mapping[str, Any]:
        """Have it remembered, under the name of the caller; an operator's word counts for all."""
        user = call.caller.user
        held = (each.lease for each in self._holders() if each.lease.device == told.device)
        lease = next((lease for lease in held if lease.request.user == user), None)
        if lease is None:
            raise NotAllowedError(
                f"{told.device} is not yours now", hint="who holds a phone may tell of what killed there"
            )
        seen = call.caller.role >= Role.OPERATOR
        await self._ledger.tell(
            told.artifact, told.device, told.what, told.kills, user=user, job=lease.request.job, seen=seen
        )
        return {"artifact": told.artifact}

    @verb("poison.forget", Role.OPERATOR)
    async def forget(self, asked: OneArtifact, call: ControlCall) -> Mapping[str, Any]:
        """Let an artifact be run again."""
        await self._ledger.forget(asked.artifact, call.caller.user)
        return {"artifact": asked.artifact}
