"""The dispatcher over a store that is full or refuses, and with jobs that cannot begin."""

import asyncio

import pytest

from farm.common.errors import Code, HostError
from farm.common.limits import MAX_RESULT_BYTES
from farm.head import planning
from farm.jobs.executor import FailedWithResultError
from farm.model.device import Life
from farm.model.job import Attempt, AttemptState, Job, JobState
from farm.store.writer import StoreWriteError
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S, until
from tests.unit.jobs.dispatching import running
from tests.unit.jobs.fakes import phone


class FullDisk:
    """Lets writes of the job table fail until there is room."""

    def __init__(self, store):
        self.full = False
        self.tried = asyncio.Event()
        for name in ("start", "finish", "save", "add"):
            setattr(store.jobs, name, self._unless_full(getattr(store.jobs, name)))

    def _unless_full(self, write):
        async def attempt(*args, **kwargs):
            if self.full:
                self.tried.set()
                raise StoreWriteError("the disk is full")
            return await write(*args, **kwargs)

        return attempt


async def test_a_full_disk_loses_no_result_and_doubles_none(farm, monkeypatch):
    monkeypatch.setattr("farm.store.database.RETRY_S", 0.01)
    disk = FullDisk(farm.store)
    job_id = await farm.one()
    running = await farm.started()
    disk.full = True
    farm.executor.end(job_id, {"answer": 42})
    async with asyncio.timeout(HANG_S):
        await disk.tried.wait()
    with pytest.raises(StoreWriteError):
        await farm.submit()
    assert farm.job(job_id).state is JobState.RUNNING
    assert farm.leases.held["p1"] == running.lease  # given back only when its end is kept
    assert not any(event.kind in ("attempt.ended", "job.done") for event in farm.told)
    disk.full = False
    await farm.until("job.done", job_id)
    assert farm.store.jobs.result(job_id) == {"answer": 42}
    assert [event.kind for event in farm.store.events.since(0)].count("job.done") == 1


DEEP = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    "result",
    [{"seconds": float("nan")}, {"deep": DEEP}, {"text": b"bytes"}, {"large": "x" * MAX_RESULT_BYTES}, ["no object"]],
    ids=["nan", "circular", "bytes", "large", "list"],
)
async def test_a_result_that_cannot_be_kept_fails_its_attempt_and_nothing_else(farm, result):
    job_id = await farm.one(max_attempts=1)
    running = await farm.started()
    await farm.ends(job_id, result)
    job = farm.job(job_id)
    assert (job.state, job.error["code"], job.error["fault"]) == (JobState.FAILED, "result_not_kept", "farm")
    assert farm.store.jobs.result(job_id) is None
    assert farm.leases.released == [running.lease.id]
    assert not farm.dispatcher.is_live(job_id)


async def test_what_a_failed_attempt_gave_cannot_be_kept_but_its_error_is(farm):
    error = FailedWithResultError("exit code 1")
    error.result = {"seconds": float("inf")}
    assert (await farm.tried(error)).error["message"] == "exit code 1"


class Refusing:
    """Lets a write of the job table raise as long as it is about to write one of these states."""

    def __init__(self, store, name, *states):
        self.write, self.states = getattr(store.jobs, name), states
        setattr(store.jobs, name, self)

    async def __call__(self, *args, **options):
        if any(each.state in self.states for each in args if isinstance(each, Job | Attempt)):
            raise ValueError("a bug")
        return await self.write(*args, **options)


async def test_an_end_that_the_store_refuses_is_kept_as_a_failure(farm):
    job_id = await farm.one(max_attempts=1)
    after = await farm.one(after=(job_id,))
    running = await farm.started()
    Refusing(farm.store, "finish", AttemptState.DONE)
    await farm.ends(job_id, {"answer": 42})
    job, (attempt,) = farm.job(job_id), farm.store.jobs.attempts(job_id)
    assert (job.state, job.error["message"], job.not_before) == (JobState.FAILED, "ValueError: a bug", None)
    assert (attempt.state, attempt.error) == (AttemptState.FAILED, job.error)
    assert farm.store.jobs.result(job_id) is None
    await farm.until("job.cancelled", after)
    assert running.lease.id in farm.leases.released
    assert not farm.dispatcher.is_live(job_id)


async def test_an_end_that_can_be_kept_in_no_form_frees_the_phone_and_is_taken_up_at_the_next_start(tmp_path):
    path = tmp_path / "farm.db"
    async with running(path, "p1") as farm:
        job_id = await farm.one()
        lease = (await farm.started()).lease
        Refusing(farm.store, "finish", *AttemptState)
        farm.executor.end(job_id, {"answer": 42})
        await until(lambda: farm.leases.released == [lease.id])
    async with running(path, "p1") as again:
        assert (await again.started()).job.id == job_id
        assert again.store.jobs.attempts(job_id)[0].error["code"] == "daemon_died"


async def test_what_follows_an_attempt_fails_the_job_if_the_store_refuses_it(farm):
    job_id = await farm.one()
    await farm.started()
    Refusing(farm.store, "save", JobState.QUEUED)
    await farm.ends(job_id, HostError("no room"))
    assert (farm.job(job_id).state, farm.job(job_id).error["message"]) == (JobState.FAILED, "ValueError: a bug")


async def test_a_state_that_the_store_refuses_becomes_a_failure(farm):
    for name in ("p1", "p2"):
        farm.devices.change(phone(name, Life.OFFLINE))
    job_id = await farm.one()
    Refusing(farm.store, "save", JobState.HELD)
    farm.dispatcher.hold(job_id)
    await farm.dispatcher.settled(job_id)
    assert (farm.job(job_id).state, farm.job(job_id).error["message"]) == (JobState.FAILED, "ValueError: a bug")


async def test_an_attempt_that_cannot_begin_gives_its_phone_back_and_begins_later(farm, monkeypatch):
    monkeypatch.setattr("farm.head.dispatcher.LOST_START_PAUSE_S", 0.01)
    start, tries = farm.store.jobs.start, []

    async def fails_once(*args, **options):
        tries.append(args)
        if len(tries) == 1:
            raise ValueError("a bug")
        return await start(*args, **options)

    farm.store.jobs.start = fails_once
    job_id = await farm.one()
    assert (await farm.started()).attempt.id == f"{job_id}.1"
    assert len(farm.leases.released) == 1


async def test_a_job_that_cannot_even_ask_fails_alone(farm, monkeypatch):
    def request_of(kinds, job, avoid):
        if job.user == "mallory":
            raise KeyError("of another release")
        return planning.request_of(kinds, job, avoid)

    monkeypatch.setattr("farm.head.dispatcher.request_of", request_of)
    bad = await farm.one(user="mallory")
    await farm.until("job.failed", bad)
    assert farm.job(bad).error["fault"] == "farm"
    good = await farm.one(user="alice")
    assert (await farm.started()).job.id == good


async def test_a_job_whose_spec_cannot_be_read_fails_alone(farm, monkeypatch):
    monkeypatch.setattr("farm.jobs.attempt_run.spec_from_wire", lambda *_: 1 / 0)
    job_id = await farm.one(max_attempts=1)
    await farm.until("job.failed", job_id)
    assert farm.job(job_id).error["message"] == "ZeroDivisionError: division by zero"
    assert len(farm.leases.released) == 1


async def test_no_job_is_taken_while_the_store_has_a_problem(farm, monkeypatch):
    monkeypatch.setattr(type(farm.store), "problem", property(lambda _: "the disk is full"))
    with raises_code(Code.STORE_UNWRITABLE, match="the disk is full"):
        await farm.submit()
