"""Memory that is free again goes back to the host."""

import asyncio
from types import SimpleNamespace

from farm.daemon import monitoring
from tests.support.waiting import until


async def test_a_daemon_that_has_grown_returns_what_is_free(monkeypatch):
    used, trims = [100 << 20], []

    def trim(pad):
        trims.append((pad, used[0]))
        used[0] = 100 << 20

    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=used[0]))
    monkeypatch.setattr(monitoring.psutil, "Process", lambda: process)
    monkeypatch.setattr(monitoring.ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=trim))
    monkeypatch.setattr(monitoring, "TRIM_EVERY_S", 0)
    running = asyncio.create_task(monitoring.return_memory())
    await until(lambda: len(trims) == 1)
    used[0] = 110 << 20  # too little
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(trims) == 1
    used[0] = 200 << 20
    await until(lambda: len(trims) == 2)
    assert trims == [(0, 100 << 20), (0, 200 << 20)]
    running.cancel()
