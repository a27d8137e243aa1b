"""What leasing needs of others, and what it tells them: protocols, policy, errors and status rows."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from farm.config import UserConfig
from farm.core import device_news
from farm.core.allocator_events import AllocatorPolicy, DeviceReason
from farm.core.device import DeviceView
from farm.core.errors import ExitCode, FarmError, PhoneError, UserError
from farm.core.events import Event
from farm.core.requests import Lease, LeaseClass, LeaseRequest
from farm.core.shares import Share
from farm.store.records import LeaseRecord


class NoSuchLeaseError(UserError):
    """There is no such lease."""

    code = "no_such_lease"


class LeaseEndedError(UserError):
    """A lease was taken away from its holder. Trying again would take back what somebody ended on purpose."""

    code = "lease_ended"
    exit_code = ExitCode.FAILED


class PhoneLostError(PhoneError):
    """A lease ended because its phone went away or did not come back in time."""

    code = "phone_lost"

    @classmethod
    def of(cls, view: DeviceView) -> PhoneLostError:
        """As its phone is now."""
        return cls(f"{view.name} is {view.life}" + (f": {view.reason}" if view.reason else ""))


class TooHotError(PhoneError):
    """A lease ended because its phone was dangerously hot."""

    code = "too_hot"


class SessionStuckError(FarmError):
    """A session that was cut has not reported its end."""

    code = "session_stuck"


class NotCheckingError(PhoneError):
    """The device is not being checked."""

    code = "not_checking"


class Devices(device_news.Devices, Protocol):
    """What leasing needs of the fleet (farm.fleet.fleet.Fleet)."""

    async def dial(self, name: str, timeout_s: float) -> tuple[socket.socket, str]:
        """A non-blocking socket to the phone's RPC server, and that server's key."""

    def report_broken_session(self, name: str, reason: str) -> None:
        """A session ended such that the phone must be cleaned and checked; it leaves READY at once."""

    def clean_and_check(self, name: str, reason: str) -> None:
        """Somebody had the phone in hands and has left it; it leaves READY at once."""

    def own_bundle(self, name: str) -> None:
        """Its holder, who may have had another bundle on it, has left it; if it has one, it leaves READY at once."""


class LeaseKeeper(Protocol):
    """What leasing needs of the store (farm.store.leases.LeaseTable). Each returns after the commit.

    Every method raises StoreWriteError when nothing can be written now, and StoreConflictError when a rule of the
    schema refuses the change.
    """

    async def grant(self, record: LeaseRecord, events: Sequence[Event] = ()) -> None:
        """Keep a grant."""

    async def end(
        self, lease_id: str, *, ended_at: datetime, reason: str, held_s: float, events: Sequence[Event] = ()
    ) -> bool:
        """Keep a lease's end; False when it had ended before."""

    async def extend(self, lease_id: str, expires_at: datetime | None, events: Sequence[Event] = ()) -> bool:
        """Keep another expiry; False when the lease has ended."""


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How long leasing waits, and what users may have."""

    unused_s: float = 5.0  # a TVM grant that nobody dials (DESIGN §5)
    recovery_s: float = 60.0  # a job's phone that mends: cleaning and checking take a second, a reboot ends the lease
    allocator: AllocatorPolicy = field(default_factory=AllocatorPolicy)
    quota: UserConfig = field(default_factory=UserConfig)  # of everybody who is not in `users`
    users: Mapping[str, UserConfig] = field(default_factory=dict)
    tvm_class: Mapping[str, LeaseClass] = field(default_factory=dict)  # of requests for a stock TVM key

    def of(self, user: str) -> UserConfig:
        """What this user may have."""
        return self.users.get(user, self.quota)


def share_of(user: UserConfig) -> Share:
    """The part of a user's configuration that the allocator decides by."""
    return Share(user.weight, user.devices)


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits, for status and explain."""

    id: str
    request: LeaseRequest
    waited_s: float
    why: str = ""  # one sentence, in an explanation that is not about this very request


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a device, for status."""

    lease: Lease
    held_s: float
    session: str = ""  # id of the open session
    peer: str = ""  # address of its client
    expires_at: datetime | None = None  # it is given back by then; None: nobody knows

    @property
    def who(self) -> str:
        """What people call the holder: the user, else where they come from."""
        return self.lease.request.user or self.peer or self.lease.request.door.value


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request for `subject` waits, or would. `estimate_s`: how long yet, were the order to stay."""

    subject: str
    waiting: tuple[WaitingRequest, ...]  # the foremost of those concerned
    devices: tuple[DeviceReason, ...]
    estimate_s: float | None = None
    waiting_more: int = 0  # concerned too, further behind
    limits: tuple[str, ...] = ()  # why it gets no device at all, whatever each of them does
