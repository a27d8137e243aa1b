"""Who is known to have made a phone quiet, and how long its watch is told so; the phone is played by functions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farm.adb.client import AdbClient
from farm.adb.shell import ShellResult
from farm.common.errors import NoSuchDeviceError
from farm.devices.agent import Agent
from farm.devices.quiesce import QuiesceController
from farm.devices.quiesce_policy import Level
from tests.support.waiting import HANG_S


class Phones:
    """One phone that may be renamed, and what its shell was asked."""

    def __init__(self) -> None:
        self.name = "pixel"
        self.asked: list[str] = []
        self.seconds: list[str] = []  # the last word of each
        self.renewed = asyncio.Event()

    def find(self, name: str) -> Agent:
        if name != self.name:
            raise NoSuchDeviceError(f"there is no device {name!r}")
        return cast(Agent, SimpleNamespace(name=name, serial="58db5c20", device=None))

    async def shell(self, serial: str, command: str, timeout_s: float) -> Any:
        assert serial == "58db5c20"
        order = command.partition("quiesce.sh ")[2].split()[0]
        self.asked.append(order)
        self.seconds.append(command.rsplit(maxsplit=1)[-1])
        if order == "renew":
            self.renewed.set()
        said = {
            "begin": f"begun {command.split()[3]}\n",
            "renew": "renewed\n",
            "end": "restored display=Asleep\nended\n",
        }[order]
        return ShellResult(said.encode(), b"", 0)


async def test_a_phone_that_is_renamed_while_it_is_quiet_stays_so_and_is_changed_back() -> None:
    phones = Phones()
    quiet = QuiesceController(cast(AdbClient, phones), phones.find)
    await quiet.begin("pixel", Level.GENTLE, "lease-1", restore_after_s=0.03)
    assert set(quiet.owners) == {"58db5c20"}
    phones.name, phones.renewed = "pixel-2", asyncio.Event()
    async with asyncio.timeout(HANG_S):
        await phones.renewed.wait()
    assert (await quiet.end("pixel", "lease-1")).restored == ("display=Asleep",)
    assert not quiet.owners


async def test_a_phone_that_left_its_lease_under_another_name_is_nobodys() -> None:
    phones = Phones()
    quiet = QuiesceController(cast(AdbClient, phones), phones.find)
    await quiet.begin("pixel", Level.GENTLE, "lease-1", restore_after_s=300)
    phones.name = "pixel-2"
    quiet.leave("pixel")
    assert not quiet.owners
    quiet.close()
    assert phones.asked == ["begin"]


@pytest.mark.parametrize(("level", "asked"), [(Level.GENTLE, ["begin 300"]), (Level.FULL, ["begin 60", "renew 300"])])
async def test_a_level_that_may_cut_the_link_lasts_only_if_farm_still_reaches_the_phone(
    level: Level, asked: list[str]
) -> None:
    phones = Phones()
    quiet = QuiesceController(cast(AdbClient, phones), phones.find)
    await quiet.begin("pixel", level, "lease-1", restore_after_s=300)
    quiet.close()
    assert [f"{order} {seconds}" for order, seconds in zip(phones.asked, phones.seconds, strict=True)] == asked
