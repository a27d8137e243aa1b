"""Events as the store keeps them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select

from farm.core.events import Event
from farm.store.database import Database
from farm.store.rows import event_of, in_parts
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
        return tuple(map(event_of, self._database.rows(wanted)))

    def about(self, subjects: Collection[str], seq: int, before: int, limit: int = 1000) -> tuple[Event, ...]:
        """Kept events about any of these subjects after `seq` and before `before`, oldest first, at most `limit`."""
        found: list[Event] = []
        with self._database.reading() as connection:
            for some in in_parts(subjects):
                wanted = (
                    select(event)
                    .where(event.c.subject.in_(some), event.c.seq > seq, event.c.seq < before)
                    .order_by(event.c.seq)
                    .limit(limit)
                )
                found += map(event_of, connection.execute(wanted).mappings())
        return tuple(sorted(found, key=lambda each: each.seq)[:limit])

    def newest(self, subject: str, before: int, limit: int) -> tuple[Event, ...]:
        """Kept events about `subject` before `before`, newest first, at most `limit`."""
        wanted = (
            select(event)
            .where(event.c.subject == subject, event.c.seq < before)
            .order_by(event.c.seq.desc())
            .limit(limit)
        )
        return tuple(map(event_of, self._database.rows(wanted)))

    def latest(self, subjects: Collection[str], kinds: Collection[str]) -> dict[str, int]:
        """The number of the latest event of any of these kinds, for those of the subjects that have one."""
        found: dict[str, int] = {}
        with self._database.reading() as connection:
            for some in in_parts(subjects):
                wanted = (
                    select(event.c.subject, func.max(event.c.seq))
                    .where(event.c.subject.in_(some), event.c.kind.in_(sorted(kinds)))
                    .group_by(event.c.subject)
                )
                found |= {str(subject): int(seq) for subject, seq in connection.execute(wanted)}
        return found

    async def add(self, events: Sequence[Event]) -> None:
        """Keep events that tell no change of the store."""
        await self._database.write(lambda _: None, events)
