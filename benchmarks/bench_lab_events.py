"""Events of 24 writers in one PostgreSQL database, and a follower that is killed again and again: it misses none."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from itertools import islice, pairwise

from sqlalchemy import Connection

from benchmarks.harness import Context, Figure
from farm.common.errors import HostError
from farm.common.events import Event
from farm.store.database import Database
from farm.store.engine import server_engine
from farm.store.store import Store
from farm.store.writer import Writer
from tests.support import postgres

WRITERS = 24
COMMITS = 300  # of each
MAX_EVENTS = 3  # of a commit
OPEN_S = 0.005  # at most, a transaction stays open: its events are committed after some with higher numbers
KILLS = 20
LAST = "the last one"


def run(context: Context) -> list[Figure]:
    """How many events the follower lost and saw twice."""
    with postgres.running_server() as server:
        url = postgres.new_database(server)
        store = Store.open(url)
        try:
            return asyncio.run(_measure(url, store, context))
        finally:
            store.close()


async def _measure(url: str, store: Store, context: Context) -> list[Figure]:
    context.say(f"{WRITERS} writers of {COMMITS} commits each; the follower is killed {KILLS} times")
    seen: list[tuple[int, str]] = []
    following = asyncio.create_task(asyncio.to_thread(_follow, url, seen))
    begun_s = time.monotonic()
    written = [subject for some in await asyncio.gather(*(_write(url, n) for n in range(WRITERS))) for subject in some]
    took_s = time.monotonic() - begun_s
    await store.events.add([_event(LAST)])
    kills = await following
    counts = Counter(subject for _, subject in seen)
    lost = sum(subject not in counts for subject in written)
    doubled = sum(count - 1 for count in counts.values())
    disordered = sum(later <= earlier for (earlier, _), (later, _) in pairwise(seen))
    return [
        Figure("events", len(written), ""),
        Figure("events written", len(written) / took_s, "1/s"),
        Figure("follower killed", kills, "times", None, f"{KILLS}", kills == KILLS),
        Figure("events lost", lost, "", None, "0", lost == 0),
        Figure("events doubled", doubled, "", None, "0", doubled == 0),
        Figure("events out of order", disordered, "", None, "0", disordered == 0),
    ]


async def _write(url: str, number: int) -> list[str]:
    """The subjects of what one writer has committed."""
    chance = random.Random(number)
    engine = server_engine(url)
    database = Database(engine, Writer(engine))
    written = list[str]()
    try:
        for commit in range(COMMITS):
            subjects = [f"{number}.{commit}.{n}" for n in range(chance.randint(1, MAX_EVENTS))]
            change = partial(_stay_open, seconds=chance.choice((0.0, chance.random() * OPEN_S)))
            await database.write(change, [_event(subject) for subject in subjects])
            written += subjects
    finally:
        database.close()
    return written


def _stay_open(connection: Connection, seconds: float) -> None:
    """Take the transaction's number, and some time before the events are written."""
    connection.exec_driver_sql(f"SELECT pg_current_xact_id(), pg_sleep({seconds})")


def _event(subject: str) -> Event:
    return Event(0, datetime.now(UTC), "device.ready", subject)


def _follow(url: str, seen: list[tuple[int, str]]) -> int:
    """Run followers until one has seen the last event; returns how often one was killed before."""
    chance, kills = random.Random(0), 0
    share = WRITERS * COMMITS // (KILLS + 2)  # of the events: it is killed while they are written
    while not _follow_some(url, seen, chance.randint(1, share) if kills < KILLS else sys.maxsize):
        kills += 1
    return kills


def _follow_some(url: str, seen: list[tuple[int, str]], most: int) -> bool:
    """Run a follower after what was seen, and kill it after `most` events; whether it has seen the last one."""
    since = seen[-1][0] if seen else 0
    command = (sys.executable, "-m", "benchmarks.lab_follower", url, str(since))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        try:
            for line in islice(follower.stdout, most):
                number, _, subject = line.rstrip("\n").partition(" ")
                if subject == LAST:
                    return True
                seen.append((int(number), subject))
            if follower.poll() is not None:
                raise HostError(f"the follower ended by itself after event {since}")
        finally:
            follower.kill()
    return False
