"""The ends of tasks that are cancelled."""

import asyncio

import pytest

from farm.common.tasks import end_tasks


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_a_task_that_loses_cancellations_is_cancelled_until_it_ends(lost):
    """As those of dask, whose asyncio.wait_for loses one in the moment of a result."""

    async def work():
        for _ in range(lost):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("lost")
        await asyncio.Event().wait()

    ends = []
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end_tasks(task, again_s=0.0)
    assert task.cancelled()
    assert ends == ["lost"] * lost


async def test_an_end_waits_for_what_a_task_does_in_the_end_and_hears_no_error():
    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            raise ValueError("handled elsewhere")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end_tasks(task)
    assert isinstance(task.exception(), ValueError)
