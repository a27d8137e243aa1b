"""Two daemons over one PostgreSQL: at any time one of them may grant, whichever is stopped and wakes up whenever."""

import signal
import subprocess
import sys
import threading

import psycopg

from farm.common.errors import Code
from farm.store import schema, term
from farm.store.database import values_of
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.unit.store.values import lease

ROUNDS = 4
GRANTS = """
import asyncio, sys
from functools import partial
from itertools import count
from farm.common.errors import FarmError
from farm.store import schema, term
from farm.store.database import values_of
from farm.store.database import WriteRetrier
from farm.store.store import Store
from tests.unit.store.values import NOW, lease

term.TERM_S, term.RENEWED_EVERY_S = 1.0, 0.2

async def serve():
    store = Store.open(sys.argv[1])
    await asyncio.gather(store.database.writer.lost(), grant(store))

async def grant(store):
    for left in store.leases.open():
        await store.leases.end(left.id, ended_at=NOW, reason="taken over", held_s=0.0)
    retrier = WriteRetrier()
    store.on_problem(retrier.on_store_problem)
    for fence in count((store.epoch << 32) + 1):
        await retrier.write(lambda: store.leases.grant(lease(fence, "p1")), "a grant")
        if fence & 0xF == 1:
            print(store.epoch, flush=True)
        end = partial(store.leases.end, f"l{fence}", ended_at=NOW, reason="over", held_s=0.0)
        await retrier.write(end, "an end")

try:
    asyncio.run(serve())
except FarmError as error:
    print(error.message, flush=True)
"""


def begin(url):
    return subprocess.Popen([sys.executable, "-c", GRANTS, url], stdout=subprocess.PIPE, text=True)


def newest(url, number):
    """The highest fence of a term."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT max(fence) FROM lease WHERE fence >> 32 = %s", (number,)).fetchone()
        return row[0]


def test_a_daemon_that_was_stopped_grants_nothing_when_it_wakes_up(new_database):
    url = new_database()
    granting = [begin(url)]
    try:
        for number in range(1, ROUNDS + 1):
            stopped = granting[-1]
            for _ in range(number):  # it is stopped at another moment each time
                assert stopped.stdout.readline() == f"{number}\n"
            stopped.send_signal(signal.SIGSTOP)
            granting.append(begin(url))
            assert granting[-1].stdout.readline() == f"{number + 1}\n"
            last = newest(url, number)
            stopped.send_signal(signal.SIGCONT)
            *_, said = stopped.stdout
            assert said == "another daemon has taken over the database\n"
            assert granting[-1].stdout.readline() == f"{number + 1}\n"
            assert newest(url, number) == last
    finally:
        for each in granting:
            each.kill()
            each.communicate()


async def test_a_daemon_hears_that_its_term_is_over(new_database, monkeypatch):
    monkeypatch.setattr(term, "TERM_S", 0.1)
    monkeypatch.setattr(term, "RENEWED_EVERY_S", 1000.0)
    url = new_database()
    first = Store.open(url)
    monkeypatch.setattr(term, "RENEWED_EVERY_S", 0.01)
    second = Store.open(url)
    assert second.epoch == first.epoch + 1
    with raises_code(Code.DATABASE_UNUSABLE, match="another daemon has taken over"):
        await first.leases.grant(lease(1, "p1"))
    await second.leases.grant(lease(2, "p1"))
    first.close()
    assert [each.fence for each in second.leases.open()] == [2]
    second.close()


def test_a_term_that_is_renewed_is_not_taken(new_database, monkeypatch):
    monkeypatch.setattr(term, "TERM_S", 1.0)
    monkeypatch.setattr(term, "RENEWED_EVERY_S", 0.05)
    url = new_database()
    first = Store.open(url)
    with raises_code(Code.DATABASE_UNUSABLE, match="another daemon serves from the database"):
        Store.open(url)
    leaving = threading.Timer(0.0, first.close)
    leaving.start()
    leaving.join()
    second = Store.open(url)
    assert second.epoch == first.epoch + 1
    second.close()


async def test_who_serves_learns_that_the_term_is_over(new_database, monkeypatch):
    monkeypatch.setattr(term, "RENEWED_EVERY_S", 0.05)
    url = new_database()
    store = Store.open(url)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    with raises_code(Code.DATABASE_UNUSABLE, match="another daemon has taken over"):
        await store.term.lost()
    store.close()


async def test_who_writes_learns_that_the_term_is_over(new_database, monkeypatch):
    monkeypatch.setattr(term, "RENEWED_EVERY_S", 1000.0)
    url = new_database()
    store = Store.open(url)
    await store.leases.grant(lease(1, "p1"))
    runs = []
    with raises_code(Code.STORE_CONFLICT):
        await store.database.write(runs.append, appended=[(schema.lease, {**values_of(lease(2, "p1")), "selector": 1})])
    assert len(runs) == 1
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    for device in ("p1", "p2"):  # the first is refused for another reason, too
        with raises_code(Code.DATABASE_UNUSABLE, match="another daemon has taken over"):
            await store.leases.grant(lease(3, device))
    with raises_code(Code.DATABASE_UNUSABLE, match="another daemon has taken over"):
        await store.database.writer.lost()
    store.close()


async def test_a_file_has_no_term_to_lose(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    assert store.term is None
    await store.leases.grant(lease(1, "p1"))
    store.close()
