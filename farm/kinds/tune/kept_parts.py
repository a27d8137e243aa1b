"""The daemon's side of keeping a search's records at another host, too: `records.part` of its worker.

An attempt's facts name its parts, each once it has its second copy. Only a running attempt can write facts: after the
head has ended it, it adds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from farm.common.errors import FarmError, ProtocolError
from farm.common.files import is_sha256
from farm.jobs.executor import AttemptContext
from farm.model.job import Attempt

PARTS = "parts"  # in an attempt's facts
END_LIMIT_S = 5.0  # for the last part's second copy when the attempt ends


class KeptParts:
    """The parts of one attempt; `close` it before the attempt's end is written."""

    def __init__(self, context: AttemptContext, second_copy: Callable[[str], Awaitable[object]]) -> None:
        """`second_copy` gives an artifact a copy at another place, or raises."""
        self._context = context
        self._second_copy = second_copy
        self._parts: list[str] = []
        self._saving: asyncio.Task[None] | None = None

    def add(self, fields: Mapping[str, Any]) -> None:
        """The worker has put a part into the artifacts; `first`: it has all of the records by itself.

        Raises:
            ProtocolError: the fields are wrong.
        """
        artifact, first = fields.get("artifact"), fields.get("first")
        if not isinstance(artifact, str) or not is_sha256(artifact) or not isinstance(first, bool):
            raise ProtocolError("the worker's message about a part of the records has wrong fields")
        self._parts = [*(() if first else self._parts), artifact]
        self._saving = asyncio.create_task(self._save(artifact, self._parts, self._saving), name="parts of records")

    async def close(self) -> None:
        """Wait for the last part, `END_LIMIT_S` at most."""
        if self._saving is not None:
            await asyncio.wait((self._saving,), timeout=END_LIMIT_S)
            self._saving.cancel()

    async def _save(self, artifact: str, parts: Sequence[str], before: asyncio.Task[None] | None) -> None:
        """Save in order: the facts never name fewer parts than before."""
        try:
            await self._second_copy(artifact)
        except FarmError as error:
            self._context.log(f"the records so far are on this host only: {error.message}", "warning")
        if before is not None:
            await asyncio.wait((before,))
        try:
            await self._context.save_facts({PARTS: list(parts)})
        except FarmError as error:
            self._context.log(f"the next attempt does not know of the latest records: {error.message}", "warning")


def parts_of(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """The parts that the latest attempt which kept any has kept, in their order."""
    kept = next((each.facts[PARTS] for each in reversed(attempts) if each.facts.get(PARTS)), ())
    return tuple(each for each in kept if isinstance(each, str) and is_sha256(each))
