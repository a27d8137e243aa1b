"""A running watcher and everything it told."""

import asyncio
import contextlib

from farm.adb.watch import DeviceWatcher
from tests.support.waiting import HANG_S


class Seen:
    """What a watcher told, with a way to wait for it."""

    def __init__(self):
        self.news = []
        self.snapshots = []
        self._more = asyncio.Event()

    def add_news(self, news):
        self.news.append(news)
        self._more.set()

    def add_snapshot(self, snapshot):
        self.snapshots.append(snapshot)
        self._more.set()

    async def until(self, condition):
        async with asyncio.timeout(HANG_S):
            while not condition():
                self._more.clear()
                await self._more.wait()

    @property
    def kinds(self):
        return [news.kind for news in self.news]


@contextlib.asynccontextmanager
async def watching(client, policy, **options):
    seen = Seen()
    watcher = DeviceWatcher(
        client,
        on_event=seen.add_news,
        policy=policy,
        **options,
    )

    async def follow():
        async for snapshot in watcher.snapshots():
            seen.add_snapshot(snapshot)

    tasks = [asyncio.create_task(watcher.run()), asyncio.create_task(follow())]
    try:
        yield watcher, seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
