"""Callers and their roles: people of this host by the uid that the kernel reports, others by a key or a token.

Operators make and revoke the accounts of the others. A secret is shown once, when it is made. Kept are the public half
of a key and the SHA-256 of a token: both have 256 random bits, so a plain hash is as good as a slow one. Wrong ones are
counted by the address they come from; the log reports an address once, and the listener may make it wait
(`FailedAttempts`).
"""

from __future__ import annotations

import asyncio
import grp
import hashlib
import hmac
import logging
import os
import pwd
import re
import secrets
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum

import zmq
from zmq.utils import z85

from farm.common.errors import Code, FarmError, UserError
from farm.common.peers import name_at, user_name
from farm.common.tasks import SharedCall
from farm.store.accounts import AccountRecord, AccountTable

FARM_GROUP = "farm"
ROLE_CACHE_S = 60.0  # name services can be slow (LDAP); a changed group counts after a minute
TOKEN_BYTES = 32
TOKEN_PREFIX = "farm_"  # noqa: S105 (it is no secret) so that scanners for leaked secrets, and people, know what it is
MAX_TOKEN_CHARS = 128
USED_EVERY = timedelta(minutes=1)  # `used_at` is no more exact than that: it costs a write
FREE_TRIES = 5  # of one place, before it has to wait
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 60.0
FORGET_AFTER_S = 600.0
MAX_PLACES = 4096
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,31}")
logger = logging.getLogger(__name__)


class Role(IntEnum):
    """A user's rights; each role includes those before it."""

    VIEWER = 1  # look
    USER = 2  # use phones
    OPERATOR = 3  # change the lab

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class LocalPeer:
    """The process at the other end, as the kernel names it (SO_PEERCRED)."""

    uid: int
    gid: int
    pid: int

    @property
    def quota_key(self) -> int:
        """The user whose quota its calls count to."""
        return self.uid

    @property
    def origin(self) -> str:
        """For the audit log."""
        return f"uid {self.uid} pid {self.pid}"


@dataclass(frozen=True, slots=True)
class KeyPeer:
    """A user of another host, known by the CURVE key of the account."""

    account: str
    address: str
    key: bytes = b""  # public, 32 bytes

    @property
    def quota_key(self) -> str:
        """The user whose quota its calls count to."""
        return self.account

    @property
    def origin(self) -> str:
        """For the audit log."""
        return f"key {self.account} from {self.address}"


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a call. `peer` is the proof by the kernel or a key; None for users of the web page."""

    user: str
    role: Role
    origin: str  # "uid 1000 pid 42", "key NAME from 10.0.0.3", "web token NAME from 127.0.0.1"
    peer: LocalPeer | KeyPeer | None = None
    host: str = ""  # of the lab, which sends the call here; "": the user called this host

    def may_act_for(self, owner: str) -> bool:
        """Whether it may cancel, hold or resume a job of `owner`, and read the phone's output of it."""
        return self.role >= Role.OPERATOR or (self.role >= Role.USER and self.user == owner)


@dataclass(frozen=True, slots=True)
class Principal:
    """A user of this host by uid, or the account of a key or token."""

    user: str
    role: Role


class LocalUsers:
    """Name and role by uid: root and the service user operate, the group `farm` uses, all others view."""

    def __init__(
        self,
        service_uid: int | None = None,
        *,
        at: str = "",
        group: str = FARM_GROUP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at`: the host that distinguishes equal names in a lab; "": no lab."""
        self._at = at
        self._operators = frozenset({0, os.geteuid() if service_uid is None else service_uid})
        self._group = group
        self._known = SharedCall(self._ask, keep_s=ROLE_CACHE_S, clock=clock)
        self._logins = SharedCall(self._ask_login, keep_s=ROLE_CACHE_S, clock=clock)

    async def principal_of(self, uid: int) -> Principal:
        """The user of `uid`, at most a minute old. Name services are asked in a thread, once for all who wait."""
        return await self._known(uid)

    async def may_use_phones(self, login: str) -> bool:
        """Whether a login of this host has the role of a user, at most a minute old."""
        return await self._logins(login)

    async def _ask_login(self, login: str) -> bool:
        try:
            uid = (await asyncio.to_thread(pwd.getpwnam, login)).pw_uid
        except KeyError:
            return False
        return (await self._known(uid)).role >= Role.USER

    async def _ask(self, uid: int) -> Principal:
        return await asyncio.to_thread(self._read, uid)

    def _read(self, uid: int) -> Principal:
        return Principal(name_at(user_name(uid), self._at), self._role(uid))

    def _role(self, uid: int) -> Role:
        if uid in self._operators:
            return Role.OPERATOR
        try:
            user, group = pwd.getpwuid(uid), grp.getgrnam(self._group)
        except KeyError:
            return Role.VIEWER
        member = user.pw_gid == group.gr_gid or user.pw_name in group.gr_mem
        return Role.USER if member else Role.VIEWER


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A secret for the account's owner alone; never stored, never logged."""

    account: Principal
    token: str = ""  # of the web page
    public_key: str = ""  # CURVE, Z85
    secret_key: str = ""


@dataclass(slots=True)
class _Attempts:
    wrong: int = 0
    last: float = 0.0


class FailedAttempts:
    """Wrong tokens or keys, by the address they come from: after a few the address waits, longer each time."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` they are, for the log."""
        self._what = what
        self._clock = clock
        self._places: dict[str, _Attempts] = {}
        self.wrong = 0  # ever

    def failed(self, place: str) -> float:
        """Count a wrong one; returns how long the place must wait from now, seconds."""
        now = self._clock()
        self.wrong += 1
        known = self._places.pop(place, None)  # put back as the latest: the oldest stand first
        if known is None or now - known.last > FORGET_AFTER_S:
            known = _Attempts()
            logger.warning("a wrong %s from %s; more of them are only counted", self._what, place)
        known.wrong += 1
        known.last = now
        self._places[place] = known
        while len(self._places) > MAX_PLACES:
            del self._places[next(iter(self._places))]
        return self.wait_s(place)

    def wait_s(self, place: str) -> float:
        """How long a place has to wait before its next try counts, seconds."""
        known = self._places.get(place)
        if known is None or known.wrong < FREE_TRIES:
            return 0.0
        wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(known.wrong - FREE_TRIES, 16))
        return max(0.0, known.last + wait_s - self._clock())


class Accounts:
    """Finds accounts by key, token or uid, makes and revokes them."""

    def __init__(
        self,
        store: AccountTable,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._now = now
        self._on_revoked: list[Callable[[str], None]] = []
        self._roles: dict[str, Role] = {}  # of keys that were seen; only a revoked name gets another role
        self.tokens = FailedAttempts("token", clock=clock)
        self.keys = FailedAttempts("key", clock=clock)

    def on_revoked(self, callback: Callable[[str], None]) -> None:
        """Have the name of each account that is revoked: its connections must end."""
        self._on_revoked.append(callback)

    async def by_token(self, token: str, origin: str = "") -> Principal | None:
        """The account of a token. A wrong one is counted against `origin`, an address; see `tokens.wait_s`."""
        if not 0 < len(token) <= MAX_TOKEN_CHARS or not token.isascii():
            found = None
        else:
            digest = hash_of(token)
            found = await self._store.read(self._store.by_token, digest)
            if found is not None and not hmac.compare_digest(found.token_sha256 or "", digest):
                found = None
        if found is None:
            self.tokens.failed(origin)
        return None if found is None else _account(found)

    async def by_curve_key(self, key: bytes) -> Principal | None:
        """The account of a public key, given as its 32 bytes."""
        found = await self._store.read(self._store.by_curve_key, z85.encode(key).decode())
        if found is None:
            return None
        account = _account(found)
        self._roles[account.user] = account.role
        return account

    def role_of(self, name: str) -> Role | None:
        """The role of an account whose key was seen since the start; None: none was, or it is revoked."""
        return self._roles.get(name)

    async def named(self, name: str) -> Principal | None:
        """The account of that name, unless it is revoked."""
        found = await self._get(name)
        return None if found is None or found.revoked_at is not None else _account(found)

    async def all(self) -> Sequence[AccountRecord]:
        """Every account, revoked ones too."""
        return await self._store.read(self._store.all)

    async def noted(self, account: Principal) -> None:
        """It was used just now. A store that cannot be written is no reason to refuse a caller."""
        found, now = await self._get(account.user), self._now()
        if found is not None and (found.used_at is None or now - found.used_at >= USED_EVERY):
            try:
                await self._store.used(account.user, now)
            except FarmError as error:
                logger.info("the use of account %s was not noted: %s", account.user, error)

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
        known = await self._get(name)
        if known is None or known.revoked_at is not None:
            known = AccountRecord(name, role.word, None, None, self._now(), by)
        if known.role != role.word:
            raise UserError(f"{name} is {known.role}", hint=f"another role: first farm auth revoke {name}")
        if (known.token_sha256 if web else known.curve_key) is not None:
            what = "token" if web else "key"
            raise UserError(f"{name} has a {what}", hint=f"lost it? farm auth revoke {name}, then make it again")
        account = Principal(name, role)
        if web:
            token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
            await self._store.save(replace(known, token_sha256=hash_of(token)))
            return NewSecret(account, token=token)
        public, secret = (half.decode() for half in zmq.curve_keypair())
        await self._store.save(replace(known, curve_key=public))
        return NewSecret(account, public_key=public, secret_key=secret)

    async def revoke(self, name: str) -> None:
        """Take an account's key and token; the connections that use them end.

        Raises:
            UserError: there is none, or it is revoked already.
        """
        known = await self._get(name)
        if known is None or known.revoked_at is not None:
            raise UserError(
                f"there is no account {name[:40]!r}", Code.NO_SUCH_ACCOUNT, hint="farm auth list shows them"
            )
        await self._store.save(replace(known, curve_key=None, token_sha256=None, revoked_at=self._now()))
        self._roles.pop(name, None)
        for callback in self._on_revoked:
            callback(name)

    async def _get(self, name: str) -> AccountRecord | None:
        return await self._store.read(self._store.get, name)


class Operators(Container[int | str]):
    """Users whose calls have no quota: uids of this host and names of accounts (`quota_key`) with that role."""

    def __init__(self, accounts: Accounts | None) -> None:
        self._uids = frozenset({0, os.geteuid()})
        self._accounts = accounts

    def __contains__(self, quota_key: object) -> bool:
        if self._accounts is None or not isinstance(quota_key, str):
            return quota_key in self._uids
        return self._accounts.role_of(quota_key) is Role.OPERATOR


def hash_of(token: str) -> str:
    """A token as stored."""
    return hashlib.sha256(token.encode()).hexdigest()


def _account(record: AccountRecord) -> Principal:
    return Principal(record.name, Role[record.role.upper()])
