"""Blocks with a limit, the ends of tasks that are cancelled, and tasks that no error ends."""

import asyncio

import pytest

from farm.common.errors import HostError
from farm.common.tasks import STEADY_S, LastingTasks, at_most, end_tasks
from tests.support.virtual_time import virtual_time
from tests.support.waiting import until


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


@virtual_time
@pytest.mark.parametrize(
    "error", [HostError("away"), OSError(5, "disk"), KeyError("a bug"), ExceptionGroup("two", [OSError()])]
)
async def test_a_lasting_task_begins_again_after_any_error(error, caplog):
    lasting, runs = LastingTasks(), []

    async def run():
        runs.append(error)
        if len(runs) < 5:
            raise error

    task = lasting.start("history", run)
    await until(lambda: len(runs) == 3)
    assert [line.partition(":")[0] for line in lasting.problems()] == ["history failed and is tried again"]
    await task  # the fifth run returns: it has done its work
    await asyncio.sleep(STEADY_S)
    assert (len(runs), lasting.problems()) == (5, [])
    assert [record.levelname for record in caplog.records if record.levelname != "DEBUG"] == ["ERROR"]


async def test_a_cancelled_part_ends_no_lasting_task_and_its_own_cancellation_does():
    runs, begun = [], asyncio.Event()

    async def run():
        runs.append(1)
        if len(runs) == 1:
            part = asyncio.ensure_future(asyncio.Event().wait())
            part.cancel()
            await part
        begun.set()
        await asyncio.Event().wait()

    task = LastingTasks().start("history", run)
    await begun.wait()
    await end_tasks(task)
    assert task.cancelled()
