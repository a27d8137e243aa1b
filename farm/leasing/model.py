"""What leasing needs of others, and what it tells them: protocols, policy, errors and status rows."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from farm.core.allocator_events import DeviceReason
from farm.core.device import DeviceView
from farm.core.errors import ExitCode, FarmError, PhoneError, UserError
from farm.core.requests import Lease, LeaseRequest


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


class SessionStuckError(FarmError):
    """A session that was cut has not reported its end."""

    code = "session_stuck"


class NotCheckingError(PhoneError):
    """The device is not being checked."""

    code = "not_checking"


class Devices(Protocol):
    """What leasing needs of the fleet (farm.fleet.fleet.Fleet)."""

    def views(self) -> tuple[DeviceView, ...]:
        """Every device."""

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view; returns the function that ends it."""

    async def dial(self, name: str, timeout_s: float) -> tuple[socket.socket, str]:
        """A non-blocking socket to the phone's RPC server, and that server's key."""

    def report_broken_session(self, name: str, reason: str) -> None:
        """A session ended such that the phone must be cleaned and checked; it leaves READY at once."""


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How long leasing waits."""

    unused_s: float = 5.0  # a TVM grant that nobody dials (DESIGN §5)
    recovery_s: float = (
        60.0  # a job's phone that is mending: cleaning and checking take a second, a reboot ends the lease
    )


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits, for status and explain."""

    id: str
    request: LeaseRequest
    waited_s: float


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a device, for status."""

    lease: Lease
    held_s: float
    session: str = ""  # id of the open session
    peer: str = ""  # address of its client


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request for `subject` waits, or would."""

    subject: str
    waiting: tuple[WaitingRequest, ...]
    devices: tuple[DeviceReason, ...]
