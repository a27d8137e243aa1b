"""Who wants another bundle on a phone waits until it is ready with it, or hears why it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.bundle.manifest import Bundle
from farm.core import lifecycle_messages as m
from farm.core.device import Life
from farm.core.errors import NoSuchDeviceError
from farm.core.lifecycle import Lifecycle
from farm.core.lifecycle_state import DeviceState
from farm.fleet.lending import BundleNotTakenError, Lending

B = Bundle("new", "2" * 64, "x86_64", (), Path("files"), "default", (), "0.27.0", False)
READY = DeviceState(Life.READY, adopted=True, identified=True, generation=5, follow=4, bundle="1" * 64)


class Phone:
    """An agent whose work is answered by the test, and the board that shows it."""

    serial, name = "S1", "unit"

    def __init__(self) -> None:
        self._life = Lifecycle(READY)
        self.listening: list[Callable[[Any], None]] = []
        self.lending = Lending(self.find, self.subscribe)  # type: ignore[arg-type]

    @property
    def state(self) -> DeviceState:
        return self._life.state

    def find(self, name: str) -> Phone:
        if name != self.name:
            raise NoSuchDeviceError(f"there is no device {name}")
        return self

    def subscribe(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        self.listening.append(callback)
        return lambda: self.listening.remove(callback)

    def lend(self, bundle: Bundle) -> None:
        self.tell(m.BundleWanted(bundle.hash))

    def tell(self, event: m.Event) -> None:
        self._life.handle(event, 0.0)
        for callback in self.listening:
            callback(SimpleNamespace(serial=self.serial))


@pytest.fixture
async def phone() -> Phone:
    return Phone()


async def asked(phone: Phone) -> asyncio.Task[None]:
    waiting = asyncio.create_task(phone.lending.use("unit", B))
    await asyncio.sleep(0)
    assert phone.state.lent == B.hash
    return waiting


async def test_it_is_there_when_the_check_is_passed(phone: Phone) -> None:
    waiting = await asked(phone)
    phone.tell(m.Provisioned(phone.state.generation, B.hash))
    phone.tell(m.ServerStarted(phone.state.generation))
    await asyncio.sleep(0)
    assert not waiting.done()
    phone.tell(m.CheckPassed(phone.state.generation))
    await waiting
    assert phone.listening == []
    await phone.lending.use("unit", B)  # it is there already


async def test_why_it_was_not_taken_is_said(phone: Phone) -> None:
    waiting = await asked(phone)
    phone.tell(m.ProvisionFailed(phone.state.generation, "no space left"))
    with pytest.raises(BundleNotTakenError, match="unit does not run with bundle new: no space left"):
        await waiting
    assert phone.listening == []


async def test_who_waits_does_not_outlast_the_loan(phone: Phone) -> None:
    waiting = await asked(phone)
    phone.lending.give_back("unit")
    with pytest.raises(BundleNotTakenError, match="it was given back meanwhile"):
        await waiting


async def test_another_bundle_ends_the_wait_for_this_one(phone: Phone) -> None:
    waiting = await asked(phone)
    phone.lend(replace(B, hash="3" * 64))
    with pytest.raises(BundleNotTakenError):
        await waiting


async def test_a_phone_that_is_gone_takes_none(phone: Phone) -> None:
    phone.tell(m.Unlisted())
    with pytest.raises(BundleNotTakenError, match="not listed by adb"):
        await phone.lending.use("unit", B)
    with pytest.raises(NoSuchDeviceError):
        await phone.lending.use("other", B)
    phone.lending.give_back("forgotten")
