"""Leasing over fake phones, for the tests of leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head.model import LeasePolicy
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.model.sessions import Peer
from tests.support.keeping import MemoryKeeper
from tests.support.local_head import leasing_over, requests_of
from tests.support.tvm import FakeDevices

ANDROID = LeaseRequest(Selector.parse("android"), "alice", LeaseSource.JOB)
PEER = Peer("127.0.0.1", 1, "alice")


class RealClocks:
    """Those of this host."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wall() -> datetime:
        return datetime.now(UTC)


class Clocks:
    """A monotonic clock and one of the wall that a test moves."""

    def __init__(self) -> None:
        self.s = 1000.0
        self.at = datetime(2026, 5, 1, 12, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.s

    def wall(self) -> datetime:
        return self.at

    def pass_(self, seconds: float) -> None:
        self.s += seconds
        self.at += timedelta(seconds=seconds)


class Lab:
    """Leasing over fake phones and a store whose commits may be held back (`keeper.gate`) or refused (`.full`)."""

    def __init__(
        self,
        *phones: str,
        policy: LeasePolicy | None = None,
        table: Any = None,
        epoch: int = 5,
        clocks: Any = RealClocks,
    ) -> None:
        """`table`: leases in a real store, in place of `keeper`."""
        self.devices = FakeDevices()
        for phone in phones:
            self.devices.add(phone, "android")
        self.events = EventLog(epoch)
        self.keeper = MemoryKeeper()
        self.leasing = leasing_over(
            self.devices, self.events, epoch, table or self.keeper, policy, clock=clocks.monotonic, wall=clocks.wall
        )
        self.requests = requests_of(self.leasing)
        self.got: list[Lease] = []
        self.cuts: list[str] = []

    def ask(self, request: LeaseRequest = ANDROID) -> str:
        return self.leasing.ask(request, self.got.append)

    async def lease(self, request: LeaseRequest = ANDROID, **changes: Any) -> Lease:
        return await self.leasing.acquire(replace(request, **changes))

    def want(self, text: str = "android", priority: int = 1, **changes: Any) -> asyncio.Task[Lease]:
        """A request for phones of this selector that waits."""
        request = replace(ANDROID, selector=Selector.parse(text), priority=priority, **changes)
        return asyncio.ensure_future(self.leasing.acquire(request))

    async def open(self, key: str) -> Any:
        """A session under a key; `cuts` has why it is cut."""
        return await self.leasing.tvm.open(key, PEER, 1.0, self.cuts.append)

    def why(self, request_id: str) -> str:
        return self.requests.why([request_id])[request_id]

    def why_first(self) -> str:
        (waiting,) = self.requests.waiting(1)
        return self.why(waiting.id)

    def waiting(self) -> list[LeaseRequest]:
        return [each.request for each in self.requests.waiting()]

    def holders(self) -> tuple[Any, ...]:
        return self.leasing.active.holders()

    def told(self) -> list[str]:
        return [event.kind for event in self.events.since()]

    def open_rows(self) -> list[tuple[str, str]]:
        return [(row.device, row.id) for row in self.keeper.open()]

    @contextmanager
    def slow_store(self) -> Iterator[None]:
        """Commits wait until the block ends."""
        self.keeper.gate.clear()
        try:
            yield
        finally:
            self.keeper.gate.set()


async def settle() -> None:
    """What is ready to run has run."""
    for _ in range(8):
        await asyncio.sleep(0)
