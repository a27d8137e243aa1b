"""Leasing over fake phones, for the tests of leases."""

from __future__ import annotations

import asyncio

from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head.model import LeasePolicy
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from tests.support.keeping import MemoryKeeper
from tests.support.local_head import leasing_over, requests_of
from tests.support.tvm import FakeDevices

ANDROID = LeaseRequest(Selector.parse("android"), "alice", LeaseSource.JOB)


class Lab:
    """Leasing over fake phones and a store whose commits may be held back (`keeper.gate`) or refused (`.full`)."""

    def __init__(self, *phones: str, policy: LeasePolicy | None = None) -> None:
        self.devices = FakeDevices()
        for phone in phones:
            self.devices.add(phone, "android")
        self.events = EventLog()
        self.keeper = MemoryKeeper()
        self.leasing = leasing_over(self.devices, self.events, 5, self.keeper, policy)
        self.got: list[Lease] = []

    def ask(self, request: LeaseRequest = ANDROID) -> str:
        return self.leasing.ask(request, self.got.append)

    async def lease(self, request: LeaseRequest = ANDROID) -> Lease:
        return await self.leasing.acquire(request)

    def why_first(self) -> str:
        (waiting,) = requests_of(self.leasing).waiting(1)
        return requests_of(self.leasing).why([waiting.id])[waiting.id]

    def told(self) -> list[str]:
        return [event.kind for event in self.events.since()]

    def open_rows(self) -> list[tuple[str, str]]:
        return [(row.device, row.id) for row in self.keeper.open()]


async def settle() -> None:
    """What is ready to run has run."""
    for _ in range(8):
        await asyncio.sleep(0)
