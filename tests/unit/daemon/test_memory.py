"""Memory that is free again goes back to the host."""

import asyncio
from types import SimpleNamespace

from farm.daemon import monitoring
from tests.support.waiting import until


async def test_what_is_freed_after_the_daemon_has_grown_goes_back_too(monkeypatch):
    free, returned = [30], []  # the burst continues when memory is first returned

    def trim(pad):
        returned.append(free[0])
        free[0] = 0

    monkeypatch.setattr(monitoring.ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=trim))
    monkeypatch.setattr(monitoring, "TRIM_EVERY_S", 0)
    running = asyncio.create_task(monitoring.return_memory())
    await until(lambda: returned)
    free[0] = 20  # its callers have gone; the daemon's size does not change by that
    await until(lambda: sum(returned) == 50)
    running.cancel()
