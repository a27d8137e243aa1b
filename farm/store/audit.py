"""The audit log: who changed what, or tried to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select

from farm.store.database import Database
from farm.store.schema import audit

BATCH = 500  # rows removed in one commit
PAGE = 1000  # most rows of one answer
MOST_ROWS = 500_000  # about 150 MB; whoever writes more pushes the oldest out


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One call of a verb that changes something."""

    at: datetime
    user: str
    role: str
    origin: str  # "uid 1000 pid 42", "key NAME from 10.0.0.3", "web token NAME from 127.0.0.1"
    kind: str  # the verb
    subject: str  # what it was about: a phone's name, a job's id
    outcome: str  # "ok", or the code of an error
    seq: int = 0  # given by the store


class AuditTable:
    """Statements over the audit log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, records: Sequence[AuditRecord]) -> None:
        """Keep some.

        Raises:
            StoreWriteError: nothing can be written now.
        """
        rows = [{name: value for name, value in asdict(record).items() if name != "seq"} for record in records]
        await self._database.write(lambda connection: connection.execute(insert(audit), rows) and None)

    def page(
        self,
        *,
        user: str = "",
        kind: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        before: int = 0,
        limit: int = 100,
    ) -> tuple[AuditRecord, ...]:
        """The latest records first.

        Args:
            user: only this one's; "" everybody's.
            kind: only this verb, or with a dot at the end all that begin so (`device.`).
            since: not earlier.
            until: earlier than this.
            before: only records with a lower `seq`; 0: from the latest.
            limit: how many, at most 1000.
        """
        wanted = select(audit).order_by(audit.c.seq.desc()).limit(min(limit, PAGE))
        if user:
            wanted = wanted.where(audit.c.user == user)
        if kind.endswith("."):
            wanted = wanted.where(audit.c.kind > kind, audit.c.kind < f"{kind[:-1]}/")  # "/" comes after "."
        elif kind:
            wanted = wanted.where(audit.c.kind == kind)
        if since is not None:
            wanted = wanted.where(audit.c.at >= since)
        if until is not None:
            wanted = wanted.where(audit.c.at < until)
        if before:
            wanted = wanted.where(audit.c.seq < before)
        return tuple(AuditRecord(**row) for row in self._database.rows(wanted))

    async def prune(self, before: datetime | None = None) -> int:
        """Remove what is older than `before`, and the oldest when there are too many; returns how many."""
        removed = 0
        while count := await self._database.write(lambda connection: _remove(connection, before)):
            removed += count
        return removed


def _remove(connection: Connection, before: datetime | None) -> int:
    newest = connection.execute(select(func.max(audit.c.seq))).scalar_one() or 0
    oldest = select(audit.c.seq, audit.c.at).order_by(audit.c.seq).limit(BATCH)
    rows = connection.execute(oldest).all()
    old = [row.seq for row in rows if row.seq <= newest - MOST_ROWS or (before is not None and row.at < before)]
    if old:
        connection.execute(delete(audit).where(audit.c.seq.in_(old)))
    return len(old)
