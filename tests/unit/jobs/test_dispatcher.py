"""The dispatcher over a real store, with leasing, phones and executors played by the test."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from farm.config import UserConfig
from farm.core.device import Life, Service
from farm.core.errors import HostError, NoPhoneError, NotAllowedError, PhoneError, UserError
from farm.core.events import EventLog
from farm.core.job import AttemptState, Job, JobState
from farm.core.limits import MAX_RESULT_BYTES
from farm.core.queue_messages import Moment
from farm.core.queue_model import JobRunsError, NoSuchJobError
from farm.jobs import planning
from farm.jobs.admission import QuotaError, StoreTroubleError, ended_before
from farm.jobs.dispatcher import Dispatcher
from farm.jobs.executor import FailedWithResultError, YieldedError
from farm.jobs.specs import BadSpecError, LeaseSpec, ShellSpec
from farm.jobs.workbench import Workbench
from farm.leasing.model import LeaseEndedError, PhoneLostError
from farm.store.store import Store
from farm.store.writer import StoreWriteError
from tests.unit.jobs.fakes import FakeDevices, FakeExecutor, FakeLeases, phone

PATIENCE_S = 10


class Farm:
    """One daemon's share of jobs; `again` is the next daemon over the same store."""

    def __init__(self, path, *names, limits=None, **options):
        self.path = path
        self.store = Store.open(path)
        self.events = EventLog(self.store.epoch)
        self.told = []
        self.events.subscribe(self.told.append)
        self.devices = FakeDevices(*names)
        self.leases = FakeLeases(self.store, self.devices, fence=self.store.epoch << 32)
        self.executor = FakeExecutor()
        self.log = []
        self.dispatcher = Dispatcher(
            store=self.store,
            events=self.events,
            leases=self.leases,
            devices=self.devices,
            executors={"shell": self.executor, "lease": self.executor},
            bench=Workbench(
                jobs=self.store.jobs,
                events=self.events,
                keep_log=lambda *line: self.log.append(line),
                leases=self.leases,
                devices=self.devices,
            ),
            limits=lambda _: limits or UserConfig(),
            **options,
        )

    async def submit(self, on="android", user="alice", *, key="", must_match=False, **fields):
        spec = ShellSpec(on=on, command="id", **{"max_attempts": 3, **fields})
        return await self.dispatcher.submit(spec, user, key=key, must_match=must_match)

    async def one(self, **fields):
        (job,) = (await self.submit(**fields)).jobs
        return job

    def waits(self, job_id):
        return self.dispatcher.waits([job_id])[job_id]

    async def started(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.executor.started.get()

    async def until(self, kind, subject=""):
        """The first event of that kind (and subject) not looked at yet."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for event in self.told:
                    if event.kind == kind and subject in ("", event.subject):
                        self.told.remove(event)
                        return event
                await asyncio.sleep(0.001)

    async def ends(self, job_id, result):
        self.executor.end(job_id, result)
        await self.until("attempt.ended")

    def job(self, job_id):
        return self.store.jobs.get(job_id)

    def crash(self):
        """kill -9: nobody is told anything."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        self.store.close()


@asynccontextmanager
async def running(path, *names, **options):
    farm = Farm(path, *names, **options)
    await farm.dispatcher.start()
    try:
        yield farm
    finally:
        await farm.dispatcher.stop()
        farm.store.close()


@pytest.fixture
async def farm(tmp_path):
    async with running(tmp_path / "farm.db", "p1", "p2") as farm:
        yield farm


async def test_a_job_from_submit_to_its_result(farm):
    job_id = await farm.one()
    running = await farm.started()
    assert (running.attempt.id, running.lease.device, running.view.name) == (f"{job_id}.1", "p1", "p1")
    assert farm.job(job_id).state is JobState.RUNNING
    running.progress("compile", kind="x", percent=10)
    running.log("hello", source="worker")
    await running.save_facts({"port": 1})
    await farm.ends(job_id, {"answer": 42})
    assert farm.job(job_id).state is JobState.DONE
    assert farm.store.jobs.result(job_id) == {"answer": 42}
    (attempt,) = farm.store.jobs.attempts(job_id)
    assert (attempt.state, attempt.device, attempt.facts) == (AttemptState.DONE, "p1", {"port": 1})
    assert attempt.fence == running.lease.fence
    progress = await farm.until("job.progress", job_id)
    assert progress.data == {"device": "p1", "attempt": 1, "step": "compile", "kind": "x", "percent": 10}
    assert farm.log == [(running.attempt, "hello", "info", "worker")]
    assert running.lease.request.traces
    assert farm.leases.released == [running.lease.id]
    kinds = [event.kind for event in farm.store.events.since(0) if event.kind != "job.progress"]
    assert kinds == ["job.submitted", "attempt.started", "attempt.ended", "job.done"]


async def test_all_means_one_job_for_each_matching_phone_in_service(farm):
    farm.devices.change(phone("p3", service=Service.MAINTENANCE))
    farm.devices.change(phone("p4", Life.GONE))
    submitted = await farm.submit(devices="all")
    assert [farm.job(each).device for each in submitted.jobs] == ["p1", "p2", "p4"]
    assert {farm.job(each).array for each in submitted.jobs} == {submitted.array}
    assert submitted.warnings == ()


async def test_some_means_jobs_that_share_no_phone(farm):
    submitted = await farm.submit(devices=3)
    assert submitted.warnings == ("2 phones match android: 1 of the jobs wait for more",)
    first, second = await farm.started(), await farm.started()
    await farm.ends(first.job.id, {})
    await farm.ends(second.job.id, {})
    farm.devices.change(phone("p3"))
    farm.leases.look()
    third = await farm.started()
    assert {each.lease.device for each in (first, second, third)} == {"p1", "p2", "p3"}
    await farm.ends(third.job.id, {})


async def test_no_phone_could_match(farm):
    submitted = await farm.submit("gpu=adreno-741")
    assert "nearest is adreno-740" in submitted.warnings[0]
    with pytest.raises(NoPhoneError, match="nearest is adreno-740"):
        await farm.submit("gpu=adreno-741", must_match=True)
    with pytest.raises(NoPhoneError):
        await farm.submit("gpu=adreno-741", devices="all")
    with pytest.raises(NoPhoneError):
        await farm.submit(devices=3, must_match=True)
    assert len(farm.store.jobs.live()) == 1


async def test_the_same_key_again_adds_nothing_whatever_the_quota(tmp_path):
    async with running(tmp_path / "farm.db", "p1", limits=UserConfig(jobs=1)) as farm:
        first = await farm.submit(key="k")
        assert await farm.submit(key="k") == first
        assert (await farm.submit(key="k", user="bob")).jobs != first.jobs
        with pytest.raises(QuotaError):
            await farm.submit(key="other")
        assert len(farm.store.jobs.live()) == 2


async def test_the_same_key_twice_at_once_adds_nothing_twice(farm):
    first, second = await asyncio.gather(farm.submit(key="k"), farm.submit(key="k"))
    assert first == second
    assert len(farm.store.jobs.live()) == 1
    assert [event.kind for event in farm.store.events.since(0)].count("job.submitted") == 1


async def test_quotas_of_a_user(tmp_path):
    async with running(tmp_path / "farm.db", "p1", limits=UserConfig(jobs=2, priority=3)) as farm:
        with pytest.raises(NotAllowedError, match="priority 3 at most"):
            await farm.submit(priority=4)
        with pytest.raises(QuotaError):
            await farm.submit(devices=3)
        outcomes = await asyncio.gather(*(farm.submit() for _ in range(4)), return_exceptions=True)
        assert [type(each) for each in outcomes].count(QuotaError) == 2


async def test_too_many_jobs_at_once(farm):
    for index in range(1001):
        farm.devices.change(phone(f"q{index:04}"))
    with pytest.raises(BadSpecError):
        await farm.submit(devices="all")


async def test_a_phones_fault_goes_to_another_phone(farm):
    job_id = await farm.one()
    assert (await farm.started()).lease.device == "p1"
    await farm.ends(job_id, PhoneError("wrong numbers"))
    assert (await farm.started()).lease.device == "p2"
    await farm.ends(job_id, PhoneError("wrong numbers"))
    # No other phone is left: both get another chance.
    assert (await farm.started()).attempt.number == 3
    await farm.ends(job_id, PhoneError("wrong numbers"))
    job = farm.job(job_id)
    assert (job.state, job.error["message"]) == (JobState.FAILED, "wrong numbers")


async def test_a_phone_that_failed_is_taken_again_when_the_other_goes(farm):
    farm.devices.change(phone("p2", Life.STARTING))
    job_id = await farm.one()
    await farm.started()
    await farm.ends(job_id, PhoneError("wrong numbers"))
    assert farm.waits(job_id) == "every phone is busy"
    farm.devices.change(phone("p2", Life.GONE))
    assert (await farm.started()).lease.device == "p1"


async def test_the_hosts_fault_waits_a_little(farm):
    job_id = await farm.one()
    await farm.started()
    await farm.ends(job_id, HostError("no room"))
    assert "tried again in" in farm.waits(job_id)
    assert (await farm.started()).attempt.number == 2


async def test_a_bug_of_an_executor_is_farms_own_fault(farm):
    job_id = await farm.one(max_attempts=1)
    await farm.started()
    await farm.ends(job_id, RuntimeError("oops"))
    assert farm.job(job_id).error["fault"] == "farm"


async def test_a_users_fault_is_final(farm):
    job_id = await farm.one()
    await farm.started()
    await farm.ends(job_id, UserError("no such model"))
    assert farm.job(job_id).state is JobState.FAILED


async def test_what_gives_way_goes_on_later(farm):
    job_id = await farm.one(max_attempts=1)
    await farm.started()
    await farm.ends(job_id, YieldedError())
    assert (await farm.started()).attempt.number == 2
    assert farm.job(job_id).uncounted == 1


@pytest.mark.parametrize(
    ("error", "state"),
    [(PhoneLostError("p1 is gone"), JobState.QUEUED), (LeaseEndedError("ended by an operator"), JobState.FAILED)],
)
async def test_a_lease_that_is_taken_away_ends_the_attempt(farm, error, state):
    farm.devices.change(phone("p2", Life.OFFLINE))
    job_id = await farm.one()
    running = await farm.started()
    farm.devices.change(phone("p1", Life.GONE))
    farm.leases.take("p1", error)
    ended = await farm.until("attempt.ended", f"{job_id}.1")
    assert ended.data["error"]["message"] == str(error)
    assert farm.executor.cancelled == [running.attempt.id]
    assert farm.job(job_id).state is state


async def test_a_broken_session_is_told_as_the_lost_phone_that_it_was(farm):
    farm.devices.change(phone("p2", Life.OFFLINE))
    job_id = await farm.one()
    await farm.started()
    farm.devices.change(phone("p1", Life.RECOVERING))
    farm.executor.end(job_id, PhoneError("connection reset"))
    await asyncio.sleep(0)
    farm.devices.change(phone("p1", Life.GONE))
    farm.leases.take("p1", PhoneLostError("p1 is gone"))
    ended = await farm.until("attempt.ended")
    assert (ended.data["error"]["code"], ended.data["error"]["evidence"]) == ("phone_lost", "connection reset")


async def test_cancelled_while_it_waits_and_while_it_runs(farm):
    farm.devices.change(phone("p2", Life.OFFLINE))
    runs, waits = await farm.one(), await farm.one()
    await farm.started()
    for each in (waits, runs):
        farm.dispatcher.cancel(each, UserError("not wanted"))
    for each in (waits, runs):
        await farm.dispatcher.settled(each)
        assert farm.job(each).state is JobState.CANCELLED
    assert farm.executor.cancelled == [f"{runs}.1"]
    (attempt,) = farm.store.jobs.attempts(runs)
    assert attempt.state is AttemptState.CANCELLED
    assert not farm.leases.waiting
    with pytest.raises(NoSuchJobError):
        farm.dispatcher.cancel(runs, UserError("not wanted"))


async def test_held_and_resumed(farm):
    job_id = await farm.one(hold=True)
    assert farm.job(job_id).state is JobState.HELD
    farm.dispatcher.resume(job_id)
    await farm.started()
    with pytest.raises(JobRunsError):
        farm.dispatcher.hold(job_id)


async def test_one_after_another_by_the_beginning_of_its_name(farm):
    first = await farm.one()
    array = await farm.submit(devices="all", after=(first[:12],))
    last = await farm.one(after=(array.array,))
    await farm.started()
    assert farm.waits(last).startswith(f"it waits for {array.array}, of which ")
    await farm.ends(first, {})
    for _ in range(2):
        await farm.ends((await farm.started()).job.id, {})
    assert (await farm.started()).job.id == last
    await farm.ends(last, {})
    (final,) = (await farm.submit(after=(last, array.array))).taken
    assert final.state is JobState.BLOCKED
    assert (await farm.started()).job.after == (last, array.array)
    with pytest.raises(NoSuchJobError):
        await farm.submit(after=("nothing",))


async def test_what_an_array_waits_for_is_looked_up_once(tmp_path, monkeypatch):
    looked_up = []
    monkeypatch.setattr(
        "farm.jobs.dispatcher.ended_before",
        lambda jobs, names: looked_up.append(tuple(names)) or ended_before(jobs, names),
    )
    async with running(tmp_path / "farm.db", "p1", "p2", "p3") as farm:
        first, other = await farm.submit(devices="all", hold=True), await farm.one(hold=True)
        second = await farm.submit(devices="all", after=(first.array, other))
        assert looked_up[-1] == (first.array, other)
        assert len(looked_up) == 3
        assert {farm.job(each).state for each in second.jobs} == {JobState.BLOCKED}


@pytest.mark.parametrize("ends", [({}, {}), ({}, UserError("no")), (None, {}), (None, UserError("no")), (None, None)])
async def test_what_jobs_waited_for_is_known_after_a_restart(tmp_path, ends):
    """Each end of two jobs of an array: done, failed, or not yet."""
    path = tmp_path / "farm.db"
    farm = Farm(path, "p1", "p2")
    await farm.dispatcher.start()
    first = await farm.submit(devices="all")
    for _ in first.jobs:
        await farm.started()
    for job_id, end in zip(first.jobs, ends, strict=True):
        if end is not None:
            await farm.ends(job_id, end)
    farm.devices.change(phone("p1", Life.OFFLINE))
    farm.devices.change(phone("p2", Life.OFFLINE))
    alone = await farm.one(hold=True)
    (later,) = (await farm.submit(hold=True, after=(first.array,))).jobs
    (behind,) = (await farm.submit(hold=True, after=(alone,))).jobs
    farm.crash()
    async with running(path) as again:
        failed = any(isinstance(end, UserError) for end in ends)
        if not failed:
            again.dispatcher.resume(later)
        again.dispatcher.resume(behind)
        await again.dispatcher.settled(later)
        await again.dispatcher.settled(behind)
        assert again.job(behind).state is JobState.BLOCKED
        waits = JobState.BLOCKED if None in ends else JobState.QUEUED
        assert again.job(later).state is (JobState.CANCELLED if failed else waits)


async def test_what_waits_for_a_failure_is_cancelled(farm):
    first = await farm.one()
    second = await farm.one(after=(first,))
    await farm.started()
    await farm.ends(first, UserError("wrong"))
    await farm.until("job.cancelled", second)
    assert first in farm.job(second).error["message"]
    third = await farm.one(after=(second,))
    await farm.until("job.cancelled", third)


async def test_a_deadline_ends_what_waits_and_what_runs(farm):
    farm.devices.change(phone("p2", Life.OFFLINE))
    runs, waits = await farm.one(deadline_s=0.3), await farm.one(deadline_s=0.1)
    await farm.started()
    for each in (runs, waits):
        failed = await farm.until("job.failed", each)
        assert failed.data["error"]["code"] == "deadline"
    assert farm.executor.cancelled == [f"{runs}.1"]


async def test_an_attempt_that_takes_too_long(farm, monkeypatch):
    monkeypatch.setattr("farm.jobs.attempt_run.GRACE_S", 0)
    job_id = await farm.one(timeout_s=0.1)
    (await farm.started()).progress("warming up")
    failed = await farm.until("job.failed", job_id)
    assert failed.data["error"]["code"] == "timeout"
    assert failed.data["error"]["message"].endswith("it was at: warming up")


async def test_jobs_of_a_forgotten_phone_fail(farm):
    farm.devices.change(phone("p2", Life.OFFLINE))
    submitted = await farm.submit(devices="all")
    farm.devices.change(phone("p2", Life.GONE), forget=True)
    failed = await farm.until("job.failed", submitted.jobs[1])
    assert failed.data["error"]["code"] == "phone_forgotten"


class FullDisk:
    """Lets writes of the job table fail until there is room."""

    def __init__(self, store, monkeypatch):
        self.full = False
        self.tried = asyncio.Event()
        for name in ("start", "finish", "save", "add"):
            monkeypatch.setattr(store.jobs, name, self._unless_full(getattr(store.jobs, name)))

    def _unless_full(self, write):
        async def attempt(*args, **kwargs):
            if self.full:
                self.tried.set()
                raise StoreWriteError("the disk is full")
            return await write(*args, **kwargs)

        return attempt


async def test_a_full_disk_loses_no_result_and_doubles_none(farm, monkeypatch):
    monkeypatch.setattr("farm.store.patience.RETRY_S", 0.01)
    disk = FullDisk(farm.store, monkeypatch)
    job_id = await farm.one()
    running = await farm.started()
    disk.full = True
    farm.executor.end(job_id, {"answer": 42})
    async with asyncio.timeout(PATIENCE_S):
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


DEEP: list = []
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
    assert not farm.dispatcher.lives(job_id)


async def test_what_a_failed_attempt_gave_cannot_be_kept_but_its_error_is(farm):
    error = FailedWithResultError("exit code 1")
    error.result = {"seconds": float("inf")}
    job_id = await farm.one()
    await farm.started()
    await farm.ends(job_id, error)
    assert farm.job(job_id).error["message"] == "exit code 1"


class Refusing:
    """Lets a write of the job table raise as long as it is about to write one of these states."""

    def __init__(self, store, monkeypatch, name, *states):
        self.write, self.states = getattr(store.jobs, name), states
        monkeypatch.setattr(store.jobs, name, self)

    async def __call__(self, *args, **options):
        if any(job.state in self.states for job in args if isinstance(job, Job)):
            raise ValueError("a bug")
        return await self.write(*args, **options)


@pytest.mark.parametrize("error", [None, HostError("no room")])
async def test_an_end_that_the_store_refuses_is_kept_as_a_failure(farm, monkeypatch, error):
    job_id = await farm.one()
    after = await farm.one(after=(job_id,))
    running = await farm.started()
    Refusing(farm.store, monkeypatch, "finish", JobState.DONE, JobState.QUEUED)
    await farm.ends(job_id, error or {"answer": 42})
    job, (attempt,) = farm.job(job_id), farm.store.jobs.attempts(job_id)
    assert (job.state, job.error["message"], job.not_before) == (JobState.FAILED, "ValueError: a bug", None)
    assert (attempt.state, attempt.error) == (AttemptState.FAILED, job.error)
    assert farm.store.jobs.result(job_id) is None
    await farm.until("job.cancelled", after)
    assert running.lease.id in farm.leases.released
    assert not farm.dispatcher.lives(job_id)


async def test_an_end_that_can_be_kept_in_no_form_frees_the_phone_and_is_taken_up_at_the_next_start(tmp_path):
    path = tmp_path / "farm.db"
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with running(path, "p1") as farm:
            job_id = await farm.one()
            lease = (await farm.started()).lease
            Refusing(farm.store, monkeypatch, "finish", *JobState)
            farm.executor.end(job_id, {"answer": 42})
            async with asyncio.timeout(PATIENCE_S):
                while farm.dispatcher.lives(job_id):  # noqa: ASYNC110 (another thread's commit)
                    await asyncio.sleep(0.001)
            assert farm.leases.released == [lease.id]
    async with running(path, "p1") as again:
        assert (await again.started()).job.id == job_id
        assert again.store.jobs.attempts(job_id)[0].error["code"] == "daemon_died"


async def test_a_state_that_the_store_refuses_becomes_a_failure(farm, monkeypatch):
    farm.devices.change(phone("p1", Life.OFFLINE))
    farm.devices.change(phone("p2", Life.OFFLINE))
    job_id = await farm.one()
    Refusing(farm.store, monkeypatch, "save", JobState.HELD)
    farm.dispatcher.hold(job_id)
    await farm.dispatcher.settled(job_id)
    assert (farm.job(job_id).state, farm.job(job_id).error["message"]) == (JobState.FAILED, "ValueError: a bug")


async def test_an_attempt_that_cannot_begin_gives_its_phone_back_and_begins_later(farm, monkeypatch):
    monkeypatch.setattr("farm.jobs.dispatcher.LOST_START_PAUSE_S", 0.01)
    start, tries = farm.store.jobs.start, []

    async def fails_once(*args, **options):
        tries.append(args)
        if len(tries) == 1:
            raise ValueError("a bug")
        return await start(*args, **options)

    monkeypatch.setattr(farm.store.jobs, "start", fails_once)
    job_id = await farm.one()
    assert (await farm.started()).attempt.id == f"{job_id}.1"
    assert len(farm.leases.released) == 1


async def test_a_job_that_cannot_even_ask_fails_alone(farm, monkeypatch):
    def request_of(job, avoid):
        if job.user == "mallory":
            raise KeyError("of another release")
        return planning.request_of(job, avoid)

    monkeypatch.setattr("farm.jobs.dispatcher.request_of", request_of)
    bad = await farm.one(user="mallory")
    await farm.until("job.failed", bad)
    assert farm.job(bad).error["fault"] == "farm"
    good = await farm.one(user="alice")
    assert (await farm.started()).job.id == good


async def test_a_job_whose_spec_cannot_be_read_fails_alone(farm, monkeypatch):
    monkeypatch.setattr("farm.jobs.workbench.spec_from_wire", lambda _: 1 / 0)
    job_id = await farm.one(max_attempts=1)
    await farm.until("job.failed", job_id)
    assert farm.job(job_id).error["message"] == "ZeroDivisionError: division by zero"
    assert len(farm.leases.released) == 1


async def test_no_job_is_taken_while_the_store_has_a_problem(farm, monkeypatch):
    monkeypatch.setattr(type(farm.store), "problem", property(lambda _: "the disk is full"))
    with pytest.raises(StoreTroubleError, match="the disk is full"):
        await farm.submit()


async def test_a_killed_daemons_jobs_go_on(tmp_path):
    path = tmp_path / "farm.db"
    farm = Farm(path, "p1")
    await farm.dispatcher.start()
    runs, waits = await farm.one(), await farm.one()
    array = await farm.submit(devices=2, hold=True)
    await farm.started()
    farm.crash()
    async with running(path, "p1", "p2") as again:
        both = {(await again.started()).job.id, (await again.started()).job.id}
        assert both == {runs, waits}
        first, second = again.store.jobs.attempts(runs)
        assert (first.state, second.state) == (AttemptState.INTERRUPTED, AttemptState.RUNNING)
        assert second.fence > first.fence
        assert again.job(runs).uncounted == 1
        kinds = {event.kind for event in again.store.events.since(0)}
        assert {"lease.released", "job.queued"} <= kinds
        assert {again.job(each).state for each in array.jobs} == {JobState.HELD}
        await again.ends(runs, {})
        await again.ends(waits, {})


async def test_a_job_that_kills_the_daemon_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("farm.core.retry.MOST_CRASHES", 2)
    path = tmp_path / "farm.db"
    for _ in range(4):  # an upgrade is no crash
        async with running(path, "p1") as farm:
            job_id = await farm.one(key="the same")
            await farm.started()
    for _ in range(2):
        farm = Farm(path, "p1")
        await farm.dispatcher.start()
        job_id = await farm.one(key="the same")
        await farm.started()
        farm.crash()
    async with running(path, "p1") as again:
        job = again.job(job_id)
        assert (job.state, job.error["code"]) == (JobState.FAILED, "interrupted_too_often")
        how = [attempt.error["code"] for attempt in again.store.jobs.attempts(job_id)]
        assert how == ["daemon_stopped"] * 4 + ["daemon_died"] * 2
        assert again.leases.waiting == {}


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


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_a_persons_lease_outlives_the_daemon(tmp_path, end):
    path = tmp_path / "farm.db"
    farm = Farm(path, "p1")
    await farm.dispatcher.start()
    (job_id,) = (await farm.dispatcher.submit(LeaseSpec(on="android", seconds=600), "alice")).jobs
    running_attempt = await farm.started()
    lease = running_attempt.lease
    await running_attempt.save_facts({"adb_port": 1234})
    await farm.store.leases.extend(lease.id, datetime.now(UTC) + timedelta(seconds=600))
    if end == "stop":
        await farm.dispatcher.stop()
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
    farm = Farm(path, "p1")
    await farm.dispatcher.start()
    (job_id,) = (await farm.dispatcher.submit(LeaseSpec(on="android", seconds=600), "alice")).jobs
    running_attempt = await farm.started()
    await running_attempt.save_facts({"adb_port": 1234})
    await farm.store.leases.extend(running_attempt.lease.id, datetime.now(UTC))
    farm.crash()
    async with running(path, "p1") as again:
        assert again.job(job_id).state is JobState.DONE
        assert again.store.jobs.result(job_id)["ended"] == "its time ended while the daemon was down"
        assert again.store.leases.open() == ()
        assert again.executor.resumed == []


async def test_a_lease_that_was_taken_away_before_the_crash_is_not_given_again(tmp_path):
    path = tmp_path / "farm.db"
    farm = Farm(path, "p1")
    await farm.dispatcher.start()
    (job_id,) = (await farm.dispatcher.submit(LeaseSpec(on="android", seconds=600), "alice")).jobs
    running_attempt = await farm.started()
    await running_attempt.save_facts({"adb_port": 1234})
    await farm.store.leases.end(running_attempt.lease.id, ended_at=datetime.now(UTC), reason="kicked", held_s=1)
    farm.crash()
    async with running(path, "p1") as again:
        assert again.job(job_id).state is JobState.FAILED
        assert again.job(job_id).error["code"] == "lease_ended"


async def test_deadlines_follow_a_clock_that_is_set(tmp_path):
    set_by_s = 0.0

    def clock():
        return Moment(asyncio.get_running_loop().time(), datetime.now(UTC) + timedelta(seconds=set_by_s))

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
