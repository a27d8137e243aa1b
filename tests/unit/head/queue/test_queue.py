"""One job by example: asked for, run, held, cancelled, kept, refused; one rule of farm.head.queue.queue per test."""

from dataclasses import replace

import pytest

from farm.common.errors import Code, Fault
from farm.head.queue import model as m
from farm.head.queue.queue import JobQueue
from farm.model.job import AttemptState, JobState
from tests.support.errors import raises_code
from tests.support.queue_desk import START, UNWANTED, Desk, a_job, failure, moment


@pytest.fixture
def queue():
    queue = JobQueue()
    queue.job_added(a_job(), {}, moment(0))
    return queue


def test_a_job_asks_runs_and_is_done(desk):
    assert desk.asked == {"a": frozenset()}
    desk.run()
    assert desk.queue.phase("a") is m.Phase.RUNNING
    desk.end()
    assert desk.saved["a"] == a_job(state=JobState.DONE, attempts=1, ended_at=START)
    assert len(desk.queue) == 0
    assert desk.queue.next_check_s() is None


def test_nothing_is_decided_while_a_write_is_under_way(queue):
    assert queue.phone_granted("a", "p1") == (m.StartAttempt(a_job(), 1),)
    assert queue.job_cancelled("a", UNWANTED, moment(0)) == ()
    assert queue.attempt_started("a", moment(0)) == (m.StopAttempt("a", AttemptState.CANCELLED, UNWANTED),)
    assert queue.job("a") == a_job(state=JobState.RUNNING, attempts=1)
    cancelled = m.Outcome(AttemptState.CANCELLED, UNWANTED)
    (save,) = queue.attempt_ended("a", cancelled, moment(1))
    assert (save.job.state, save.before) == (JobState.CANCELLED, JobState.RUNNING)
    with pytest.raises(m.NoSuchJobError):
        queue.job_cancelled("a", UNWANTED, moment(1))
    assert queue.job_saved(save.job, moment(1)) == ()
    assert "a" not in queue


def test_an_offered_phone_begins_the_attempt_or_the_job_waits_on(queue):
    assert queue.phone_offered("a") == m.StartAttempt(a_job(), 1)
    assert queue.phone_offered("a") is None
    with pytest.raises(m.JobRunsError):
        queue.job_held("a", moment(0))
    assert queue.offer_undone("a", frozenset())
    assert queue.phase("a") is m.Phase.ASKED
    queue.phone_offered("a")
    assert queue.phone_granted("a", "p1", claimed=True) == ()
    assert queue.attempt_started("a", moment(0)) == ()
    assert queue.phone_offered("a") is None
    assert queue.phone_offered("b") is None


@pytest.mark.parametrize("taken", [True, False])
def test_a_job_that_is_cancelled_while_it_is_offered_a_phone_ends_as_the_host_has_answered(queue, taken):
    queue.phone_offered("a")
    assert queue.job_cancelled("a", UNWANTED, moment(0)) == ()
    if taken:
        assert queue.phone_granted("a", "p1", claimed=True) == ()
        assert queue.attempt_started("a", moment(0)) == (m.StopAttempt("a", AttemptState.CANCELLED, UNWANTED),)
    else:
        assert not queue.offer_undone("a", frozenset())
        ended = a_job(state=JobState.CANCELLED, error=UNWANTED, ended_at=START)
        assert queue.look_again("a", moment(0)) == (m.SaveJob(ended, JobState.QUEUED),)


def test_a_request_of_before_does_not_wait_on_if_it_means_a_siblings_phone():
    queue = JobQueue()
    for name in ("a", "b"):
        queue.job_added(a_job(name, array="r"), {}, moment(0))
    _, *told = queue.phone_granted("a", "p1")
    again = m.AskForPhone(a_job("b", array="r"), frozenset({"p1"}), 0)
    assert told == [m.Withdraw("b"), again]
    queue.phone_offered("b")  # before the request was made again
    assert not queue.offer_undone("b", frozenset())
    assert queue.look_again("b", moment(0)) == (again,)
    queue.phone_offered("b")
    assert queue.offer_undone("b", again.avoid)


def test_held_until_resumed(desk):
    desk.perform(desk.queue.job_held("a", desk.now))
    assert not desk.asked
    assert desk.saved["a"].state is JobState.HELD
    assert "held" in desk.queue.why("a", moment(0))
    desk.perform(desk.queue.job_held("a", desk.now))
    desk.perform(desk.queue.job_resumed("a", desk.now))
    assert list(desk.asked) == ["a"]
    desk.run()
    with pytest.raises(m.JobRunsError):
        desk.perform(desk.queue.job_held("a", desk.now))
    desk.perform(desk.queue.job_resumed("a", desk.now))
    assert desk.queue.phase("a") is m.Phase.RUNNING


@pytest.mark.parametrize("stage", ["held", "asked", "running", "backing off", "blocked"])
def test_cancelled_at_each_stage(stage):
    desk = Desk()
    desk.add(a_job("first"))
    state = {"held": JobState.HELD, "blocked": JobState.BLOCKED}.get(stage, JobState.QUEUED)
    desk.add(a_job(state=state, after=("first",) if stage == "blocked" else ()))
    if stage in ("running", "backing off"):
        desk.run()
    if stage == "backing off":
        desk.end(outcome=failure(Fault.HOST))
    desk.cancel("a")
    if stage == "running":
        assert desk.stopped == {"a": UNWANTED}
        desk.cancel("a")
        desk.end(outcome=m.Outcome(AttemptState.CANCELLED, UNWANTED))
    assert (desk.saved["a"].state, desk.saved["a"].error) == (JobState.CANCELLED, UNWANTED)
    desk.wait(100)
    assert list(desk.asked) == ["first"]


def test_a_result_that_came_first_beats_the_cancellation(desk):
    desk.run()
    desk.cancel("a")
    desk.end()
    assert desk.saved["a"].state is JobState.DONE


def test_a_running_job_found_at_the_start_is_interrupted_and_asks_again():
    desk = Desk()
    desk.add(a_job(state=JobState.RUNNING, attempts=2, after=("gone",)))
    desk.end(outcome=m.Outcome(AttemptState.INTERRUPTED))
    assert list(desk.asked) == ["a"]
    assert desk.saved["a"].uncounted == 1


def test_a_lost_start_asks_again(desk):
    del desk.asked["a"]
    desk.queue.phone_granted("a", "p1")
    desk.perform(desk.queue.attempt_not_started("a", 2, desk.now))
    assert not desk.asked
    desk.wait(2)
    assert list(desk.asked) == ["a"]
    assert desk.queue.job("a").attempts == 0


def test_a_job_whose_phone_was_forgotten_fails():
    desk = Desk()
    desk.add(a_job(device="p1"))
    desk.perform(desk.queue.job_impossible("a", UNWANTED, desk.now))
    assert desk.saved["a"].state is JobState.FAILED


def test_what_cannot_be_is_refused_with_its_story(queue):
    queue.phone_granted("a", "p1")
    with raises_code(Code.BAD_QUEUE_EVENT, match="asked -> starting"):
        queue.phone_granted("a", "p2")
    with raises_code(Code.BAD_QUEUE_EVENT, match="is added"):
        queue.job_added(a_job(), {}, moment(0))
    with raises_code(Code.BAD_QUEUE_EVENT, match="is added"):
        queue.job_added(a_job("b", state=JobState.DONE), {}, moment(0))
    with raises_code(Code.BAD_QUEUE_EVENT):
        queue.job_saved(a_job(), moment(0))
    with raises_code(Code.BAD_QUEUE_EVENT, match="never was"):
        queue.attempt_started("b", moment(0))


def test_counts_by_user():
    desk = Desk()
    desk.add(a_job(), a_job("b"), replace(a_job("c"), user="bob"))
    assert (desk.queue.count_of("alice"), desk.queue.count_of("bob"), desk.queue.count_of("eve")) == (2, 1, 0)
    desk.cancel("a")
    assert desk.queue.count_of("alice") == 1
