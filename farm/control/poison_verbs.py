"""Verbs about artifacts that killed what ran them: everybody may see them, operators let one be run again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from farm.control.server import ControlCall, ControlServer, Role
from farm.control.verbs import STRICT, Nothing, read_fields
from farm.core.field_errors import SHA256_FORM
from farm.jobs.poison import PoisonLedger


@checked(frozen=True, slots=True, config=STRICT)
class OneArtifact:
    """`poison.forget`: an artifact by its whole hash."""

    artifact: Annotated[str, Field(pattern=SHA256_FORM)]


class PoisonVerbs:
    """Verbs about poison."""

    def __init__(self, ledger: PoisonLedger) -> None:
        self._ledger = ledger

    def register(self, server: ControlServer) -> None:
        """Add every verb to the door."""
        server.register("poison.list", self.list, Role.VIEWER)
        server.register("poison.forget", self.forget, Role.OPERATOR)

    async def list(self, call: ControlCall) -> Mapping[str, Any]:
        """What has killed, the latest first."""
        read_fields(call, Nothing)
        return await asyncio.to_thread(self._ledger.rows)

    async def forget(self, call: ControlCall) -> Mapping[str, Any]:
        """Let an artifact be run again."""
        artifact = read_fields(call, OneArtifact).artifact
        await self._ledger.forget(artifact, call.caller.user)
        return {"artifact": artifact}
