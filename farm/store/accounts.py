"""Accounts of people from elsewhere: name, role, and what proves who they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, select, update

from farm.store.database import Database
from farm.store.schema import account


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


class AccountTable:
    """Statements over accounts. Read anew each time: another host's daemon may share the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
            StoreConflictError: another account has that key or token.
        """
        await self._database.put(account, asdict(record))

    async def used(self, name: str, at: datetime) -> None:
        """Note when an account was last used."""
        await self._database.execute(update(account).where(account.c.name == name).values(used_at=at))

    def _one(self, condition: ColumnElement[bool]) -> AccountRecord | None:
        rows = self._database.rows(select(account).where(condition))
        return AccountRecord(**rows[0]) if rows else None
