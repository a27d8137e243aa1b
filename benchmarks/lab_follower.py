"""A follower of events in a process of its own: `python -m benchmarks.lab_follower URL SINCE` prints what it sees."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from contextlib import aclosing

from farm.common.events import EventLog
from farm.store.database import Database
from farm.store.engine import server_engine
from farm.store.event_follower import EventFollower
from farm.store.event_history import EventHistory, EventTable
from farm.store.writer import Writer


async def main(url: str, since: int) -> None:
    """Print the number and the subject of each event after `since`, a line each, until killed."""
    engine = server_engine(url)
    own, table = EventLog(), EventTable(Database(engine, Writer(engine)))
    follower = EventFollower(own, table)
    following = asyncio.create_task(follower.run())
    async with aclosing(EventHistory(own, table, follower).follow(since)) as events:
        async for event in events:
            print(event.seq, event.subject, flush=True)
    await following


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
