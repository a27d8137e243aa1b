"""Who asks: by the uid that the kernel says, by a key or a token (farm.control.accounts); and the roles they have."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from farm.control.runtime_folder import FARM_GROUP
from farm.core.shared_look import SharedLook
from farm.peers import user_name

ROLE_CACHE_S = 60.0  # name services can be slow (LDAP); a changed group counts after a minute


class Role(IntEnum):
    """What a person may do; each may do what the ones before it may."""

    VIEWER = 1  # look
    USER = 2  # use phones
    OPERATOR = 3  # change the lab

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel names it (SO_PEERCRED)."""

    uid: int
    gid: int
    pid: int

    @property
    def payer(self) -> int:
        """Whose share its calls are counted to."""
        return self.uid

    @property
    def origin(self) -> str:
        """For the audit log."""
        return f"uid {self.uid} pid {self.pid}"


@dataclass(frozen=True, slots=True)
class KeyPeer:
    """Somebody elsewhere, known by the CURVE key of their account."""

    account: str
    address: str

    @property
    def payer(self) -> str:
        """Whose share its calls are counted to."""
        return self.account

    @property
    def origin(self) -> str:
        """For the audit log."""
        return f"key {self.account} from {self.address}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `peer` is where the kernel or a key says it; None for the web page's people."""

    user: str
    role: Role
    origin: str  # "uid 1000 pid 42", "key NAME from 10.0.0.3", "web token NAME from 127.0.0.1"
    peer: Peer | KeyPeer | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """Whose uid it is."""

    user: str
    role: Role


class People:
    """Name and role by uid: root and the service user operate, the group `farm` uses, everybody else looks."""

    def __init__(
        self, service_uid: int | None = None, *, group: str = FARM_GROUP, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._operators = frozenset({0, os.geteuid() if service_uid is None else service_uid})
        self._group = group
        self._known = SharedLook(self._ask, keep_s=ROLE_CACHE_S, clock=clock)

    async def __call__(self, uid: int) -> Person:
        """Who `uid` is, at most a minute old. Name services are asked in a thread, once for all who wait."""
        return await self._known(uid)

    async def _ask(self, uid: int) -> Person:
        return await asyncio.to_thread(self._read, uid)

    def _read(self, uid: int) -> Person:
        return Person(user_name(uid), self._role(uid))

    def _role(self, uid: int) -> Role:
        if uid in self._operators:
            return Role.OPERATOR
        try:
            user, group = pwd.getpwuid(uid), grp.getgrnam(self._group)
        except KeyError:
            return Role.VIEWER
        member = user.pw_gid == group.gr_gid or user.pw_name in group.gr_mem
        return Role.USER if member else Role.VIEWER
