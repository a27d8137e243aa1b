"""Orders at bad moments: a caller that leaves during a commit, arrays of which some jobs are being written."""

import asyncio
from types import SimpleNamespace

import pytest

from farm.common.errors import UserError
from farm.control.verbs.job import JobVerbs
from farm.control.verbs.job_views import JobSteps
from farm.head.allocator.model import DeviceReason
from farm.head.model import Explanation, JobExplanation
from farm.head.queue.model import JobRunsError
from farm.kinds import KINDS
from farm.model.device import Life
from farm.model.job import JobState
from tests.support.verbs import ask
from tests.support.waiting import until
from tests.unit.jobs.fakes import phone

CLIENTS = 12


class Gate:
    """Stops whoever writes with `table.method`, before or after its commit."""

    def __init__(self, table, method, *, after=False):
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        write = getattr(table, method)

        async def gated(*args, **kwargs):
            if not after:
                await self.wait()
            written = await write(*args, **kwargs)
            if after:
                await self.wait()
            return written

        setattr(table, method, gated)

    async def wait(self):
        self.reached.set()
        await self.opened.wait()


async def order(verb, job):
    """The states that the jobs have after it."""
    return [row["state"] for row in (await ask(verb, "alice", job=job))["jobs"]]


@pytest.fixture
def verbs(farm):
    return JobVerbs(farm.head, farm.store, None, JobSteps(farm.events), KINDS)


async def test_only_jobs_in_the_states_that_are_named_are_cancelled(farm, verbs):
    [held] = (await farm.submit(hold=True)).ids
    for states, after in ((("queued", "running"), JobState.HELD), (("queued", "held"), JobState.CANCELLED)):
        await ask(verbs.cancel, "alice", job=held, state=states)
        assert farm.job(held).state is after


@pytest.mark.parametrize("after", [False, True])
async def test_a_submit_whose_caller_leaves_is_known_to_the_queue_if_it_is_kept(farm, verbs, after):
    gate = Gate(farm.store.jobs, "add", after=after)
    caller = asyncio.create_task(farm.submit(devices=2, hold=True))
    await gate.reached.wait()
    caller.cancel()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    for job in farm.store.jobs.page():
        assert farm.dispatcher.is_live(job.id)
        assert await order(verbs.cancel, job.id) == ["cancelled"]


async def test_an_array_of_which_one_job_is_being_ended_is_cancelled_whole(farm, verbs):
    submitted = await farm.submit(devices=20, hold=True)
    gate = Gate(farm.store.jobs, "save")
    farm.dispatcher.cancel(submitted.ids[3], UserError("enough"))
    await gate.reached.wait()
    one, whole = (asyncio.create_task(order(verbs.cancel, name)) for name in (submitted.ids[3], submitted.array))
    resumed = asyncio.create_task(order(verbs.resume, submitted.array))
    gate.opened.set()
    assert (await one, await whole) == (["cancelled"], ["cancelled"] * 20)
    await resumed  # before or after: what was cancelled stays so
    assert all(farm.job(job).state is JobState.CANCELLED for job in submitted.ids)


async def test_clients_that_cancel_one_array_at_once_all_succeed(farm, verbs):
    submitted = await farm.submit(devices=20, hold=True)
    answers = await asyncio.gather(*(order(verbs.cancel, submitted.array) for _ in range(CLIENTS)))
    assert [*answers, await order(verbs.cancel, submitted.array)] == [["cancelled"] * 20] * (CLIENTS + 1)


async def test_of_an_array_whatever_does_not_run_is_held(farm, verbs):
    farm.leases.held["p2"] = None
    gate = Gate(farm.store.jobs, "start")
    submitted = await farm.submit(devices=3)
    await gate.reached.wait()
    held = asyncio.create_task(order(verbs.hold, submitted.array))
    # not for their events: those of the attempt come first
    await until(lambda: all(farm.job(job).state is JobState.HELD for job in submitted.ids[1:]))
    gate.opened.set()
    starting = (await farm.started()).job.id
    assert await held == ["running", "held", "held"]
    with pytest.raises(JobRunsError):
        await order(verbs.hold, starting)


async def test_all_jobs_of_a_forgotten_phone_fail_though_one_is_being_ended(farm):
    first, second = [(await farm.submit("p2", devices="all", hold=True)).ids[0] for _ in range(2)]
    gate = Gate(farm.store.jobs, "save")
    farm.dispatcher.cancel(first, UserError("enough"))
    await gate.reached.wait()
    farm.devices.change(phone("p2", Life.GONE), forget=True)
    gate.opened.set()
    await farm.until("job.failed", second)
    assert (farm.job(first).state, farm.job(second).state) == (JobState.CANCELLED, JobState.FAILED)


@pytest.mark.parametrize(("drained", "operator"), [("ann drains this host", "farm drain --end"), ("", "")])
async def test_what_a_drained_host_keeps_waiting_is_for_an_operator(farm, drained, operator):
    job = await farm.one()
    limits = (f"nothing is handed out: {drained}",) if drained else ()
    free = DeviceReason("p1", matches=True, reason="free")

    async def explained(_):
        return JobExplanation(request=Explanation(job, (), (free,), limits=limits))

    head = SimpleNamespace(drained=drained, explain_job=explained)
    verbs = JobVerbs(head, farm.store, None, JobSteps(farm.events), KINDS)
    assert (await verbs.explain(job))["operator"] == operator
