"""A commit that the server's connection did not confirm: it happens once, and its caller learns how it ended."""

import asyncio

import pytest

from farm.common.events import EventLog
from farm.model.job import JobState
from farm.store import term, writer
from farm.store.database import WriteRetrier
from farm.store.writer import StoreWriteError
from tests.support.waiting import until
from tests.unit.store.values import NOW, attempt, begin, ended, job, lease, listened, over


@pytest.fixture
def store(opened, proxy, numbers):
    numbers(writer, PROBE_S=0.02)
    numbers(term, RENEWED_EVERY_S=1000.0)  # its commits are none of the writer's
    return opened(proxy.url)


async def test_a_commit_whose_answer_is_lost_has_happened(proxy, store):
    heard = listened(store)
    proxy.lose = "answer"
    assert await store.jobs.add((job(),)) == ("j1",)
    await until(lambda: heard == [True, False])
    assert store.jobs.get("j1") is not None


async def test_a_commit_that_the_server_never_got_has_not_happened(proxy, store):
    proxy.lose = "commit"
    with pytest.raises(StoreWriteError, match="nothing of this change was kept"):
        await store.jobs.add((job(),))
    assert store.jobs.get("j1") is None
    await until(lambda: not store.problem)
    assert await store.jobs.add((job(),)) == ("j1",)


@pytest.mark.parametrize("lost", ["answer", "commit"])
async def test_an_end_is_written_once_with_its_events(proxy, store, lost):
    events, retrier = EventLog(store.epoch), WriteRetrier()
    store.on_problem(retrier.on_store_problem)
    await store.jobs.add((job(),))
    await begin(store, attempt())
    running = store.jobs.get("j1")

    async def finish():
        with events.drafted(("attempt.ended", "j1.1", {}), ("job.done", "j1", {})) as drafts:
            return await store.jobs.finish(over(attempt()), ended(running), result={"ok": 1}, events=drafts)

    proxy.lose = lost
    assert await retrier.write(finish, "the end of j1.1") is True
    assert store.jobs.get("j1").state is JobState.DONE
    assert [event.kind for event in store.events.since(0)] == ["attempt.ended", "job.done"]


async def test_each_of_one_commit_gets_its_own_answer(proxy, store):
    await store.leases.grant(lease(1, "p1"))
    proxy.lose = "answer"
    writes = [store.leases.grant(lease(2, "p2")), store.leases.grant(lease(3, "p1")), store.jobs.add((job(),))]
    first, second, third = await asyncio.gather(*writes, return_exceptions=True)
    assert (first, "refused" in str(second), third) == (None, True, ("j1",))
    assert [each.id for each in store.leases.open()] == ["l1", "l2"]


async def test_nothing_else_is_written_before_it_is_known(proxy, store):
    """What follows an unconfirmed commit could depend on it."""
    await store.leases.grant(lease())
    proxy.lose, proxy.refusing = "answer", True
    waiting = asyncio.ensure_future(store.jobs.add((job(),)))
    await until(lambda: bool(store.problem))
    assert not waiting.done()
    with pytest.raises(StoreWriteError):
        await store.leases.end("l1", ended_at=NOW, reason="over", held_s=0.0)
    proxy.refusing = False
    assert await waiting == ("j1",)
