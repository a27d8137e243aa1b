"""What becomes of jobs when the daemon is killed or stops, and when the clock is set."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from farm.common.errors import PhoneError, UserError
from farm.head.queue.model import ClockReading
from farm.head.queue.retry import MAX_CRASHES
from farm.kinds.lease import LeaseSpec
from farm.model.job import AttemptState, JobState
from tests.support.waiting import until
from tests.unit.jobs.dispatching import Farm, killed, running


async def test_a_killed_daemons_jobs_go_on(tmp_path):
    path = tmp_path / "farm.db"
    async with killed(path, "p1") as farm:
        runs, waits = await farm.one(), await farm.one()
        array = await farm.submit(devices=2, hold=True)
        await farm.started()
    async with running(path, "p1", "p2") as again:
        both = {(await again.started()).job.id, (await again.started()).job.id}
        assert both == {runs, waits}
        first, second = again.store.jobs.attempts(runs)
        assert (first.state, second.state) == (AttemptState.INTERRUPTED, AttemptState.RUNNING)
        assert second.fence > first.fence
        assert again.job(runs).uncounted == 1
        kinds = {event.kind for event in again.store.events.since(0)}
        assert {"lease.released", "job.queued"} <= kinds
        assert {again.job(each).state for each in array.ids} == {JobState.HELD}


async def test_a_daemon_killed_in_the_second_attempt_leaves_no_reason_of_the_first(tmp_path):
    path = tmp_path / "farm.db"
    async with killed(path, "p1", "p2") as farm:
        job_id = (await farm.tried(PhoneError("the first phone hung"))).id
        await farm.started()
        assert farm.job(job_id).error is None
    async with running(path) as again:
        assert again.job(job_id).error["code"] == "daemon_died"
        first, second = again.store.jobs.attempts(job_id)
        assert (first.error["message"], second.error["code"]) == ("the first phone hung", "daemon_died")


async def test_a_job_that_kills_the_daemon_is_given_up(tmp_path):
    path = tmp_path / "farm.db"
    stops, crashes = MAX_CRASHES + 1, MAX_CRASHES  # an upgrade is no crash
    for ends in [running] * stops + [killed] * crashes:
        async with ends(path, "p1") as farm:
            job_id = await farm.one(key="the same")
            await farm.started()
    async with running(path, "p1") as again:
        job = again.job(job_id)
        assert (job.state, job.error["code"]) == (JobState.FAILED, "interrupted_too_often")
        how = [attempt.error["code"] for attempt in again.store.jobs.attempts(job_id)]
        assert how == ["daemon_stopped"] * stops + ["daemon_died"] * crashes
        assert again.leases.waiting == {}


@pytest.mark.parametrize(
    ("error", "state", "tries"),
    [
        (PhoneError("it hung"), JobState.RUNNING, [AttemptState.FAILED, AttemptState.RUNNING]),
        (UserError("no"), JobState.FAILED, [AttemptState.FAILED]),
    ],
)
async def test_a_daemon_killed_between_the_end_of_an_attempt_and_the_next_state_of_its_job(
    tmp_path, error, state, tries
):
    path = tmp_path / "farm.db"
    async with killed(path, "p1", "p2") as farm:
        job_id = await farm.one()
        await farm.started()
        farm.dispatcher.attempt_ended = lambda _: None
        farm.executor.end(job_id, error)
        await farm.until("attempt.ended")
        assert farm.job(job_id).state is JobState.RUNNING
    async with running(path, "p1", "p2") as again:
        await until(lambda: [each.state for each in again.store.jobs.attempts(job_id)] == tries)
        await until(lambda: again.job(job_id).state is state)
        assert "daemon_died" not in {(each.error or {}).get("code") for each in again.store.jobs.attempts(job_id)}


async def test_a_stopping_daemon_interrupts_what_runs(tmp_path):
    path = tmp_path / "farm.db"
    async with running(path, "p1") as farm:
        job_id = await farm.one()
        running_attempt = await farm.started()
    assert farm.executor.cancelled == [running_attempt.attempt.id]
    assert farm.leases.released == [running_attempt.lease.id]
    async with running(path, "p1") as again:
        assert (await again.started()).attempt.number == 2
        assert again.store.jobs.attempts(job_id)[0].state is AttemptState.INTERRUPTED


async def with_a_lease(path):
    """A farm where a person has a phone; the job and its lease."""
    farm = Farm(path, "p1")
    await farm.start()
    (job_id,) = (await farm.dispatcher.submit(LeaseSpec(on="android", seconds=600), "alice")).ids
    running = await farm.started()
    await running.save_facts({"adb_port": 1234})
    return farm, job_id, running.lease


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_a_persons_lease_outlives_the_daemon(tmp_path, end):
    path = tmp_path / "farm.db"
    farm, job_id, lease = await with_a_lease(path)
    await farm.store.leases.extend(lease.id, datetime.now(UTC) + timedelta(seconds=600))
    if end == "stop":
        await farm.stop()
        farm.store.close()
    else:
        farm.crash()
    async with running(path) as again:  # its phone is not listed yet
        resumed = await again.started()
        assert again.executor.resumed == [f"{job_id}.1"]
        assert resumed.attempt.facts == {"adb_port": 1234}
        (restored,) = again.leases.restored
        assert (restored.id, restored.fence, restored.device) == (lease.id, lease.fence, "p1")
        assert 590 < restored.request.longest_s <= 600
        await again.ends(job_id, {"given": "back"})
        assert again.job(job_id).state is JobState.DONE
        assert again.store.jobs.attempts(job_id)[0].state is AttemptState.DONE


async def test_a_lease_whose_time_ended_meanwhile_is_done(tmp_path):
    path = tmp_path / "farm.db"
    farm, job_id, lease = await with_a_lease(path)
    await farm.store.leases.extend(lease.id, datetime.now(UTC))
    farm.crash()
    async with running(path, "p1") as again:
        assert again.job(job_id).state is JobState.DONE
        assert again.store.jobs.result(job_id)["ended"] == "its time ended while the daemon was down"
        assert again.store.leases.open() == ()
        assert again.executor.resumed == []


@pytest.mark.parametrize(
    ("reason", "left_s", "state", "fault"),
    [
        ("ended by an operator", 60, "failed", "user"),
        ("p1 is gone: unplugged", 60, "failed", "phone"),
        ("p1 is gone: unplugged", 0, "done", None),  # its time was over by then
        ("its attempt is done", 60, "done", None),
    ],
)
async def test_a_lease_that_ended_before_its_attempt_says_how(tmp_path, reason, left_s, state, fault):
    path, now = tmp_path / "farm.db", datetime.now(UTC)
    farm, job_id, lease = await with_a_lease(path)
    await farm.store.leases.extend(lease.id, now + timedelta(seconds=left_s))
    await farm.store.leases.end(lease.id, ended_at=now, reason=reason, held_s=1)
    farm.crash()
    async with running(path, "p1") as again:
        job = again.job(job_id)
        assert (job.state, (job.error or {}).get("fault")) == (state, fault)


async def test_deadlines_follow_a_clock_that_is_set(tmp_path):
    set_by_s = 0.0

    def clock():
        return ClockReading(asyncio.get_running_loop().time(), datetime.now(UTC) + timedelta(seconds=set_by_s))

    path = tmp_path / "farm.db"
    async with running(path, clock=clock) as farm:
        job_id = await farm.one(deadline_s=3600)
        was = farm.job(job_id).deadline
        set_by_s = 86400.0
        farm.dispatcher.clock_jumped()
        farm.dispatcher.hold(job_id)  # written after the deadlines
        await farm.dispatcher.settled(job_id)
        assert farm.job(job_id).state is JobState.HELD
        assert abs(farm.job(job_id).deadline - was - timedelta(days=1)) < timedelta(seconds=1)
    async with running(path, clock=clock) as again:
        assert again.job(job_id).state is JobState.HELD
