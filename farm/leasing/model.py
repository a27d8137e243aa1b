"""What leasing shows others: policy, errors and rows of status; and waiting until a phone is in some state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from farm.common.errors import Code, FarmError, HostError, PhoneError
from farm.devices.fleet import Fleet
from farm.leasing.allocator.model import AllocatorPolicy, DeviceReason
from farm.leasing.config import UserConfig
from farm.model.device import DeviceView, Life
from farm.model.requests import Lease, LeaseClass, LeaseRequest


class PhoneLostError(PhoneError):
    """A lease ended because its phone went away or did not come back in time."""

    code = "phone_lost"

    @classmethod
    def of(cls, view: DeviceView) -> FarmError:
        """As its phone is now; the host's fault where its adb server or a hub failed."""
        message = f"{view.name} is {view.life}" + (f": {view.reason}" if view.reason else "")
        return HostError(message, Code.HOST_LINK_LOST) if view.elsewhere else cls(message)


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How long leasing waits, and what users may have."""

    unused_s: float = 5.0  # a TVM grant that is never used
    # a job's phone that recovers: cleaning and checking take a second, a reboot ends the lease
    recovery_s: float = 60.0
    allocator: AllocatorPolicy = field(default_factory=AllocatorPolicy)
    quota: UserConfig = field(default_factory=UserConfig)  # of users who are not in `users`
    users: Mapping[str, UserConfig] = field(default_factory=dict)
    tvm_class: Mapping[str, LeaseClass] = field(default_factory=dict)  # of requests for a stock TVM key

    def of(self, user: str) -> UserConfig:
        """What this user may have."""
        return self.users.get(user, self.quota)


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
    expires_at: datetime | None = None  # it is given back by then; None: unknown

    @property
    def holder_name(self) -> str:
        """What people call the holder: the user, else where they come from."""
        return self.lease.request.user or self.peer or self.lease.request.source.value


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request for `subject` waits, or would. `estimate_s`: how long yet, were the order to stay."""

    subject: str
    waiting: tuple[WaitingRequest, ...]  # the foremost of those concerned
    devices: tuple[DeviceReason, ...]
    estimate_s: float | None = None
    waiting_more: int = 0  # concerned too, further behind
    limits: tuple[str, ...] = ()  # why it gets no device at all, whatever each of them does


@contextlib.contextmanager
def view_when(devices: Fleet, name: str, fits: Callable[[Life], bool]) -> Iterator[asyncio.Future[DeviceView]]:
    """A future that is done as soon as the life of the phone `name` is one that fits."""
    found: asyncio.Future[DeviceView] = asyncio.get_running_loop().create_future()

    def check(view: DeviceView) -> None:
        if view.name == name and fits(view.life) and not found.done():
            found.set_result(view)

    unsubscribe = devices.subscribe(check)
    try:
        for view in devices.views():
            check(view)
        yield found
    finally:
        unsubscribe()
