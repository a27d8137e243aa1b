"""One job by example: asked for, run, held, cancelled, kept, refused; one rule of farm.jobs.queue.queue per test."""

from dataclasses import replace

import pytest

from farm.common.errors import Code, Fault
from farm.jobs.queue.model import (
    AttemptEnded,
    AttemptNotStarted,
    AttemptStarted,
    JobAdded,
    JobCancelled,
    JobHeld,
    JobImpossible,
    JobResumed,
    JobRunsError,
    JobSaved,
    NoSuchJobError,
    Outcome,
    Phase,
    PhoneGranted,
    StartAttempt,
    StopAttempt,
)
from farm.jobs.queue.queue import JobQueue
from farm.model.job import AttemptState, JobState
from tests.support.errors import raises_code
from tests.support.queue_desk import START, UNWANTED, Desk, a_job, failure, moment


def test_a_job_asks_runs_and_is_done():
    desk = Desk()
    desk.add(a_job())
    assert desk.asked == {"a": frozenset()}
    desk.run()
    assert desk.queue.phase("a") is Phase.RUNNING
    desk.end()
    assert desk.saved["a"] == a_job(state=JobState.DONE, attempts=1, ended_at=START)
    assert len(desk.queue) == 0
    assert desk.queue.next_check_s() is None


def test_nothing_is_decided_while_a_write_is_under_way():
    queue = JobQueue()
    queue.apply(JobAdded(a_job()), moment(0))
    assert queue.apply(PhoneGranted("a", "p1"), moment(0)) == (StartAttempt(a_job(), 1),)
    assert queue.apply(JobCancelled("a", UNWANTED), moment(0)) == ()
    assert queue.apply(AttemptStarted("a"), moment(0)) == (StopAttempt("a", AttemptState.CANCELLED, UNWANTED),)
    assert queue.job("a") == a_job(state=JobState.RUNNING, attempts=1)
    cancelled = Outcome(AttemptState.CANCELLED, UNWANTED)
    (write,) = queue.apply(AttemptEnded("a", cancelled), moment(1))
    assert write.job.state is JobState.CANCELLED
    with pytest.raises(NoSuchJobError):
        queue.apply(JobCancelled("a", UNWANTED), moment(1))
    assert queue.apply(JobSaved("a"), moment(1)) == ()
    assert "a" not in queue


def test_held_until_resumed():
    desk = Desk()
    desk.add(a_job())
    desk.tell(JobHeld("a"))
    assert not desk.asked
    assert desk.saved["a"].state is JobState.HELD
    assert "held" in desk.queue.why("a", moment(0))
    desk.tell(JobHeld("a"), JobResumed("a"))
    assert list(desk.asked) == ["a"]
    desk.run()
    with pytest.raises(JobRunsError):
        desk.tell(JobHeld("a"))
    desk.tell(JobResumed("a"))
    assert desk.queue.phase("a") is Phase.RUNNING


def test_cancelled_at_each_stage():
    for stage in ("held", "asked", "running", "backing off", "blocked"):
        desk = Desk()
        desk.add(a_job("first"))
        state = {"held": JobState.HELD, "blocked": JobState.BLOCKED}.get(stage, JobState.QUEUED)
        desk.add(a_job(state=state, after=("first",) if stage == "blocked" else ()))
        if stage in ("running", "backing off"):
            desk.run()
        if stage == "backing off":
            desk.end(outcome=failure(Fault.HOST))
        desk.tell(JobCancelled("a", UNWANTED))
        if stage == "running":
            assert desk.stopped == {"a": UNWANTED}
            desk.tell(JobCancelled("a", UNWANTED))
            desk.end(outcome=Outcome(AttemptState.CANCELLED, UNWANTED))
        assert desk.saved["a"].state is JobState.CANCELLED, stage
        assert desk.saved["a"].error == UNWANTED
        assert "a" not in desk.asked
        desk.wait(100)
        assert list(desk.asked) == ["first"]


def test_a_result_that_came_first_beats_the_cancellation():
    desk = Desk()
    desk.add(a_job())
    desk.run()
    desk.tell(JobCancelled("a", UNWANTED))
    desk.end()
    assert desk.saved["a"].state is JobState.DONE


def test_a_running_job_found_at_the_start_is_interrupted_and_asks_again():
    desk = Desk()
    desk.add(a_job(state=JobState.RUNNING, attempts=2, after=("gone",)))
    desk.end(outcome=Outcome(AttemptState.INTERRUPTED))
    assert list(desk.asked) == ["a"]
    assert desk.saved["a"].uncounted == 1


def test_a_lost_start_asks_again():
    desk = Desk()
    desk.add(a_job())
    del desk.asked["a"]
    desk.queue.apply(PhoneGranted("a", "p1"), moment(0))
    desk.tell(AttemptNotStarted("a", pause_s=2))
    assert not desk.asked
    desk.wait(2)
    assert list(desk.asked) == ["a"]
    assert desk.queue.job("a").attempts == 0


def test_a_job_whose_phone_was_forgotten_fails():
    desk = Desk()
    desk.add(a_job(device="p1"))
    desk.tell(JobImpossible("a", UNWANTED))
    assert desk.saved["a"].state is JobState.FAILED


def test_what_cannot_be_is_refused_with_its_story():
    queue = JobQueue()
    queue.apply(JobAdded(a_job()), moment(0))
    queue.apply(PhoneGranted("a", "p1"), moment(0))
    with raises_code(Code.QUEUE, match="asked -> starting"):
        queue.apply(PhoneGranted("a", "p2"), moment(0))
    with raises_code(Code.QUEUE, match="is added"):
        queue.apply(JobAdded(a_job()), moment(0))
    with raises_code(Code.QUEUE, match="is added"):
        queue.apply(JobAdded(a_job("b", state=JobState.DONE)), moment(0))
    with raises_code(Code.QUEUE):
        queue.apply(JobSaved("a"), moment(0))
    with raises_code(Code.QUEUE, match="never was"):
        queue.apply(AttemptStarted("b"), moment(0))


def test_counts_by_user():
    desk = Desk()
    desk.add(a_job(), a_job("b"), replace(a_job("c"), user="bob"))
    assert (desk.queue.count_of("alice"), desk.queue.count_of("bob"), desk.queue.count_of("eve")) == (2, 1, 0)
    desk.tell(JobCancelled("a", UNWANTED))
    assert desk.queue.count_of("alice") == 1
