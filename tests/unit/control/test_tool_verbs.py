"""Reaching into a phone that somebody holds."""

import asyncio
import hashlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from farm.common.errors import NotAllowedError
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Caller, LocalPeer, Role
from farm.control.limits import BusyError
from farm.control.messages import Request
from farm.control.server import ControlCall, handler
from farm.control.verbs import device as device_verbs
from farm.control.verbs.device import ToolVerbs
from farm.model.requests import LeaseRequest, LeaseSource
from tests.support.keeping import MemoryKeeper
from tests.support.local_head import leasing_over
from tests.support.tvm import FakeDevices
from tests.support.waiting import until


@dataclass
class Facts:
    serial: str


class Tools:
    """A phone whose every file and screen says the same."""

    async def pull(self, client, serial, remote, local, *, max_bytes, room):
        room(7)
        local.write_bytes(b"content")
        return 7

    async def screenshot(self, client, serial, local):
        local.write_bytes(b"content")
        return 1, 1

    async def facts(self, client, serial):
        return Facts(serial)

    async def install(self, client, serial, local):
        assert local.read_bytes() == b"content"


class Shells:
    """A phone whose probe says how long it has been up."""

    async def open_shell(self, serial, command, *, timeout_s):
        said = [b"==farm:boot\nboot_id=b-1\n/proc/uptime=42.5 80.0\n==farm:end\n"]

        @asynccontextmanager
        async def stream():
            async def read(*, timeout_s):
                return said.pop() if said else b""

            async def close_stdin():
                pass

            yield SimpleNamespace(read=read, close_stdin=close_stdin)

        return stream()


async def ask(verb, user, role, **fields):
    peer = LocalPeer(1, 1, 1)
    return await handler(verb)(
        ControlCall(Request("r", "kind", fields), peer, None, caller=Caller(user, role, peer.origin, peer))
    )


@pytest.fixture
async def held(tmp_path, monkeypatch):
    """Phone `a`, which alice holds."""
    monkeypatch.setattr(device_verbs, "tools", Tools())
    devices = FakeDevices()
    devices.add("a", "android")
    leasing = leasing_over(devices, EventLog(), 1, MemoryKeeper())
    await leasing.acquire(LeaseRequest(Selector.parse("android"), "alice", LeaseSource.JOB))
    view = SimpleNamespace(name="a", serial="S", adopted=True)
    artifacts = ArtifactFolder(tmp_path)
    yield ToolVerbs(SimpleNamespace(adopted_view=lambda _: view), leasing, artifacts, Shells()), artifacts
    await leasing.close()


@pytest.mark.parametrize("verb", ["pull", "screenshot"])
async def test_a_held_phones_files_and_screen_are_its_holders(held, verb, tmp_path):
    verbs, artifacts = held
    fields = {"device": "a"} | ({"path": "/x"} if verb == "pull" else {})
    with pytest.raises(NotAllowedError, match="alice holds a"):
        await ask(getattr(verbs, verb), "bob", Role.USER, **fields)
    assert artifacts.used_bytes == 0
    for user, role in (("alice", Role.USER), ("bob", Role.OPERATOR)):
        answer = await ask(getattr(verbs, verb), user, role, **fields)
        assert answer["artifact"] == hashlib.sha256(b"content").hexdigest()
        assert artifacts.path(answer["artifact"]).read_bytes() == b"content"
    assert artifacts.used_bytes == 7
    assert list((tmp_path / "partial").iterdir()) == []


@pytest.fixture
async def slow(tmp_path, monkeypatch):
    """Phone `a`, which nobody holds, with files that come when a test lets them; `under_way`: pulls, `most` at once."""
    monkeypatch.setattr(device_verbs, "CHECK_EVERY_S", 0.01)
    devices, under_way = FakeDevices(), []
    devices.add("a", "android")
    leasing = leasing_over(devices, EventLog(), 1, MemoryKeeper())

    class Slow(Tools):
        async def pull(self, client, serial, remote, local, *, max_bytes, room):
            under_way.append(remote)
            self.most = max(self.most, len(under_way))
            try:
                await until(lambda: remote in self.let)
            finally:
                under_way.remove(remote)
            return await super().pull(client, serial, remote, local, max_bytes=max_bytes, room=room)

    tools = Slow()
    tools.let, tools.most = set(), 0
    monkeypatch.setattr(device_verbs, "tools", tools)
    fleet = SimpleNamespace(adopted_view=lambda name: SimpleNamespace(name=name, serial=f"S{name}", adopted=True))
    verbs = ToolVerbs(fleet, leasing, ArtifactFolder(tmp_path), Shells())
    yield SimpleNamespace(verbs=verbs, leasing=leasing, under_way=under_way, tools=tools)
    await leasing.close()


async def test_a_file_that_waits_long_for_the_one_before_it_is_refused(slow, monkeypatch):
    monkeypatch.setattr(device_verbs, "TURN_LIMIT_S", 0.05)
    first = asyncio.create_task(ask(slow.verbs.pull, "mallory", Role.USER, device="a", path="/1"))
    await until(lambda: slow.under_way)
    for user, phone in (("mallory", "b"), ("ann", "a")):
        with pytest.raises(BusyError, match="copied for more than"):
            await ask(slow.verbs.pull, user, Role.USER, device=phone, path="/2")
    slow.tools.let.update(("/1", "/2"))
    await first
    await ask(slow.verbs.pull, "mallory", Role.USER, device="b", path="/2")


@pytest.mark.parametrize(("users", "phones"), [(["mallory"] * 4, "abab"), (["mallory", "ann", "ann", "bob"], "aaaa")])
async def test_files_come_one_at_a_time_of_a_user_and_of_a_phone(slow, users, phones):
    """Twelve at once were eleven times the disk that artifacts may take."""
    pulls = [
        asyncio.create_task(ask(slow.verbs.pull, user, Role.USER, device=phone, path=f"/{number}"))
        for number, (user, phone) in enumerate(zip(users, phones, strict=True))
    ]
    for _ in pulls:
        await until(lambda: slow.under_way)
        one = slow.under_way[0]
        slow.tools.let.add(one)
        await pulls[int(one[1:])]
    assert slow.tools.most == 1


async def test_a_pull_ends_when_another_user_gets_the_phone(slow, tmp_path):
    pull = asyncio.create_task(ask(slow.verbs.pull, "mallory", Role.USER, device="a", path="/big"))
    await until(lambda: slow.under_way)
    await slow.leasing.acquire(LeaseRequest(Selector.parse("android"), "ann", LeaseSource.JOB))
    with pytest.raises(NotAllowedError, match="ann holds a"):
        await pull
    assert slow.under_way == []
    assert list((tmp_path / "partial").iterdir()) == []


async def test_adb_output_is_read_from_a_phone_without_another_users_lease(held):
    """It starts shells, which whoever measures there would see in the numbers."""
    verbs, _ = held
    with pytest.raises(NotAllowedError, match="alice holds a"):
        await ask(verbs.facts, "bob", Role.USER, device="a")
    assert await ask(verbs.facts, "alice", Role.USER, device="a") == {"serial": "S"}


async def test_installing_on_a_held_phone_is_for_operators(held):
    verbs, artifacts = held
    package = artifacts.add(b"content")
    with pytest.raises(NotAllowedError, match="alice holds a"):
        await ask(verbs.install, "bob", Role.USER, device="a", package=package, name="x.apk")
    answer = await ask(verbs.install, "bob", Role.OPERATOR, device="a", package=package, name="x.apk")
    assert answer == {"device": "a", "name": "x.apk"}


async def test_a_probe_is_for_who_holds_the_phone_and_comes_raw_and_read(held):
    verbs, _ = held
    with pytest.raises(NotAllowedError, match="alice holds a"):
        await ask(verbs.probe, "bob", Role.USER, device="a")
    answer = await ask(verbs.probe, "alice", Role.USER, device="a")
    assert answer["probe"].startswith("==farm:boot\nboot_id=b-1\n")
    assert (answer["health"]["boot_id"], answer["health"]["uptime_s"]) == ("b-1", 42.5)
