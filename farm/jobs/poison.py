"""Poison: artifacts that killed the process that ran them are refused after the second time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from farm.common.errors import Code, UserError
from farm.common.events import EventLog
from farm.common.files import short_hash
from farm.store.artifacts import PoisonRecord, PoisonTable
from farm.store.database import run_to_completion

REFUSED_AFTER = 2  # kills: once may be the phone's own weakness
LISTED = 200


class PoisonLedger:
    """Which artifacts are not run any more."""

    def __init__(
        self, table: PoisonTable, events: EventLog, wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._table = table
        self.read, self.in_thread = table.read, table.in_thread
        self._events = events
        self._wall = wall

    def refused(self, artifacts: Collection[str], user: str = "") -> frozenset[str]:
        """Those of `artifacts` (SHA-256 of libraries) that must not be run for `user`; "": for no user."""
        return frozenset(name for name, kills in self._table.kills(artifacts, user).items() if kills >= REFUSED_AFTER)

    async def report(
        self, artifact: str, device: str, what: str, kills: int, *, user: str, job: str, seen: bool
    ) -> None:
        """An artifact has killed its process so many times.

        `seen`: by an operator. Else it is the word of a user or a job of that user, which decides for that user only.

        Raises:
            StoreWriteError: it cannot be kept now.
        """
        now = self._wall()
        record = PoisonRecord(artifact, user, what, device, kills, kills if seen else 0, now, now, job)
        facts = {"device": device, "what": what, "kills": kills, "user": user, "job": job}
        with self._events.drafted(("poison.reported", artifact, facts)) as drafts:
            await self._table.add(record, drafts)

    def rows(self) -> dict[str, Any]:
        """Everything remembered, the latest first, for people."""
        records, count = self._table.all(LISTED)
        refused = self.refused({record.artifact for record in records})
        return {"poison": [_row(record, refused) for record in records], "more": count - len(records)}

    @run_to_completion
    async def forget(self, artifact: str, user: str) -> None:
        """Let an artifact be run again.

        Raises:
            UserError: nothing is remembered of it.
        """
        with self._events.drafted(("poison.forgotten", artifact, {"user": user})) as drafts:
            if not await self._table.forget(artifact, drafts):
                drafts.drop()
                raise UserError(
                    f"{short_hash(artifact)} is not poisoned", Code.NOT_POISONED, hint="farm poison list shows what is"
                )


def _row(record: PoisonRecord, refused: Collection[str]) -> dict[str, Any]:
    return {
        **asdict(record),
        "refused": record.artifact in refused,
        "refused_to_user": record.kills >= REFUSED_AFTER,
        "first_at": record.first_at.isoformat(),
        "last_at": record.last_at.isoformat(),
    }
