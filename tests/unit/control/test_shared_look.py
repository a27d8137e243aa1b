"""What costs something is done once for whoever asks, however many ask; `doctor` and `bundle.verify` are such."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from farm.common.errors import UserError
from farm.common.tasks import SharedCall
from farm.control.verbs import doctor as doctor_verbs
from farm.control.verbs import handler
from farm.control.verbs.bundle import BundleVerbs
from farm.control.verbs.doctor import DoctorVerbs
from tests.support.waiting import until


class Looks:
    """Looks that end when they are told to, and are counted."""

    def __init__(self) -> None:
        self.at: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, at: str) -> str:
        self.at.append(at)
        await self.go_on.wait()
        if at == "wrong":
            raise UserError("wrong")
        return f"{at} {len(self.at)}"


def call(**fields: object) -> Any:
    return SimpleNamespace(fields=fields, request=SimpleNamespace(kind="a verb"))


async def test_who_asks_meanwhile_shares_it_and_who_asks_later_for_a_while() -> None:
    now, looks = [0.0], Looks()
    shared = SharedCall(looks, keep_s=5.0, clock=lambda: now[0])
    waiting = [asyncio.ensure_future(shared("a")) for _ in range(40)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # whoever goes away ends it for nobody else
    looks.go_on.set()
    assert set(await asyncio.gather(*waiting[1:])) == {"a 1"}
    now[0] = 4.9
    assert await shared("a") == "a 1"
    now[0] = 5.0
    assert (await shared("a"), await shared("b")) == ("a 2", "b 3")


async def test_a_failure_is_told_to_those_who_wait_and_not_kept() -> None:
    looks = Looks()
    shared = SharedCall(looks, keep_s=5.0)
    waiting = [asyncio.ensure_future(shared("wrong")) for _ in range(3)]
    looks.go_on.set()
    assert [str(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == ["wrong"] * 3
    with pytest.raises(UserError):
        await shared("wrong")
    assert looks.at == ["wrong", "wrong"]


async def test_the_doctor_runs_once_for_simultaneous_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of a viewer read the whole database and started a uhubctl."""
    monkeypatch.setattr(doctor_verbs, "host_findings", lambda _host: [])
    usb = Looks()
    usb.go_on.set()

    async def look_at_usb() -> list[Any]:
        await usb("hubs")
        return []

    verbs = DoctorVerbs(SimpleNamespace(), look_at_usb)  # type: ignore[arg-type]
    assert await asyncio.gather(*(handler(verbs.doctor)(call()) for _ in range(40))) == [{"findings": []}] * 40
    assert usb.at == ["hubs"]


async def test_one_bundle_is_verified_at_a_time_and_once_for_simultaneous_callers() -> None:
    """Forty calls of a viewer took every thread of the daemon."""
    waiting: list[str] = []
    verified: list[str] = []
    go_on = threading.Event()

    class Library:
        def get(self, which: str) -> Any:
            return SimpleNamespace(hash=which[0])

        def verify(self, hash_: str) -> tuple[Any, ...]:
            verified.append(hash_)
            go_on.wait()
            return (SimpleNamespace(file="x", problem="differs"),)

    verbs = BundleVerbs(Library(), *[SimpleNamespace()] * 4)  # type: ignore[arg-type]
    shared = verbs._verified

    def counted(hash_: str) -> Awaitable[Sequence[str]]:
        waiting.append(hash_)
        return shared(hash_)

    verbs._verified = counted  # type: ignore[assignment]
    asked = ["one", "o", "two"] * 20
    calls = asyncio.gather(*(handler(verbs.verify)(call(bundle=which)) for which in asked))
    try:
        await until(lambda: len(waiting) == len(asked) and bool(verified))
        assert len(verified) == 1
    finally:
        go_on.set()
    answers = await calls
    assert [each["name"] for each in answers] == asked
    assert all(each["differences"] == ["x: differs"] for each in answers)
    assert sorted(verified) == ["o", "t"]
