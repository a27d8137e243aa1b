"""A host's attempts and the head's jobs, apart: what each sends the other, and when."""

import asyncio

from farm.common.errors import UserError
from farm.head.messages import AttemptEnded
from farm.model.job import AttemptState, JobState
from tests.unit.jobs.dispatching import Farm, running


async def test_an_end_is_stored_with_what_the_head_makes_of_the_job_and_the_phone_given_back_after_it(tmp_path):
    async with running(tmp_path / "farm.db", "p1") as farm:
        asked = []
        decide = farm.dispatcher.attempt_ended

        def attempt_ended(message):
            asked.append((message, farm.job(message.job).state, list(farm.leases.released)))
            return decide(message)

        farm.dispatcher.attempt_ended = attempt_ended
        job = await farm.one(max_attempts=1)
        running_attempt = await farm.started()
        await farm.ends(job, UserError("no"))
        [(message, state, released)] = asked
        assert isinstance(message, AttemptEnded)
        assert (message.job, message.outcome.state, message.outcome.device) == (job, AttemptState.FAILED, "p1")
        assert (state, released) == (JobState.RUNNING, [])
        assert farm.job(job).state is JobState.FAILED
        assert farm.job(job).ended_at == message.at
        assert farm.leases.released == [running_attempt.lease.id]


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
