"""What costs something is done once for whoever asks, however many ask; `doctor` and `bundle.verify` are such."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from farm.common.errors import UserError
from farm.common.tasks import SharedCall
from farm.control.server import handler
from farm.control.verbs import doctor as doctor_verbs
from farm.control.verbs import store as store_verbs
from farm.control.verbs.bundle import ADDS_AT_ONCE, BundleVerbs
from farm.control.verbs.doctor import DoctorVerbs
from farm.control.verbs.store import StoreVerbs
from tests.support.waiting import HANG_S, until


class Looks:
    """Looks that end when they are told to, and are counted."""

    def __init__(self):
        self.at = []
        self.go_on = asyncio.Event()

    async def __call__(self, at):
        self.at.append(at)
        await self.go_on.wait()
        if at == "wrong":
            raise UserError("wrong")
        return f"{at} {len(self.at)}"


def call(**fields):
    async def progress(**_):
        pass

    return SimpleNamespace(fields=fields, request=SimpleNamespace(kind="a verb"), progress=progress)


async def test_who_asks_meanwhile_shares_it_and_who_asks_later_for_a_while():
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


async def test_a_failure_is_told_to_those_who_wait_and_not_kept():
    looks = Looks()
    shared = SharedCall(looks, keep_s=5.0)
    waiting = [asyncio.ensure_future(shared("wrong")) for _ in range(3)]
    looks.go_on.set()
    assert [str(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == ["wrong"] * 3
    with pytest.raises(UserError):
        await shared("wrong")
    assert looks.at == ["wrong", "wrong"]


async def test_the_doctor_runs_once_for_simultaneous_callers(monkeypatch):
    """Each call of a viewer read the whole database and started a uhubctl."""
    monkeypatch.setattr(doctor_verbs, "host_findings", lambda _host: [])
    usb = Looks()
    usb.go_on.set()

    async def look_at_usb():
        await usb("hubs")
        return []

    verbs = DoctorVerbs(SimpleNamespace(), look_at_usb)
    assert await asyncio.gather(*(handler(verbs.doctor)(call()) for _ in range(40))) == [{"findings": []}] * 40
    assert usb.at == ["hubs"]


async def test_one_bundle_is_verified_at_a_time_and_once_for_simultaneous_callers():
    """Forty calls of a viewer took every thread of the daemon."""
    waiting = []
    verified = []
    go_on = threading.Event()

    class Library:
        def hash_of(self, which):
            return which[0]

        def verify(self, hash_):
            verified.append(hash_)
            go_on.wait()
            return ("x: differs",)

    verbs = BundleVerbs(Library(), *[SimpleNamespace()] * 5)
    shared = verbs._verified

    def counted(hash_):
        waiting.append(hash_)
        return shared(hash_)

    verbs._verified = counted
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


async def test_six_adds_at_once_leave_threads_to_the_others():
    """Adds took the threads of the default pool, six on two cores, and reads of the store waited behind them."""
    begun = []
    go_on = threading.Event()

    class Library:
        def add(self, _folder, *, name, **_options):
            begun.append(name)
            go_on.wait(HANG_S)
            raise UserError("no folder")

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(6))
    verbs = BundleVerbs(Library(), SimpleNamespace(), lambda _toolchain: None, *[SimpleNamespace()] * 3)
    names = [f"bundle-{number}" for number in range(6)]
    adds = [asyncio.ensure_future(handler(verbs.add)(call(folder="/x", name=name))) for name in names]
    try:
        await until(lambda: len(begun) == ADDS_AT_ONCE)
        for add in adds[:ADDS_AT_ONCE]:
            add.cancel()  # its thread continues
        assert await asyncio.wait_for(asyncio.to_thread(lambda: len(begun)), HANG_S) == ADDS_AT_ONCE
    finally:
        go_on.set()
    ends = await asyncio.gather(*adds, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * ADDS_AT_ONCE + [UserError] * 4


async def test_a_bundle_whose_caller_leaves_is_taken_by_phones_and_shared():
    go_on, taken = threading.Event(), []

    class Library:
        def add(self, _folder, **_options):
            go_on.wait(HANG_S)
            return SimpleNamespace(hash="h")

        def remove(self, name, *, in_use):
            go_on.wait(HANG_S)
            return (name,), True

    class Sharing:
        async def share(self, bundle):
            taken.append(f"{bundle.hash} shared")

        async def withdraw(self, names):
            taken.append(f"{names[0]} withdrawn")

    async def changed(hash_):
        taken.append(hash_)

    rollouts = SimpleNamespace(state=lambda _: {})
    verbs = BundleVerbs(
        Library(), SimpleNamespace(), lambda _toolchain: None, lambda _: "", rollouts, changed, sharing=Sharing()
    )
    calls = [verbs.add(call(), "n", "/x"), verbs.remove("gone")]
    callers = [asyncio.ensure_future(each) for each in calls]
    await asyncio.sleep(0)
    for each in callers:
        each.cancel()
    go_on.set()
    await asyncio.gather(*callers, return_exceptions=True)
    await until(lambda: len(taken) == 4)
    assert sorted(taken) == ["", "gone withdrawn", "h", "h shared"]


async def test_copies_of_the_store_leave_threads_to_the_others(tmp_path, monkeypatch):
    begun = []
    go_on = threading.Event()

    def copied(where):
        begun.append(where)
        go_on.wait(HANG_S)
        return where

    monkeypatch.setattr(store_verbs, "back_up", copied)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    verbs = StoreVerbs(SimpleNamespace(), tmp_path, SimpleNamespace())
    copies = [asyncio.ensure_future(handler(verbs.backup)(call())) for _ in range(3)]
    try:
        await until(lambda: bool(begun))
        assert await asyncio.wait_for(asyncio.to_thread(lambda: len(begun)), HANG_S) == 1
    finally:
        go_on.set()
    assert len(await asyncio.gather(*copies)) == 3
