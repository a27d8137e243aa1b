"""A host's attempts and the head's jobs, apart: what each sends the other, and when."""

import asyncio

from farm.common.errors import UserError
from farm.head.messages import AttemptEnded
from farm.model.job import AttemptState, JobState
from tests.unit.jobs.dispatching import Farm, running


async def test_an_end_is_stored_then_the_phone_given_back_then_the_head_decides_about_the_job(tmp_path):
    async with running(tmp_path / "farm.db", "p1") as farm:
        reported = []
        decide = farm.dispatcher.attempt_ended

        def attempt_ended(message):
            [stored] = farm.store.jobs.attempts(message.attempt.job)
            reported.append((message, stored, farm.job(stored.job).state, list(farm.leases.released)))
            decide(message)

        farm.dispatcher.attempt_ended = attempt_ended
        job = await farm.one(max_attempts=1)
        running_attempt = await farm.started()
        await farm.ends(job, UserError("no"))
        assert farm.job(job).state is JobState.FAILED
        [(message, stored, state, released)] = reported
        assert message == AttemptEnded(stored)
        assert (stored.state, stored.error["message"], state) == (AttemptState.FAILED, "no", JobState.RUNNING)
        assert released == [running_attempt.lease.id]
        assert farm.job(job).ended_at == stored.ended_at
        decide(message)  # a second time changes nothing
        assert farm.store.events.since(0)[-1].kind == "job.failed"


async def test_what_begins_while_the_farm_stops_is_waited_for(tmp_path):
    farm = Farm(tmp_path / "farm.db", "p1")
    await farm.start()
    job = await farm.one()
    claim, claiming = farm.dispatcher._writer.claim, asyncio.Event()
    go_on = asyncio.Event()

    async def slow(*arguments):
        claiming.set()
        await go_on.wait()
        return await claim(*arguments)

    farm.dispatcher._writer.claim = slow
    await claiming.wait()
    farm.dispatcher.close()
    stopping = asyncio.ensure_future(farm.attempts.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    assert farm.job(job).state is JobState.QUEUED
    [attempt] = farm.store.jobs.attempts(job)
    assert attempt.state is AttemptState.INTERRUPTED
    farm.store.close()
