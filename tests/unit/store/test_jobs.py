"""Jobs and their attempts: what is kept, what a late or repeated change does, and what pages show."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from farm.common.errors import Code
from farm.common.events import EventLog
from farm.model.job import FINAL, AttemptState, JobState
from farm.model.requests import LeaseClass
from tests.support.errors import raises_code
from tests.unit.store.values import NOW, attempt, begin, ended, job, lease, over

EVERYTHING = job(
    "full", kind="bench", spec={"model": "a" * 64, "n": [1, 2.5, None]}, state=JobState.BLOCKED, device="pixel",
    avoid=frozenset({"a", "b"}), array="arr", priority=9, lease_class=LeaseClass.TUNE, timeout_s=0.25, max_attempts=7,
    deadline=NOW + timedelta(days=1), after=("j0", "j1"), attempts=3, uncounted=2, not_before=NOW,
    error={"fault": "phone", "message": "went away"},
)  # fmt: skip


@pytest.fixture
def live(store):
    """The ids of the jobs that have not ended."""
    return lambda: [each.id for each in store.jobs.live()]


@pytest.fixture
def paged(store):
    """The ids on a page."""
    return lambda **asked: " ".join(each.id for each in store.jobs.page(**asked))


async def test_a_job_comes_back_as_it_was(opened, store, where):
    await store.jobs.add((EVERYTHING, job()))
    assert (store.jobs.get("full"), store.jobs.get("absent")) == (EVERYTHING, None)
    assert store.jobs.live() == (EVERYTHING, job())
    store.close()
    assert opened(where).jobs.live() == (EVERYTHING, job())


async def test_a_job_that_ended_is_history(store, live):
    await store.jobs.add([job(name) for name in "abc"])
    done = ended(job("b"), JobState.CANCELLED)
    assert await store.jobs.save(done, expected={JobState.QUEUED}) is True
    assert await store.jobs.save(replace(job("b"), state=JobState.HELD), expected={JobState.QUEUED}) is False
    assert (live(), store.jobs.get("b")) == (["a", "c"], done)


async def test_the_same_key_of_the_same_user_adds_nothing_twice(store, live):
    log = EventLog(store.epoch)
    first = [job("a"), job("b")]
    both = await asyncio.gather(*(store.jobs.add(jobs, key="k") for jobs in (first, [job("w")])))
    assert both == [("a", "b"), ("a", "b")]
    with log.drafted(("job.submitted", "x", {})) as drafts:
        assert await store.jobs.add([job("x")], key="k", events=drafts) == ("a", "b")
    assert await store.jobs.add([job("c", user="bob")], key="k") == ("c",)
    assert await store.jobs.add([job("d")], key="l") == ("d",)
    assert await store.jobs.add(()) == ()
    assert live() == ["a", "b", "c", "d"]
    assert list(log.since()) == list(store.events.since(0)) == []


async def test_an_attempt_from_start_to_end(store):
    await store.jobs.add((job(),))
    begun = attempt()
    assert await begin(store, begun) is True
    running = store.jobs.get("j1")
    assert (running.state, running.attempts) == (JobState.RUNNING, 1)
    assert store.jobs.running() == store.jobs.attempts("j1") == (begun,)
    assert await store.jobs.save_facts(begun.id, begun.fence, {"key": "abc"}) is True
    assert await store.jobs.finish(over(begun), ended(running), result={"ok": True}) is True
    assert store.jobs.running() == ()
    kept = replace(over(begun), facts={"key": "abc"})
    assert store.jobs.attempts("j1") == (kept,)
    assert store.jobs.latest_attempts(["j1", "absent"]) == {"j1": kept}
    assert store.jobs.get("j1") == ended(running)
    assert (store.jobs.result("j1"), store.jobs.result("absent")) == ({"ok": True}, None)


async def test_the_labs_list_has_no_lease_whose_attempt_has_ended(server_store):
    """A lost host ends it when it is back."""
    jobs = server_store.jobs
    await jobs.add((job(),))
    await begin(server_store, begun := attempt())
    assert [each.id for each in server_store.lab.look().leases] == ["l1"]
    await jobs.finish(over(begun, AttemptState.INTERRUPTED), replace(jobs.get("j1"), state=JobState.QUEUED))
    assert server_store.lab.look().leases == ()


@pytest.mark.parametrize(
    ("state", "attempts_before"), [(JobState.HELD, 0), (JobState.QUEUED, 1), (JobState.RUNNING, 0)]
)
async def test_a_claim_decided_from_what_is_not_so_any_more_writes_nothing(store, state, attempts_before):
    log = EventLog(store.epoch)
    await store.jobs.add((job(state=state),))
    await store.leases.grant(lease())
    with log.drafted(("attempt.started", "j1.1", {})) as drafts:
        assert await store.jobs.start(attempt(), attempts_before=attempts_before, events=drafts) is False
    assert (store.jobs.get("j1"), store.jobs.attempts("j1")) == (job(state=state), ())
    assert list(log.since()) == list(store.events.since(0)) == []


async def test_of_two_claims_one_wins(store):
    await store.jobs.add((job(),))
    claims = (attempt(1), attempt(2, device="other"))
    for each in claims:
        await store.leases.grant(lease(each.fence, each.device))
    assert await asyncio.gather(*(store.jobs.start(each, attempts_before=0) for each in claims)) == [True, False]
    assert store.jobs.running() == (attempt(1),)


@pytest.mark.parametrize("what", ["another fence", "the attempt has ended", "the job has ended"])
async def test_a_stale_report_writes_nothing(store, what):
    await store.jobs.add((job(),))
    begun = attempt()
    await begin(store, begun)
    left = running = store.jobs.get("j1")
    stale = over(replace(begun, fence=99) if what == "another fence" else begun)
    if what == "the attempt has ended":
        left = replace(running, state=JobState.QUEUED)
        assert await store.jobs.finish(over(begun, AttemptState.FAILED), left) is True
    elif what == "the job has ended":
        left = ended(running, JobState.CANCELLED)
        await store.jobs.save(left, expected={JobState.RUNNING})
    assert await store.jobs.finish(stale, ended(running), result={"late": True}) is False
    if what != "the job has ended":
        assert await store.jobs.save_facts(stale.id, stale.fence, {"late": True}) is False
    assert (store.jobs.get("j1"), store.jobs.result("j1"), store.jobs.attempts("j1")[0].facts) == (left, None, {})


async def test_guards_of_the_database(store, live):
    await store.jobs.add([job("a"), job("b"), job("c", uncounted=0)])
    assert await begin(store, attempt(1, "a")) is True
    refused = [
        store.leases.grant(lease(2, "pixel")),  # one open lease per device
        store.leases.grant(lease(1, "other", id="lx")),  # one grant per fence
        store.jobs.start(attempt(1, "b"), attempts_before=0),  # one running attempt per device, and per fence
        store.jobs.start(attempt(9, "c", device="other"), attempts_before=0),  # no such lease
        store.jobs.add((job("a"),)),  # one job of an id
        store.jobs.add((job("d", state=JobState.DONE),)),  # ended means: with a time
        store.jobs.add((job("d", ended_at=NOW),)),
        store.jobs.add((job("d", uncounted=1),)),  # more than attempts
    ]
    outcomes = await asyncio.gather(*refused, store.jobs.add((job("e"),)), return_exceptions=True)
    assert [getattr(each, "code", type(each)) for each in outcomes] == [Code.STORE_CONFLICT] * len(refused) + [tuple]
    assert live() == ["a", "b", "c", "e"]
    assert store.jobs.running() == (attempt(1, "a"),)
    assert store.leases.open() == (lease(1, job="a", armed_at=NOW),)


async def test_one_running_attempt_per_job(store):
    await store.jobs.add((job(),))
    await begin(store, attempt(1))
    await store.leases.grant(lease(2, "other"))
    again = replace(store.jobs.get("j1"), state=JobState.QUEUED)
    await store.jobs.save(again, expected={JobState.RUNNING})
    with raises_code(Code.STORE_CONFLICT):
        await store.jobs.start(attempt(2, number=2, device="other"), attempts_before=1)
    assert store.jobs.get("j1") == again


async def test_pages_newest_first(store, paged):
    jobs = [
        job(f"j{n}", user=("ann", "bob")[n % 2], kind="run" if n < 3 else "shell", array="a" if n > 6 else "")
        for n in range(10)
    ]
    await store.jobs.add(jobs)
    for number, state in ((0, JobState.DONE), (1, JobState.FAILED), (2, JobState.DONE), (7, JobState.CANCELLED)):
        assert await store.jobs.save(ended(jobs[number], state), expected=(JobState.QUEUED,))
    assert paged() == "j9 j8 j7 j6 j5 j4 j3 j2 j1 j0"
    assert paged(limit=3) == "j9 j8 j7"
    assert paged(limit=3, before="j7") == "j6 j5 j4"
    assert paged(before="absent") == ""
    assert paged(user="bob") == "j9 j7 j5 j3 j1"
    assert paged(kind="run") == "j2 j1 j0"
    assert paged(array="a") == "j9 j8 j7"
    assert paged(state={JobState.FAILED}) == "j1"
    assert paged(state={JobState.QUEUED}, user="ann") == "j8 j6 j4"
    assert paged(state={JobState.QUEUED, JobState.DONE}, user="ann") == "j8 j6 j4 j2 j0"
    assert paged(state=(JobState.QUEUED, JobState.HELD), user="bob") == "j9 j5 j3"
    assert paged(state=tuple(FINAL)) == "j7 j2 j1 j0"
    assert paged(state=tuple(FINAL), limit=2, before="j7") == "j2 j1"
    assert paged(state=tuple(FINAL), user="bob", limit=3) == "j7 j1"
    assert paged(jobs=("j0", "a", "nobody", "")) == "j9 j8 j7 j0"
    assert paged(jobs=("j0", "a"), state=(JobState.QUEUED,)) == "j9 j8"
    assert paged(jobs=("j0", "a"), before="j9", limit=1) == "j8"
    assert store.jobs.states("a") == {JobState.CANCELLED, JobState.QUEUED}
    assert store.jobs.states("") == store.jobs.states("b") == frozenset()
    assert [each.id for each in store.jobs.several(("j4", "nobody", "j0"))] == ["j4", "j0"]


async def test_ids_by_their_beginning(store):
    await store.jobs.add([job(name) for name in ("ab-1", "ab-2", "abc", "b", "A", "a%", "aé")])

    def found(text, **options):
        return [each.id for each in store.jobs.find(text, **options)]

    assert found("ab") == ["ab-1", "ab-2", "abc"]
    assert found("ab-1") == ["ab-1"]
    assert found("a", limit=2) == ["a%", "ab-1"]
    assert found("aé") == ["aé"]
    assert found("x") == []


async def test_a_selector_is_stored_once(store):
    await store.jobs.add([job(f"j{i}", selector=f"soc=s{i % 3}") for i in range(30)])
    with store.database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM selector").scalar_one() == 3
