"""What is old goes with all that is kept of it, in batches; what others wait for stays."""

import asyncio
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from farm.common.errors import Code
from farm.common.events import EventLog
from farm.model.job import JobState
from farm.store import retention as retention_module
from farm.store.leases import ReservationRecord
from farm.store.maintenance import prune_database
from farm.store.retention import Pruned, Retention
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S
from tests.unit.store.values import NOW, attempt, job, lease, over

DAY = timedelta(days=1)


def at(days):
    """So many days before NOW."""
    return NOW - days * DAY


async def past(store, name, days, *, text="", key="", fence):
    """A job that ended so many days ago, with everything that is kept of it."""
    log = EventLog(fence, clock=lambda: at(days))
    queued = job(name, submitted_at=at(days), spec={"text": text})
    with log.drafted(("job.submitted", name, {})) as drafts:
        await store.jobs.add((queued,), key=key, events=drafts)
    begun = attempt(fence, name, device=f"d{fence}")
    await store.leases.grant(lease(fence, begun.device, granted_at=at(days), job=name))
    await store.jobs.start(begun, attempts_before=0)
    done = over(begun)
    ended = replace(store.jobs.get(name), state=JobState.DONE, ended_at=at(days))
    with log.drafted(("attempt.ended", done.id, {}), ("job.done", name, {})) as drafts:
        await store.jobs.finish(done, ended, result={"text": text}, events=drafts)
    with log.drafted(("lease.released", begun.lease, {})) as drafts:
        await store.leases.end(begun.lease, ended_at=at(days), reason="over", held_s=1.0, events=drafts)


@pytest.fixture
def keeping(store):
    def keep(keep_days=90.0, max_mb=1000.0, **options):
        return Retention(store.database, keep_days=keep_days, max_mb=max_mb, clock=lambda: NOW, **options)

    return keep


@pytest.fixture
def ids(store):
    return lambda: [each.id for each in store.jobs.page(limit=100)]


async def test_what_is_old_goes_with_all_that_is_kept_of_it(store, keeping, ids, numbers):
    numbers(retention_module, BATCH=2)
    for number, days in enumerate([100, 99, 98, 97, 96, 50, 1]):
        await past(store, f"j{number}", days, key=f"k{number}", fence=number + 1)
    await store.jobs.add((job("waiting", submitted_at=at(300)),))
    await store.leases.grant(lease(100, "held", granted_at=at(300)))
    for name, days in (("old", 100), ("recent", 10), ("coming", -10)):
        window = {"starts_at": at(days), "ends_at": at(days) + timedelta(hours=1)}
        await store.reservations.add(ReservationRecord(name, "soc=sm8550", "ann", **window, note=""))
    logs = []
    retention = keeping(remove_logs=logs.extend)
    assert retention.would_prune() == Pruned(jobs=5, leases=5, events=20)
    pruned = await retention.prune()
    assert (pruned.jobs, pruned.leases) == (5, 5)
    assert ids() == ["waiting", "j6", "j5"]
    assert logs == ["j0", "j1", "j2", "j3", "j4"]
    assert (store.jobs.result("j0"), store.jobs.attempts("j0"), store.leases.get("l1")) == (None, (), None)
    assert [store.jobs.submitted("ann", key) for key in ("k0", "k6")] == [(), ("j6",)]
    assert [each.id for each in store.leases.open()] == ["l100"]
    assert {event.subject for event in store.events.since(0)} == {"j5", "j5.1", "l6", "j6", "j6.1", "l7"}
    assert [each.id for each in store.reservations.all()] == ["recent", "coming"]
    assert await retention.prune() == Pruned()
    assert (await retention.prune(keep_days=10)).jobs == 1
    assert await store.jobs.add((job("again"),), key="k0") == ("again",)


async def test_what_others_wait_for_stays_and_that_is_asked_once_whoever_comes_meanwhile(
    store, keeping, ids, numbers, monkeypatch
):
    numbers(retention_module, BATCH=2)
    for number in range(7):
        await past(store, f"j{number}", 100, fence=number + 1)
    await store.jobs.add([job(f"w{number}", after=("j0", "j3"), state=JobState.BLOCKED) for number in range(3)])
    asked, ask, loop = [], retention_module._ask, asyncio.get_running_loop()

    def counted(connection, so_far):
        asked.append(so_far.asked_to)
        return ask(connection, so_far)

    def removed(names):
        if "j1" in names:  # of the first batch; j5 is in a later one
            late = store.jobs.add((job("late", after=("j5",), state=JobState.BLOCKED),))
            asyncio.run_coroutine_threadsafe(late, loop).result(HANG_S)

    retention = keeping(remove_logs=removed)
    assert retention.would_prune().jobs == 5
    monkeypatch.setattr(retention_module, "_ask", counted)
    assert (await retention.prune()).jobs == 4
    assert set(ids()) == {"late", "w2", "w1", "w0", "j0", "j3", "j5"}
    assert asked == [0, 10, 11, 11, 11]


async def test_a_database_that_is_too_large_loses_its_oldest_and_the_file_shrinks(store, keeping, ids, numbers):
    if store.path is None:
        pytest.skip("a server's files shrink by its own vacuum")
    numbers(retention_module, BATCH=5)
    for number in range(40):
        await past(store, f"j{number:02}", 40 - number, text="x" * 50_000, fence=number + 1)
    retention = keeping(max_mb=2.0)
    before = store.path.stat().st_size
    pruned = await retention.prune()
    assert 5 < len(ids()) < 25
    assert ids() == [f"j{number:02}" for number in range(39, 39 - len(ids()), -1)]
    assert pruned.jobs == 40 - len(ids())
    assert pruned.freed_bytes > 1_000_000
    assert store.path.stat().st_size < min(before / 1.5, 2_200_000)
    assert await retention.prune() == Pruned()


async def test_nothing_waits_long_for_a_large_prune(store, keeping, numbers):
    numbers(retention_module, BATCH=3)
    for number in range(12):
        await past(store, f"j{number}", 100, fence=number + 1)
    batches = []
    retention = keeping(remove_logs=batches.append)
    pruned, _ = await asyncio.gather(retention.prune(), store.jobs.add((job("new"),)))
    assert (pruned.jobs, [len(each) for each in batches]) == (12, [3, 3, 3, 3])


async def test_only_live_jobs_and_no_end_in_sight(store, keeping):
    await store.jobs.add([job(f"j{number}", spec={"text": "x" * 10_000}) for number in range(50)])
    assert (await keeping(max_mb=0.001).prune()).jobs == 0
    assert len(store.jobs.live()) == 50


def test_without_a_daemon(where, tmp_path):
    def prune(*, dry_run):
        return prune_database(where, keep_days=0, max_mb=100, dry_run=dry_run, remove_logs=lambda _: None).jobs

    if not isinstance(where, str):
        with raises_code(Code.NO_DATABASE):
            prune(dry_run=True)
    with closing(Store.open(where)) as store:
        asyncio.run(past(store, "j1", 100, fence=1))
    assert [prune(dry_run=dry_run) for dry_run in (True, False, False)] == [1, 1, 0]
