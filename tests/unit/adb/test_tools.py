"""The adapter over adbutils without a phone."""

import asyncio
import threading

import pytest

from farm.adb.errors import AdbTimeout
from farm.adb.tools import PhoneTools


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
