"""What a host keeps for a head in another process: the ends of attempts, also of those that a dead daemon left."""

from unittest.mock import AsyncMock

import pytest
from sqlalchemy import text

from farm.head.local import LocalHead
from farm.head.messages import AttemptEnded, LeaseEnded
from farm.model.job import AttemptState, JobState
from farm.store.mailbox import Letter
from farm.store.writer import StoreWriteError
from tests.unit.jobs.dispatching import Farm, killed


class ApartHead(LocalHead):
    """One that gets letters."""

    def __init__(self, farm):
        super().__init__(farm.leases, farm.dispatcher, None)

    def letter(self, message):
        return Letter("one", {"kind": type(message).__name__, "of": _subject(message)})


def _subject(message):
    match message:
        case AttemptEnded(attempt):
            return attempt.id, attempt.state
        case LeaseEnded(_, lease):
            return lease


def apart(path, *names):
    farm = Farm(path, *names)
    farm.head = farm.leases.head = farm.attempts._head = ApartHead(farm)
    return farm


def letters(farm):
    with farm.store.database.reading() as connection:
        return [body for (body,) in connection.execute(text("SELECT body FROM to_head ORDER BY id"))]


async def of_host(farm, host, lease):
    """As if that host held the lease."""
    change = text("UPDATE lease SET host = :host WHERE id = :lease")
    await farm.store.database.write(lambda connection: connection.execute(change, {"host": host, "lease": lease}))


async def test_the_end_of_an_attempt_is_posted_with_its_commit(tmp_path):
    farm = apart(tmp_path / "farm.db", "p1")
    await farm.start()
    finish, refused = farm.store.jobs.finish, []

    async def refuse_once(*args, **kwargs):
        refused.append(letters(farm))
        farm.store.jobs.finish = finish
        raise StoreWriteError("no space")

    farm.store.jobs.finish = refuse_once
    job = await farm.tried({})
    assert refused == [[]]
    (ended,) = letters(farm)
    assert all(word in ended for word in ('"AttemptEnded"', f"{job.id}.1", '"done"'))
    await farm.stop()
    farm.store.close()


async def test_a_host_ends_only_what_its_own_daemon_left(tmp_path):
    path = tmp_path / "farm.db"
    async with killed(path, "p1", "p2") as farm:
        mine, others = await farm.one(), await farm.one()
        for _ in range(2):
            run = await farm.started()
            await of_host(farm, "one" if run.job.id == mine else "two", run.lease.id)
    again = apart(path)
    await again.attempts.recover(hosts=("one",))
    await again.attempts.finish_leftovers()
    assert {again.job(each).state for each in (mine, others)} == {JobState.RUNNING}  # the head has not decided
    ends = [again.store.jobs.attempts(each)[0].state for each in (mine, others)]
    assert ends == [AttemptState.INTERRUPTED, AttemptState.RUNNING]
    assert [record.host for record in again.store.leases.open()] == ["two"]
    assert ['"AttemptEnded"' in each for each in letters(again)] == [True, False]
    again.store.close()


async def test_ending_goes_on_where_the_store_could_not_write(tmp_path):
    path = tmp_path / "farm.db"
    async with killed(path, "p1") as farm:
        job = await farm.one()
        await farm.started()
    again = apart(path)
    await again.attempts.recover()
    end, again.store.leases.end = again.store.leases.end, AsyncMock(side_effect=StoreWriteError("no space"))
    with pytest.raises(StoreWriteError):
        await again.attempts.finish_leftovers()
    again.store.leases.end = end
    await again.attempts.finish_leftovers()
    assert [each.state for each in again.store.jobs.attempts(job)] == [AttemptState.INTERRUPTED]
    assert again.store.leases.open() == ()
    again.store.close()
