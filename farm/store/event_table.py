"""Events as the store keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from farm.core.events import Event
from farm.store.database import Database
from farm.store.rows import event_of
from farm.store.schema import event


class EventTable:
    """Statements over events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def since(self, seq: int, limit: int = 1000, subject: str = "") -> tuple[Event, ...]:
        """Kept events after `seq`, oldest first, at most `limit`."""
        wanted = select(event).where(event.c.seq > seq).order_by(event.c.seq).limit(limit)
        if subject:
            wanted = wanted.where(event.c.subject == subject)
        with self._database.reading() as connection:
            return tuple(event_of(row) for row in connection.execute(wanted).mappings())

    async def add(self, events: Sequence[Event]) -> None:
        """Keep events that tell no change of the store."""
        await self._database.write(lambda _: None, events)
