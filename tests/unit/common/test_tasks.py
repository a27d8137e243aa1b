"""Blocks with a limit."""

import asyncio

import pytest

from farm.common.tasks import at_most


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
