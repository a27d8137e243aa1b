"""Accounts of people from elsewhere: made and revoked by operators, found by key or token.

A secret is told once, when it is made. Kept are the public half of a key and the SHA-256 of a token: both have 256
random bits, so a plain hash is as good as a slow one. Wrong ones are counted by where they come from; the log tells of
a place once, and the door may make it wait (`Tries`).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import zmq
from zmq.utils import z85

from farm.control.callers import Role
from farm.core.errors import FarmError, UserError
from farm.store.accounts import AccountRecord

TOKEN_BYTES = 32
TOKEN_PREFIX = "farm_"  # noqa: S105 (it is no secret) so that scanners for leaked secrets, and people, know what it is
MAX_TOKEN_CHARS = 128
USED_EVERY = timedelta(minutes=1)  # `used_at` is no more exact than that: it costs a write
FREE_TRIES = 5  # of one place, before it has to wait
FIRST_WAIT_S = 1.0
MOST_WAIT_S = 60.0
FORGET_AFTER_S = 600.0
MOST_PLACES = 4096
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,31}")

logger = logging.getLogger(__name__)


class NoSuchAccountError(UserError):
    """There is no account of that name."""

    code = "no_such_account"


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody who may come in."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class NewSecret:
    """What only the account's owner may know; never kept, never logged."""

    account: Account
    token: str = ""  # of the web page
    public_key: str = ""  # CURVE, Z85
    secret_key: str = ""


class AccountStore(Protocol):
    """Keeps the accounts (farm.store.accounts.AccountTable)."""

    def all(self) -> Sequence[AccountRecord]:
        """Every account, revoked ones too."""

    def get(self, name: str) -> AccountRecord | None:
        """By name, revoked or not."""

    def by_curve_key(self, curve_key: str) -> AccountRecord | None:
        """The live one with that public key."""

    def by_token(self, token_sha256: str) -> AccountRecord | None:
        """The live one with that hash."""

    async def save(self, record: AccountRecord) -> None:
        """Insert or replace."""

    async def used(self, name: str, at: datetime) -> None:
        """Note a use."""


@dataclass(slots=True)
class _Place:
    wrong: int = 0
    last: float = 0.0


class Tries:
    """Wrong tokens or keys, by the address they come from: after a few the address waits, longer each time."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` they are, for the log."""
        self._what = what
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self.wrong = 0  # ever

    def failed(self, place: str) -> float:
        """Count a wrong one; returns how long the place must wait from now, seconds."""
        now = self._clock()
        self.wrong += 1
        known = self._places.pop(place, None)  # put back as the latest: the oldest stand first
        if known is None or now - known.last > FORGET_AFTER_S:
            known = _Place()
            logger.warning("a wrong %s from %s; more of them are counted, not told", self._what, place)
        known.wrong += 1
        known.last = now
        self._places[place] = known
        while len(self._places) > MOST_PLACES:
            del self._places[next(iter(self._places))]
        return self.wait_s(place)

    def wait_s(self, place: str) -> float:
        """How long a place has to wait before its next try counts, seconds."""
        known = self._places.get(place)
        if known is None or known.wrong < FREE_TRIES:
            return 0.0
        wait_s = min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(known.wrong - FREE_TRIES, 16))
        return max(0.0, known.last + wait_s - self._clock())


class Accounts:
    """Finds accounts by what proves them, makes and revokes them."""

    def __init__(
        self,
        store: AccountStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._now = now
        self._on_revoked: list[Callable[[str], None]] = []
        self.tokens = Tries("token", clock=clock)
        self.keys = Tries("key", clock=clock)

    def on_revoked(self, callback: Callable[[str], None]) -> None:
        """Have the name of each account that is revoked: its connections must end."""
        self._on_revoked.append(callback)

    def by_token(self, token: str, origin: str = "") -> Account | None:
        """Whose token it is. A wrong one is counted against `origin`, an address; see `tokens.wait_s`."""
        if not 0 < len(token) <= MAX_TOKEN_CHARS or not token.isascii():
            found = None
        else:
            digest = hash_of(token)
            found = self._store.by_token(digest)
            if found is not None and not hmac.compare_digest(found.token_sha256 or "", digest):
                found = None
        if found is None:
            self.tokens.failed(origin)
        return None if found is None else _account(found)

    def by_curve_key(self, key: bytes) -> Account | None:
        """Whose public key it is: its 32 bytes."""
        found = self._store.by_curve_key(z85.encode(key).decode())
        return None if found is None else _account(found)

    def named(self, name: str) -> Account | None:
        """The account of that name, unless it is revoked."""
        found = self._store.get(name)
        return None if found is None or found.revoked_at is not None else _account(found)

    def all(self) -> Sequence[AccountRecord]:
        """Every account, revoked ones too."""
        return self._store.all()

    async def noted(self, account: Account) -> None:
        """It was used just now. A store that cannot be written is no reason to refuse anybody."""
        found, now = self._store.get(account.name), self._now()
        if found is not None and (found.used_at is None or now - found.used_at >= USED_EVERY):
            try:
                await self._store.used(account.name, now)
            except FarmError as error:
                logger.info("the use of account %s was not noted: %s", account.name, error)

    async def new(self, name: str, role: Role, *, web: bool, by: str) -> NewSecret:
        """Make an account, or give one its other secret: a key, or with `web` a token.

        Raises:
            UserError: it is no name, the account has such a secret already, or another role.
        """
        if not _NAME.fullmatch(name) or name.startswith("uid-"):
            raise UserError(
                f"{name[:40]!r} is no name for an account",
                hint="up to 32 of a-z, 0-9, dot, dash and underscore, a letter first; not uid-...",
            )
        known = self._store.get(name)
        if known is None or known.revoked_at is not None:
            known = AccountRecord(name, role.word, None, None, self._now(), by)
        if known.role != role.word:
            raise UserError(f"{name} is {known.role}", hint=f"another role: first farm auth revoke {name}")
        if (known.token_sha256 if web else known.curve_key) is not None:
            what = "token" if web else "key"
            raise UserError(f"{name} has a {what}", hint=f"lost it? farm auth revoke {name}, then make it anew")
        account = Account(name, role)
        if web:
            token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
            await self._store.save(replace(known, token_sha256=hash_of(token)))
            return NewSecret(account, token=token)
        public, secret = (half.decode() for half in zmq.curve_keypair())
        await self._store.save(replace(known, curve_key=public))
        return NewSecret(account, public_key=public, secret_key=secret)

    async def revoke(self, name: str) -> None:
        """Take an account's key and token; whoever is in with them is put out.

        Raises:
            NoSuchAccountError: there is none, or it is revoked already.
        """
        known = self._store.get(name)
        if known is None or known.revoked_at is not None:
            raise NoSuchAccountError(f"there is no account {name[:40]!r}", hint="farm auth list shows them")
        await self._store.save(replace(known, curve_key=None, token_sha256=None, revoked_at=self._now()))
        for callback in self._on_revoked:
            callback(name)


def hash_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _account(record: AccountRecord) -> Account:
    return Account(record.name, Role[record.role.upper()])
