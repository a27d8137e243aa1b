import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from farm.common.errors import Code
from farm.common.events import EventLog
from farm.model.job import FINAL, AttemptState, JobState
from farm.model.requests import LeaseClass
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.unit.store.values import NOW, attempt, begin, ended, job, lease, over

EVERYTHING = job(
    "full", kind="bench", spec={"model": "a" * 64, "n": [1, 2.5, None]}, state=JobState.BLOCKED, device="pixel",
    avoid=frozenset({"a", "b"}), array="arr", priority=9, lease_class=LeaseClass.TUNE, timeout_s=0.25, max_attempts=7,
    deadline=NOW + timedelta(days=1), after=("j0", "j1"), attempts=3, uncounted=2, not_before=NOW,
    error={"fault": "phone", "message": "went away"},
)  # fmt: skip


async def test_a_job_comes_back_as_it_was(store, where):
    await store.jobs.add((EVERYTHING, job()))
    assert store.jobs.get("full") == EVERYTHING
    assert store.jobs.live() == (EVERYTHING, job())
    assert store.jobs.get("absent") is None
    store.close()
    again = Store.open(where)
    assert again.jobs.live() == (EVERYTHING, job())
    again.close()


async def test_a_job_that_ended_is_history(store):
    await store.jobs.add([job(name) for name in "abc"])
    done = ended(job("b"), JobState.CANCELLED)
    assert await store.jobs.save(done, expected={JobState.QUEUED}) is True
    assert await store.jobs.save(replace(job("b"), state=JobState.HELD), expected={JobState.QUEUED}) is False
    assert [each.id for each in store.jobs.live()] == ["a", "c"]
    assert store.jobs.get("b") == done


async def test_the_same_key_of_the_same_user_adds_nothing_twice(store):
    log = EventLog(store.epoch)
    first = [job("a"), job("b")]
    assert await store.jobs.add(first, key="k") == ("a", "b")
    with log.drafted(("job.submitted", "x", {})) as drafts:
        assert await store.jobs.add([job("x")], key="k", events=drafts) == ("a", "b")
    assert await store.jobs.add([job("c", user="bob")], key="k") == ("c",)
    assert await store.jobs.add([job("d")], key="l") == ("d",)
    assert await store.jobs.add(()) == ()
    assert [each.id for each in store.jobs.live()] == ["a", "b", "c", "d"]
    assert list(log.since()) == list(store.events.since(0)) == []


async def test_one_key_submitted_twice_at_once(store):
    both = await asyncio.gather(*(store.jobs.add([job(name)], key="k") for name in ("a", "b")))
    assert both == [("a",), ("a",)]
    assert [each.id for each in store.jobs.live()] == ["a"]


async def test_an_attempt_from_start_to_end(store):
    await store.jobs.add((job(),))
    begun = attempt()
    assert await begin(store, begun) is True
    running = store.jobs.get("j1")
    assert (running.state, running.attempts) == (JobState.RUNNING, 1)
    assert store.jobs.running() == store.jobs.attempts("j1") == (begun,)
    assert await store.jobs.save_facts(begun.id, begun.fence, {"key": "abc"}) is True
    end = over(begun)
    assert await store.jobs.finish(end, ended(running), result={"ok": True}) is True
    assert store.jobs.running() == ()
    assert store.jobs.attempts("j1") == (replace(end, facts={"key": "abc"}),)
    assert store.jobs.latest_attempts(["j1", "absent"]) == {"j1": replace(end, facts={"key": "abc"})}
    assert store.jobs.get("j1") == ended(running)
    assert store.jobs.result("j1") == {"ok": True}
    assert store.jobs.result("absent") is None


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
    await store.leases.grant(lease(1))
    await store.leases.grant(lease(2, "other"))
    claims = (attempt(1), attempt(2, device="other"))
    assert await asyncio.gather(*(store.jobs.start(each, attempts_before=0) for each in claims)) == [True, False]
    assert store.jobs.running() == (attempt(1),)


@pytest.mark.parametrize("what", ["fence", "ended"])
async def test_a_stale_report_writes_nothing(store, what):
    await store.jobs.add((job(),))
    begun = attempt()
    await begin(store, begun)
    running = store.jobs.get("j1")
    if what == "ended":
        retry = replace(running, state=JobState.QUEUED)
        assert await store.jobs.finish(over(begun, AttemptState.FAILED), retry) is True
        stale, left = over(begun), retry
    else:
        stale, left = over(replace(begun, fence=99)), running
    assert await store.jobs.finish(stale, ended(running), result={"late": True}) is False
    assert await store.jobs.save_facts(stale.id, stale.fence, {"late": True}) is False
    assert store.jobs.get("j1") == left
    assert store.jobs.result("j1") is None
    assert store.jobs.attempts("j1")[0].facts == {}


async def test_a_finished_job_is_never_changed_by_an_attempt(store):
    await store.jobs.add((job(),))
    begun = attempt()
    await begin(store, begun)
    cancelled = ended(store.jobs.get("j1"), JobState.CANCELLED)
    await store.jobs.save(cancelled, expected={JobState.RUNNING})
    assert await store.jobs.finish(over(begun), ended(cancelled)) is False
    assert store.jobs.get("j1") == cancelled


async def test_guards_of_the_database(store):
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
    kept = store.jobs.add((job("e"),))
    outcomes = await asyncio.gather(*refused, kept, return_exceptions=True)
    assert [getattr(each, "code", type(each)) for each in outcomes] == [Code.STORE_CONFLICT] * len(refused) + [tuple]
    assert [each.id for each in store.jobs.live()] == ["a", "b", "c", "e"]
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


async def test_pages_newest_first(store):
    await store.jobs.add(
        [job(f"j{i}", user=("ann", "bob")[i % 2], kind="run" if i < 3 else "shell", array="a" if i > 6 else "")
         for i in range(10)]
    )  # fmt: skip
    await store.jobs.save(ended(job("j4", user="ann"), JobState.FAILED), expected={JobState.QUEUED})

    def ids(**filters):
        return "".join(each.id[1] for each in store.jobs.page(**filters))

    assert ids() == "9876543210"
    assert ids(limit=3) == "987"
    assert ids(limit=3, before="j7") == "654"
    assert ids(before="absent") == ""
    assert ids(user="bob") == "97531"
    assert ids(kind="run") == "210"
    assert ids(array="a") == "987"
    assert ids(state={JobState.FAILED}) == "4"
    assert ids(state={JobState.QUEUED}, user="ann") == "8620"
    assert ids(state={JobState.QUEUED, JobState.FAILED}, user="ann") == "86420"


async def test_pages_of_some_jobs_and_arrays_and_of_several_states(store):
    jobs = [job(f"j{number}", array="a" if number in (2, 5) else "", user="bob") for number in range(6)]
    await store.jobs.add(jobs)
    for each, state in zip(jobs[:4], (JobState.DONE, JobState.FAILED, JobState.DONE, JobState.CANCELLED), strict=True):
        assert await store.jobs.save(ended(each, state), expected=(JobState.QUEUED,))

    def ids(**asked):
        return [each.id for each in store.jobs.page(**asked)]

    assert ids(jobs=("j0", "a", "nobody", "")) == ["j5", "j2", "j0"]
    assert ids(jobs=("j0", "a"), state=(JobState.QUEUED,)) == ["j5"]
    assert ids(jobs=("j0", "a"), before="j5", limit=1) == ["j2"]
    assert ids(state=tuple(FINAL)) == ["j3", "j2", "j1", "j0"]
    assert ids(state=tuple(FINAL), limit=2, before="j3") == ["j2", "j1"]
    assert ids(state=tuple(FINAL), user="bob", limit=3) == ["j3", "j2", "j1"]
    assert ids(state=(JobState.QUEUED, JobState.HELD), user="bob") == ["j5", "j4"]
    assert store.jobs.states("a") == {JobState.DONE, JobState.QUEUED}
    assert store.jobs.states("") == store.jobs.states("b") == frozenset()
    assert [each.id for each in store.jobs.several(("j4", "nobody", "j0"))] == ["j4", "j0"]


async def test_ids_by_their_beginning(store):
    await store.jobs.add([job(name) for name in ("ab-1", "ab-2", "abc", "b", "A", "a%", "aé")])
    assert [each.id for each in store.jobs.find("ab")] == ["ab-1", "ab-2", "abc"]
    assert [each.id for each in store.jobs.find("ab-1")] == ["ab-1"]
    assert [each.id for each in store.jobs.find("a", limit=2)] == ["a%", "ab-1"]
    assert [each.id for each in store.jobs.find("aé")] == ["aé"]
    assert store.jobs.find("x") == ()


async def test_a_selector_is_stored_once(store):
    await store.jobs.add([job(f"j{i}", selector=f"soc=s{i % 3}") for i in range(30)])
    with store.database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM selector").scalar_one() == 3
