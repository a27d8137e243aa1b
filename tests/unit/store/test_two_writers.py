"""Two writers of one database that make the same row at the same moment: the second waits, and builds on the first."""

import asyncio
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from farm.model.toolchain import Toolchain
from farm.store.artifacts import PoisonRecord, PoisonTable, RecordSets
from farm.store.database import Database
from farm.store.engine import server_engine
from farm.store.jobs import JobTable, ToolchainTable
from farm.store.writer import Writer
from tests.support.waiting import until
from tests.unit.store.values import NOW, job

WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


@pytest.fixture
def both(server_store):
    engine = server_engine(server_store.database.engine.url.render_as_string(hide_password=False))
    with closing(Database(engine, Writer(engine))) as other:
        yield server_store.database, other


async def at_the_same_moment(both, write):
    """What `write` returned to each: the first does not commit before the other one waits for it."""
    first, second = both
    ready, go_on = threading.Event(), threading.Event()
    commit = first.write

    async def write_late(statement, *args, **kwargs):
        def late(connection):
            value = statement(connection)
            ready.set()
            go_on.wait()
            return value

        return await commit(late, *args, **kwargs)

    first.write = write_late

    def waiting():
        with second.reading() as connection:
            return connection.execute(WAITING).scalar_one() == 1

    begun = asyncio.ensure_future(write(first, 1))
    await until(ready.is_set)
    late = asyncio.ensure_future(write(second, 2))
    try:
        await until(waiting)
    finally:
        go_on.set()
    return await asyncio.gather(begun, late)


async def test_jobs_of_one_new_selector(both):
    added = await at_the_same_moment(both, lambda database, n: JobTable(database).add([job(f"j{n}", selector="new=1")]))
    assert added == [("j1",), ("j2",)]
    assert [each.selector for each in JobTable(both[1]).live()] == ["new=1", "new=1"]


async def test_one_submission(both):
    added = await at_the_same_moment(both, lambda database, n: JobTable(database).add([job(f"j{n}")], key="k"))
    assert added == [("j1",), ("j1",)]
    assert [each.id for each in JobTable(both[1]).live()] == ["j1"]


async def test_one_row_of_a_key(both):
    await at_the_same_moment(both, lambda database, n: ToolchainTable(database).add(Toolchain("t", Path(f"/{n}"))))
    assert ToolchainTable(both[0]).all() == (Toolchain("t", Path("/2")),)


async def test_kills_of_one_artifact_add_up(both):
    def add(database, n):
        at = NOW + timedelta(seconds=n)
        return PoisonTable(database).add(PoisonRecord("a" * 64, "ann", f"kill {n}", "p1", n, 1, at, at, f"j{n}"))

    await at_the_same_moment(both, add)
    [record], _ = PoisonTable(both[0]).all(10)
    assert (record.kills, record.seen, record.what, record.job) == (3, 2, "kill 2", "j2")
    assert (record.first_at, record.last_at) == (NOW + timedelta(seconds=1), NOW + timedelta(seconds=2))


async def test_sets_get_versions_of_their_own(both):
    def save(database, n):
        return RecordSets(database).save(
            model="m", name="net", target="llvm", artifact=str(n) * 64, records=1, best={}, user="ann", job=f"j{n}"
        )

    assert await at_the_same_moment(both, save) == [1, 2]
