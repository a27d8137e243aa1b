"""Artifacts whose run killed what ran them (DESIGN D9)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, delete, func, insert, select, update

from farm.core.events import Event
from farm.store.database import Database
from farm.store.records import PoisonRecord
from farm.store.rows import in_parts
from farm.store.schema import poison


class PoisonTable:
    """Statements over poisoned artifacts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, limit: int) -> tuple[tuple[PoisonRecord, ...], int]:
        """The `limit` that killed last, the latest first, and how many there are."""
        wanted = select(poison).order_by(poison.c.last_at.desc(), poison.c.artifact, poison.c.user).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(wanted).mappings().all()
            count = connection.execute(select(func.count()).select_from(poison)).scalar_one()
        return tuple(PoisonRecord(**row) for row in rows), int(count)

    def kills(self, artifacts: Collection[str], user: str) -> dict[str, int]:
        """How often each of these has killed, for `user`; those that never did are left out.

        One's own count as often as they were told; of others what was seen, and besides each one's word once. "" is
        nobody: what counts for all.
        """
        own: dict[str, int] = {}
        found: dict[str, int] = {}
        with self._database.reading() as connection:
            for some in in_parts(artifacts):
                for row in connection.execute(select(poison).where(poison.c.artifact.in_(some))):
                    found[row.artifact] = found.get(row.artifact, 0) + row.seen + (row.kills > row.seen)
                    if row.user == user:
                        own[row.artifact] = row.kills
        return {name: max(count, own.get(name, 0)) for name, count in found.items()}

    async def add(self, record: PoisonRecord, events: Sequence[Event] = ()) -> None:
        """Count the record's kills to those there were."""
        key = {"artifact": record.artifact, "user": record.user}
        changes = {"what": record.what, "device": record.device, "last_at": record.last_at, "job": record.job}

        def add(connection: Connection) -> None:
            known = update(poison).where(*(poison.c[name] == value for name, value in key.items()))
            counts = {"kills": poison.c.kills + record.kills, "seen": poison.c.seen + record.seen}
            if connection.execute(known.values(**changes, **counts)).rowcount == 0:
                first = {"kills": record.kills, "seen": record.seen, "first_at": record.first_at}
                connection.execute(insert(poison).values(**key, **first, **changes))

        await self._database.write(add, events)

    async def forget(self, artifact: str, events: Sequence[Event] = ()) -> bool:
        """Whether there was something to forget."""
        statement = delete(poison).where(poison.c.artifact == artifact)
        return await self._database.change(statement, events)
