"""Two heads over one PostgreSQL: at any time one of them may grant.

Processes that are stopped and wake up: tests/acceptance/head/test_head_process.py.
"""

import pytest

from farm.common.errors import Code
from farm.store import schema, term
from farm.store.database import values_of
from farm.store.server_opening import Standby, TermHeldError
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.postgres import run
from tests.support.waiting import until
from tests.unit.store.values import lease

ANOTHER_STARTS = "UPDATE meta SET value = value + 1 WHERE name = 'epoch'"


@pytest.fixture
def url(new_database):
    return new_database()


def taken_over():
    return raises_code(Code.DATABASE_UNUSABLE, match="another head has taken over")


async def test_a_head_hears_that_its_term_is_over(opened, url, numbers):
    numbers(term, TERM_S=0.1, RENEWED_EVERY_S=1000.0)
    first = opened(url)
    standby = Standby(url)
    await until(lambda: standby.rest_s() <= 0)
    standby.close()
    numbers(term, RENEWED_EVERY_S=0.01)
    second = opened(url)
    assert second.epoch == first.epoch + 1
    with taken_over():
        await first.leases.grant(lease(1, "p1"))
    await second.leases.grant(lease(2, "p1"))
    first.close()
    assert [each.fence for each in second.leases.open()] == [2]


def test_a_term_that_is_renewed_is_not_taken(opened, url, numbers):
    numbers(term, RENEWED_EVERY_S=0.05)
    first = opened(url)
    with pytest.raises(TermHeldError, match="another head decides"):
        Store.open(url)
    first.close()
    assert opened(url).epoch == first.epoch + 1


async def test_who_serves_learns_that_the_term_is_over(opened, url, numbers):
    numbers(term, RENEWED_EVERY_S=0.05)
    store = opened(url)
    run(url, ANOTHER_STARTS)
    with taken_over():
        await store.term.lost()


async def test_who_writes_learns_that_the_term_is_over(opened, url, numbers):
    numbers(term, RENEWED_EVERY_S=1000.0)
    store = opened(url)
    await store.leases.grant(lease(1, "p1"))
    runs = []
    with raises_code(Code.STORE_CONFLICT):
        await store.database.write(runs.append, appended=[(schema.lease, {**values_of(lease(2, "p1")), "selector": 1})])
    assert len(runs) == 1
    run(url, ANOTHER_STARTS)
    for device in ("p1", "p2"):  # the first is refused for another reason, too
        with taken_over():
            await store.leases.grant(lease(3, device))
    with taken_over():
        await store.database.writer.lost()


async def test_a_file_has_no_term_to_lose(opened, tmp_path):
    store = opened(tmp_path / "farm.db")
    assert store.term is None
    await store.leases.grant(lease(1, "p1"))
