"""Accounts of users, and the audit log of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from farm.store.database import TableAccess, values_of
from farm.store.schema import account, audit

BATCH = 500  # rows removed in one commit
PAGE = 1000  # most rows of one answer
MAX_ROWS = 500_000  # about 150 MB; more push the oldest out


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """One account. A revoked one has neither key nor token."""

    name: str
    role: str
    curve_key: str | None  # the public key, Z85
    token_sha256: str | None
    made_at: datetime
    made_by: str
    used_at: datetime | None = None
    revoked_at: datetime | None = None


class AccountTable(TableAccess):
    """Statements over accounts. Each call reads again: another host's daemon may share the database."""

    def all(self) -> tuple[AccountRecord, ...]:
        """Every account by name, revoked ones too."""
        return tuple(AccountRecord(**row) for row in self._database.rows(select(account).order_by(account.c.name)))

    def get(self, name: str) -> AccountRecord | None:
        """The account of that name, revoked or not."""
        return self._one(account.c.name == name)

    def by_curve_key(self, curve_key: str) -> AccountRecord | None:
        """The live account with that public key."""
        return self._one(account.c.curve_key == curve_key)

    def by_token(self, token_sha256: str) -> AccountRecord | None:
        """The live account whose token has that hash."""
        return self._one(account.c.token_sha256 == token_sha256)

    async def save(self, record: AccountRecord) -> None:
        """Insert or replace an account.

        Raises:
            FarmError: another account has that key or token.
        """
        await self._database.put(account, values_of(record))

    async def used(self, name: str, at: datetime) -> None:
        """Note when an account was last used."""
        await self._database.execute(update(account).where(account.c.name == name).values(used_at=at))

    def _one(self, condition: ColumnElement[bool]) -> AccountRecord | None:
        rows = self._database.rows(select(account).where(condition))
        return AccountRecord(**rows[0]) if rows else None


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One call of a verb that changes something."""

    at: datetime
    user: str
    role: str
    origin: str  # "uid 1000 pid 42", "key NAME from 10.0.0.3", "web token NAME from 127.0.0.1"
    kind: str  # the verb
    subject: str  # a phone's name, a job's id
    outcome: str  # "ok", or the code of an error
    seq: int = 0  # given by the store


class AuditTable(TableAccess):
    """Statements over the audit log."""

    async def add(self, records: Sequence[AuditRecord]) -> None:
        """Store some records; their `seq` is ignored.

        Raises:
            StoreWriteError: nothing can be written now.
        """
        rows = [{name: value for name, value in values_of(record).items() if name != "seq"} for record in records]
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
            user: only records of this user; "": of all.
            kind: only this verb, or with a dot at the end all that begin so (`device.`).
            since: not earlier.
            until: earlier than this.
            before: only records with a lower `seq`; 0: from the latest.
            limit: at most this many, and at most PAGE.
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

    async def prune(self, before: datetime | None = None) -> None:
        """Remove records older than `before`, and the oldest beyond MAX_ROWS."""
        while await self._database.write(lambda connection: _remove_some(connection, before)):
            pass


def _remove_some(connection: Connection, before: datetime | None) -> bool:
    newest = connection.execute(select(func.max(audit.c.seq))).scalar_one() or 0
    oldest = connection.execute(select(audit.c.seq, audit.c.at).order_by(audit.c.seq).limit(BATCH))
    old = [row.seq for row in oldest if row.seq <= newest - MAX_ROWS or (before is not None and row.at < before)]
    if old:
        connection.execute(delete(audit).where(audit.c.seq.in_(old)))
    return bool(old)
