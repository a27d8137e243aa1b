"""Records of the head: the policy of leases, waiting requests, and explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.common.selector import normalise
from farm.head.allocator.model import AllocatorPolicy, DeviceReason
from farm.head.config import UserConfig
from farm.model.requests import LeaseClass, LeaseRequest


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
        """This user's limits."""
        return self.users.get(user, self.quota)

    def class_of(self, key: str) -> LeaseClass:
        """The class of requests for a stock TVM key."""
        return self.tvm_class.get(normalise(key), LeaseClass.INTERACTIVE)


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits, for status and explain."""

    id: str
    request: LeaseRequest
    waited_s: float
    why: str = ""  # one sentence, in an explanation that is not about this very request


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request for `subject` waits, or what one made now would get."""

    subject: str
    waiting: tuple[WaitingRequest, ...]  # the foremost of those concerned
    devices: tuple[DeviceReason, ...]
    estimate_s: float | None = None  # until the foremost for exactly `subject` is served, were the order to stay
    waiting_more: int = 0  # concerned too, further behind
    limits: tuple[str, ...] = ()  # why it gets no device at all, whatever each of them does


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """Why a job does not run."""

    waits: str = ""  # one sentence, when it has no request for a phone; "" when it runs or has ended
    request: Explanation | None = None  # why its request for a phone waits; None: it has none


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """Requests without a device, in the order they would be served."""

    foremost: tuple[WaitingRequest, ...]
    more: int = 0  # that wait behind them
