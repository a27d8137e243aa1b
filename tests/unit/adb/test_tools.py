"""The adapter over adbutils without a phone."""

import asyncio
import errno
import itertools
import shutil
import threading
from types import SimpleNamespace

import pytest

from farm.adb import tools as module
from farm.adb.connection import ServerAddress
from farm.adb.errors import AdbTimeout
from farm.adb.tools import LEFT_FREE_BYTES, NoRoomError, PhoneTools, PullTooLargeError


async def test_a_call_that_was_given_up_before_it_began_is_never_made(monkeypatch):
    begun, go_on, made = threading.Semaphore(0), threading.Event(), []

    def run(_address, serial, _work, _sockets):
        made.append(serial)
        begun.release()
        assert go_on.wait(10)

    monkeypatch.setattr("farm.adb.tools._run", run)
    monkeypatch.setattr("farm.adb.tools._THREADS", 1)
    tools = PhoneTools("tcp:127.0.0.1:1")
    first = asyncio.create_task(tools.facts("busy"))
    await asyncio.to_thread(begun.acquire, True, 10)
    with pytest.raises(AdbTimeout):
        await tools.facts("late", timeout_s=0.01)
    go_on.set()
    await first
    await tools.facts("next")
    tools.close()
    assert made == ["busy", "next"]


@pytest.fixture
def pull(monkeypatch, tmp_path):
    """Pulls a file without an end."""
    endless = SimpleNamespace(iter_content=lambda _path: itertools.repeat(bytes(65536)))
    monkeypatch.setattr(module, "_run", lambda _address, _serial, work, _sockets: work(SimpleNamespace(sync=endless)))
    tools = PhoneTools("tcp:127.0.0.1:1")
    yield lambda max_bytes, room=lambda _: None: tools.pull(
        "S", "/dev/zero", tmp_path / "out", max_bytes=max_bytes, room=room
    )
    tools.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_pull_brings_no_more_than_it_may(pull):
    with pytest.raises(PullTooLargeError, match="/dev/zero is larger than 1000000 bytes"):
        await pull(1_000_000)


async def test_a_pull_asks_for_room_before_it_takes_it(pull, tmp_path):
    asked = []

    def room(size_bytes):
        asked.append(size_bytes)
        assert (tmp_path / "out").stat().st_size < sum(asked)
        if len(asked) == 3:
            raise NoRoomError("no room")

    with pytest.raises(NoRoomError, match="no room"):
        await pull(1 << 40, room)
    assert asked == [65536] * 3


async def test_a_pull_leaves_the_disk_some_room(pull, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=LEFT_FREE_BYTES - 1))
    with pytest.raises(NoRoomError, match="nearly full"):
        await pull(1 << 40)


def test_a_full_disk_is_the_hosts_fault():
    def full(_device):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(NoRoomError, match="the farm's disk is full"):
        module._run(ServerAddress.parse("tcp:127.0.0.1:1"), "S", full, [])
