"""Leasing with a head in the same process, for tests of leases; jobs and reservations are the tests' own."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from farm.common.events import EventLog
from farm.head.local import LocalHead
from farm.head.model import LeasePolicy
from farm.head.request_queue import RequestQueue
from farm.head.write_queue import LeaseWriteQueue
from farm.leasing.leases import Leasing


def leasing_over(
    devices: Any,
    events: EventLog,
    epoch: int,
    table: Any,
    policy: LeasePolicy | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Leasing:
    """As the daemon opens it."""
    writes, policy = LeaseWriteQueue(events), policy or LeasePolicy()
    requests = RequestQueue(writes, table, epoch, policy, clock, wall)
    head = LocalHead(requests, cast("Any", None), cast("Any", None))
    return Leasing(devices, events, epoch, table, policy, head=head, writes=writes, clock=clock, wall=wall)


def requests_of(leasing: Leasing) -> RequestQueue:
    """The requests at its head."""
    assert isinstance(leasing.head, LocalHead)
    return leasing.head.requests


def store_problem(leasing: Leasing, *, failing: bool) -> None:
    """The store cannot write, or it can again."""
    leasing.store_problem(failing)
    requests_of(leasing).store_problem(failing)
