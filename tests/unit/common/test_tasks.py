"""Blocks with a limit, and the ends of tasks that are cancelled."""

import asyncio

import pytest

from farm.common.tasks import at_most, end_tasks


async def test_a_block_that_takes_longer_is_ended_without_an_error():
    began = False
    async with at_most(0.0):
        began = True
        await asyncio.Event().wait()
    assert began


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_in_the_moment_of_the_result_is_not_lost(turns):
    result = asyncio.Event()
    goes_on = False

    async def waiting():
        nonlocal goes_on
        async with at_most(3600.0):
            await result.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        goes_on = True

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    result.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert not goes_on


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
