"""A running watcher and everything it told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from farm.adb.client import AdbClient
from farm.adb.watch import DeviceWatcher, Snapshot, WatchEvent
from farm.adb.watch_policy import WatchPolicy
from tests.support.waiting import HANG_S


class Seen:
    """What a watcher told, with a way to wait for it."""

    def __init__(self) -> None:
        self.news: list[WatchEvent] = []
        self.snapshots: list[Snapshot] = []
        self._more = asyncio.Event()

    def add_news(self, news: WatchEvent) -> None:
        self.news.append(news)
        self._more.set()

    def add_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        self._more.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not condition():
                self._more.clear()
                await self._more.wait()

    @property
    def kinds(self) -> list[str]:
        return [news.kind for news in self.news]


@contextlib.asynccontextmanager
async def watching(
    client: AdbClient, policy: WatchPolicy, **options: object
) -> AsyncIterator[tuple[DeviceWatcher, Seen]]:
    seen = Seen()
    watcher = DeviceWatcher(
        client,
        on_event=seen.add_news,
        policy=policy,
        **options,  # type: ignore[arg-type]
    )

    async def follow() -> None:
        async for snapshot in watcher.snapshots():
            seen.add_snapshot(snapshot)

    tasks = [asyncio.create_task(watcher.run()), asyncio.create_task(follow())]
    try:
        yield watcher, seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
