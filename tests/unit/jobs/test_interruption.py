"""What becomes of a shell's line that the daemon's end breaks off."""

from functools import partial

import pytest

from farm.kinds.shell import ShellSpec
from farm.model.job import AttemptState, JobState
from tests.unit.jobs.dispatching import Farm, running

A_LINE = partial(ShellSpec, command="id")


async def restarted(path, *, crash, **fields):
    """The job and its attempts as the next daemon has them, once that has begun what it begins."""
    farm = Farm(path, "p1")
    await farm.start()
    job_id = await farm.one(kind=A_LINE, **fields)
    await farm.started()
    if crash:
        farm.crash()
    else:
        await farm.stop()
        farm.store.close()
    async with running(path, "p1") as again:
        if again.dispatcher.is_live(job_id):
            await again.started()
        return again.job(job_id), again.store.jobs.attempts(job_id)


@pytest.mark.parametrize(("crash", "code"), [(True, "daemon_died"), (False, "daemon_stopped")])
async def test_a_line_that_was_broken_off_is_not_run_again(tmp_path, crash, code):
    job, attempts = await restarted(tmp_path / "farm.db", crash=crash, max_attempts=1)
    assert (job.state, job.error["code"]) == (JobState.FAILED, code)
    assert f"farm logs {job.id}" in job.error["hint"]
    assert [each.state for each in attempts] == [AttemptState.FAILED]


@pytest.mark.parametrize("crash", [True, False])
async def test_a_line_that_may_be_tried_twice_is_not_tried_a_third_time(tmp_path, crash):
    path = tmp_path / "farm.db"
    job, attempts = await restarted(path, crash=crash, max_attempts=2)
    assert [each.state for each in attempts] == [AttemptState.FAILED, AttemptState.RUNNING]
    async with running(path, "p1") as again:
        assert again.job(job.id).state is JobState.FAILED
        assert len(again.store.jobs.attempts(job.id)) == 2
