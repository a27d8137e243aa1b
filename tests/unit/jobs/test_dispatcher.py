"""The dispatcher over a real store, with leasing, phones and executors played by the test."""

import asyncio
import errno
import math
import os
from dataclasses import replace

import pytest

from farm.common.errors import Code, HostError, NoPhoneError, NotAllowedError, PhoneError, UserError
from farm.head.config import UserConfig
from farm.head.planning import ended_before
from farm.head.queue.model import NoSuchJobError
from farm.head.queue.retry import MAX_CRASHES
from farm.jobs.attempt import YieldedError
from farm.jobs.zygote import ToolchainError
from farm.leasing.model import PhoneLostError
from farm.model.device import Life, Service
from farm.model.job import AttemptState, JobState
from farm.model.requests import NoSuchLeaseError
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S
from tests.unit.jobs.dispatching import killed, running
from tests.unit.jobs.fakes import FakeExecutor, phone


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
    assert running.lease.request.worker
    assert farm.leases.released == [running.lease.id]
    kinds = [event.kind for event in farm.store.events.since(0) if event.kind != "job.progress"]
    assert kinds == ["job.submitted", "attempt.started", "attempt.ended", "job.done"]


async def test_all_means_one_job_for_each_matching_phone_in_service(farm):
    farm.devices.change(phone("p3", service=Service.MAINTENANCE))
    farm.devices.change(phone("p4", Life.GONE))
    submitted = await farm.submit(devices="all")
    assert [farm.job(each).device for each in submitted.ids] == ["p1", "p2", "p4"]
    assert {farm.job(each).array for each in submitted.ids} == {submitted.array}
    (warning,) = submitted.warnings
    assert warning.startswith("only 2 matching phones are available, the job waits (")
    assert "p4: gone" in warning


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


async def test_the_same_key_again_or_at_once_adds_nothing_whatever_the_quota(tmp_path):
    async with running(tmp_path / "farm.db", "p1", quota=UserConfig(jobs=2)) as farm:
        first, twin = await asyncio.gather(farm.submit(key="k"), farm.submit(key="k"))
        await asyncio.gather(farm.submit(key="other"), farm.submit(key="other"))  # the quota has room for one
        assert first.ids == twin.ids == (await farm.submit(key="k")).ids
        assert (await farm.submit(key="k", user="bob")).ids != first.ids
        with raises_code(Code.QUOTA_EXCEEDED):
            await farm.submit(key="another")
        assert len(farm.store.jobs.live()) == 3
        assert [event.kind for event in farm.store.events.since(0)].count("job.submitted") == 3


async def test_quotas_of_a_user(tmp_path):
    async with running(tmp_path / "farm.db", "p1", quota=UserConfig(jobs=2, priority=3)) as farm:
        with pytest.raises(NotAllowedError, match="priority 3 at most"):
            await farm.submit(priority=4)
        with raises_code(Code.QUOTA_EXCEEDED):
            await farm.submit(devices=3)
        outcomes = await asyncio.gather(*(farm.submit() for _ in range(4)), return_exceptions=True)
        assert [getattr(each, "code", None) for each in outcomes].count(Code.QUOTA_EXCEEDED) == 2


async def test_too_many_jobs_at_once(farm):
    for index in range(1001):
        farm.devices.change(phone(f"q{index:04}"))
    with raises_code(Code.BAD_SPEC):
        await farm.submit(devices="all")


async def test_a_phone_that_failed_is_taken_again_when_the_other_goes(farm):
    farm.devices.change(phone("p2", Life.STARTING))
    job = await farm.tried(PhoneError("wrong numbers"))
    assert (await farm.waits(job.id)) == "every phone is busy"
    farm.devices.change(phone("p2", Life.GONE))
    assert (await farm.started()).lease.device == "p1"


@pytest.mark.parametrize(
    ("raised", "tries", "fault", "said"),
    [
        (RuntimeError("oops"), 1, "farm", "oops"),
        (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/state/bundles"), 1, "host", "/state/bundles"),
        (UserError("no such model"), 3, "user", "no such model"),  # it is final
    ],
)
async def test_an_error_is_told_with_whose_fault_it_is(farm, raised, tries, fault, said):
    job = await farm.tried(raised, max_attempts=tries)
    assert (job.state, job.error["fault"]) == (JobState.FAILED, fault)
    assert said in job.error["message"]
    assert ("bug" in job.error["hint"]) is (fault == "farm")


async def test_what_stops_a_hosts_workers_is_told_once_with_its_jobs_and_is_no_try_of_theirs(farm, caplog):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/work/attempts")
    first, second = await farm.one(max_attempts=2), await farm.one(max_attempts=2)
    for job_id in (first, second):
        await farm.started()
        await farm.ends(job_id, full)
    for _ in range(2):  # each once more
        await farm.ends((await farm.started()).job.id, full)
    assert [(job.state, job.attempts, job.uncounted) for job in map(farm.job, (first, second))] == [
        (JobState.QUEUED, 2, 2)
    ] * 2
    error = farm.job(first).error
    assert error["code"] == Code.HOST_IMPAIRED
    assert error["hint"].startswith("an operator of the host has to mend that: free some room")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    (problem,) = farm.attempts.problems()
    assert problem.startswith(f"{Code.HOST_IMPAIRED.meaning} 2 jobs affected; latest: farm job show ")
    assert farm.leases.standing == {"": f"no job runs: {Code.HOST_IMPAIRED.meaning}"}
    await farm.ends((await farm.started()).job.id, {})
    assert (farm.attempts.problems(), farm.leases.standing) == ([], {})


async def test_a_job_that_may_be_tried_once_fails_by_its_host(farm):
    job = await farm.tried(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), max_attempts=1)
    assert (job.state, job.error["code"]) == (JobState.FAILED, Code.HOST_IMPAIRED)


@pytest.mark.parametrize(("elsewhere", "state"), [("", JobState.FAILED), ("lab2", JobState.QUEUED)])
async def test_what_a_host_lacks_for_a_job_is_not_tried_there_again(farm, caplog, elsewhere, state):
    farm.devices.change(phone("p2", Life.STARTING, host=elsewhere))
    for _ in range(2):
        job = await farm.tried(HostError("no linker for armv7", Code.NO_LINKER, hint="install lld"), max_attempts=3)
        assert (job.state, job.attempts) == (state, 1)
        assert job.avoid == ({"p1"} if elsewhere else frozenset())
    assert farm.leases.standing == {}
    (problem,) = farm.attempts.problems()
    assert problem.startswith(f"{Code.NO_LINKER.meaning} 2 jobs affected")
    assert len(caplog.records) == 1


async def test_a_session_that_the_gate_ended_is_not_the_phones_fault(farm):
    job_id = await farm.one(max_attempts=2)
    await farm.started()
    farm.gate_gone_at = math.inf
    await farm.ends(job_id, PhoneError("opening the session failed: connection refused"))
    job = farm.job(job_id)
    assert (job.error["code"], job.error["fault"], job.uncounted, job.avoid) == (Code.GATE_GONE, "host", 1, frozenset())
    assert "" in farm.leases.standing


@pytest.mark.parametrize("error", [ToolchainError("toolchain default is not up"), YieldedError()])
async def test_a_toolchain_that_is_down_and_giving_way_are_no_try_of_the_jobs(farm, error):
    job_id = await farm.one(max_attempts=1)
    for number in range(1, 5):
        assert (await farm.started()).attempt.number == number
        await farm.ends(job_id, error)
    assert farm.job(job_id).state is not JobState.FAILED
    assert farm.job(job_id).uncounted == 4


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (PhoneLostError("p1 is gone"), JobState.QUEUED),
        (PhoneError("p1 is dangerously hot", Code.TOO_HOT), JobState.QUEUED),
        (UserError("ended by an operator", Code.LEASE_ENDED), JobState.FAILED),
    ],
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
    await farm.until(f"job.{state}", job_id)


async def test_a_phone_that_went_with_the_adb_server_costs_its_job_no_try(farm):
    gone = replace(phone("p1", Life.GONE), reason="not listed by adb", external_cause="the adb server went away")
    job_id = await farm.one(max_attempts=2)
    for number in range(1, MAX_CRASHES + 1):
        device = (await farm.started()).attempt.device
        farm.leases.take(device, PhoneLostError.of(gone))
        ended = await farm.until("attempt.ended", f"{job_id}.{number}")
        assert ended.data["error"]["code"] == "host_link_lost"
    await farm.until("job.failed", job_id)
    job = farm.job(job_id)
    assert (job.uncounted, job.avoid, job.error["code"]) == (MAX_CRASHES, frozenset(), "interrupted_too_often")


async def test_a_phone_that_goes_with_the_adb_server_while_the_database_is_away_costs_its_job_no_try(farm, monkeypatch):
    gone = replace(phone("p1", Life.GONE), reason="not listed by adb", external_cause="the adb server went away")
    job_id = await farm.one(max_attempts=2)
    device, attempts = (await farm.started()).attempt.device, farm.store.jobs.attempts

    def away(_):
        farm.store.jobs.attempts = attempts
        raise HostError("the database cannot be read", Code.STORE_READ_FAILED)

    monkeypatch.setattr("farm.jobs.attempt_run.READ_AGAIN_S", 0.0)
    farm.store.jobs.attempts = away
    farm.leases.take(device, PhoneLostError.of(gone))
    ended = await farm.until("attempt.ended", f"{job_id}.1")
    assert ended.data["error"]["code"] == "host_link_lost"
    assert (await farm.started()).attempt.number == 2


async def test_a_lease_that_is_over_before_the_work_begins_is_no_fault_of_the_job(farm):
    when_revoked = farm.leases.when_revoked

    def over(lease_id):
        farm.leases.when_revoked = when_revoked
        raise NoSuchLeaseError(f"there is no lease {lease_id!r}")

    farm.leases.when_revoked = over
    job_id = await farm.one()
    ended = await farm.until("attempt.ended", f"{job_id}.1")
    assert (ended.data["error"]["code"], ended.data["error"]["fault"]) == ("phone_lost", "phone")
    assert (await farm.started()).attempt.number == 2


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


@pytest.mark.parametrize(("limit_s", "told"), [(HANG_S, "p1 is gone"), (0.0, "p1 is offline")])
async def test_a_phone_that_adb_lists_as_offline_is_told_as_gone_when_it_is_so_in_a_moment(
    farm, monkeypatch, limit_s, told
):
    monkeypatch.setattr("farm.jobs.attempt_run.UNLISTED_LIMIT_S", limit_s)
    await farm.one()
    await farm.started()
    farm.devices.change(phone("p1", Life.OFFLINE))
    farm.leases.take("p1", PhoneLostError("p1 is offline"))
    if limit_s:
        await asyncio.sleep(0)
        farm.devices.change(phone("p1", Life.GONE))
    error = (await farm.until("attempt.ended")).data["error"]
    assert (error["code"], error["message"]) == ("phone_lost", told)


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


class KeepingExecutor(FakeExecutor):
    """Notes what it was told of, with the state its job had in the store."""

    def __init__(self, store, error):
        super().__init__()
        self.store, self.error, self.left = store, error, []

    async def salvage(self, running):
        self.left.append((running.attempt.id, running.view.name, self.store.jobs.get(running.job.id).state))
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, HostError("no room"), RuntimeError("a bug")])
async def test_what_a_job_has_behind_it_is_kept_before_it_ends_waiting(tmp_path, error):
    async with running(tmp_path / "farm.db", "p1") as farm:
        farm.executor = farm.attempts._executors["run"] = KeepingExecutor(farm.store, error)
        tried, never = await farm.one(), await farm.one(hold=True)
        await farm.started()
        farm.devices.change(phone("p1", Life.OFFLINE))  # the next attempt has none to go to
        await farm.ends(tried, HostError("the worker died"))
        await farm.dispatcher.settled(tried)
        for each in (tried, never):
            farm.dispatcher.cancel(each, UserError("not wanted"))
            await farm.dispatcher.settled(each)
            assert farm.job(each).state is JobState.CANCELLED
        assert farm.executor.left == [(f"{tried}.1", "p1", JobState.QUEUED)]


async def test_one_after_another_by_the_beginning_of_its_name(farm):
    first = await farm.one()
    array = await farm.submit(devices="all", after=(first[:12],))
    last = await farm.one(after=(array.array,))
    await farm.started()
    assert (await farm.waits(last)).startswith(f"it waits for {array.array}, of which ")
    await farm.ends(first, {})
    for _ in range(2):
        await farm.ends((await farm.started()).job.id, {})
    assert (await farm.started()).job.id == last
    await farm.ends(last, {})
    (final,) = (await farm.submit(after=(last, array.array))).jobs
    assert final.state is JobState.BLOCKED
    assert (await farm.started()).job.after == (last, array.array)
    with pytest.raises(NoSuchJobError):
        await farm.submit(after=("nothing",))


async def test_what_a_job_waits_for_may_end_while_the_store_is_read(farm):
    """A server is read in a thread: the queue has forgotten the first job by then."""
    first = await farm.one()
    await farm.started()
    read = farm.store.read

    async def ends_meanwhile(function, *arguments):
        found = await read(function, *arguments)
        if function is ended_before and found == {}:
            await farm.ends(first, {})
        return found

    farm.store.read = ends_meanwhile
    await farm.one(after=(first,))
    await farm.started()


@pytest.mark.parametrize("ends", [({}, {}), ({}, UserError("no")), (None, {}), (None, UserError("no")), (None, None)])
async def test_what_jobs_waited_for_is_known_after_a_restart(tmp_path, ends):
    """Each end of two jobs of an array: done, failed, or not yet."""
    path = tmp_path / "farm.db"
    async with killed(path, "p1", "p2") as farm:
        first = await farm.submit(devices="all")
        for _ in first.ids:
            await farm.started()
        for job_id, end in zip(first.ids, ends, strict=True):
            if end is not None:
                await farm.ends(job_id, end)
        for name in ("p1", "p2"):
            farm.devices.change(phone(name, Life.OFFLINE))
        alone = await farm.one(hold=True)
        later, behind = [await farm.one(hold=True, after=(each,)) for each in (first.array, alone)]
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
    failed = await farm.until("job.failed", submitted.ids[1])
    assert failed.data["error"]["code"] == "phone_forgotten"


async def test_a_job_says_at_once_that_the_last_phone_that_it_waits_for_is_withheld(farm):
    for name in ("p1", "p2"):
        farm.devices.change(phone(name, Life.STARTING))
    named = await farm.one(on="name=p2")
    pinned, other = (await farm.submit(devices="all")).ids
    either = await farm.one()
    farm.devices.change(phone("p2", Life.QUARANTINED))
    told = [(event.subject, event.data["reason"]) for event in farm.told if event.kind == "job.waits"]
    assert told == [(each, "every phone is busy") for each in (named, other)]
    farm.devices.change(phone("p1", Life.GONE))
    assert [event.subject for event in farm.told if event.kind == "job.waits"][2:] == [pinned, either]
