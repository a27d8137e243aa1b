"""Builders: machines that joined to build tuning candidates, and tokens with which a machine may join as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select, update

from farm.store.database import ConditionFailedError, TableAccess, upsert, values_of
from farm.store.schema import builder


@dataclass(frozen=True, slots=True)
class BuilderRecord:
    """A builder, or the token of one."""

    name: str
    certificate: str  # PEM; before it joins, that of its token
    made_by: str  # user who made the token
    expires_at: datetime | None = None  # of the token; None: the builder has joined
    built: int = 0
    seen_at: datetime | None = None  # the latest heartbeat of any process with that certificate
    versions: Mapping[str, Any] = field(default_factory=dict)


class BuilderRecords(TableAccess):
    """Statements over builders."""

    def all(self) -> tuple[BuilderRecord, ...]:
        """Every builder and token, by name."""
        return tuple(BuilderRecord(**row) for row in self._database.rows(select(builder).order_by(builder.c.name)))

    async def invite(self, token: BuilderRecord) -> bool:
        """Add a token, in the place of an earlier one of that name; False: a builder has the name."""
        values = values_of(token)

        def add(connection: Connection) -> None:
            unused = {"index_elements": ["name"], "set_": values, "where": builder.c.expires_at.is_not(None)}
            wanted = upsert(connection.dialect.name, builder).on_conflict_do_update(**unused)
            if connection.execute(wanted.returning(builder.c.name), values).first() is None:
                raise ConditionFailedError

        return await self._database.write_if(add)

    async def join(self, name: str, token: str, certificate: str, now: datetime) -> bool:
        """Replace a token's certificate by the builder's own; False: the token is not good any more."""
        good = (builder.c.name == name) & (builder.c.certificate == token) & (builder.c.expires_at > now)
        return await self._database.change(update(builder).where(good).values(certificate=certificate, expires_at=None))

    async def note(self, name: str, built: int, seen_at: datetime, versions: Mapping[str, Any]) -> None:
        """Add to a builder's count, after one of its processes has left."""
        values = {"built": builder.c.built + built, "seen_at": seen_at, "versions": dict(versions)}
        await self._database.execute(update(builder).where(builder.c.name == name).values(values))

    async def remove(self, name: str) -> bool:
        """Take a builder, or a token, out; False: there is none of that name."""
        return await self._database.change(delete(builder).where(builder.c.name == name))
