"""Deadlines and back-offs by the monotonic clock, whatever the wall clock does."""

from datetime import timedelta

from farm.head.queue.model import ClockReading, Outcome
from farm.head.queue.queue import JobQueue
from farm.head.queue.retry import BACK_OFF
from farm.model.job import AttemptState, JobState
from tests.support.queue_desk import START, Desk, a_job, moment


def test_a_deadline_ends_waiting_and_running_jobs():
    deadline = START + timedelta(seconds=10)
    desk = Desk()
    desk.add(a_job(deadline=deadline), a_job("b", deadline=deadline))
    desk.run("b")
    desk.wait(9.9)
    assert not desk.saved
    desk.wait(0.1)
    assert (desk.saved["a"].state, desk.saved["a"].error["code"]) == (JobState.FAILED, "deadline_missed")
    assert not desk.asked
    assert desk.stopped["b"]["code"] == "deadline_missed"
    desk.end("b", Outcome(AttemptState.FAILED, desk.stopped["b"]))
    assert desk.saved["b"].state is JobState.FAILED
    assert desk.queue.next_check_s() is None


def test_a_jump_of_the_wall_clock_ends_no_job():
    queue = JobQueue()
    queue.job_added(a_job(deadline=START + timedelta(hours=1)), {}, moment(0))
    next_year = ClockReading(1.0, START + timedelta(days=365))
    assert queue.time_passed(next_year) == ()
    assert queue.next_check_s() == 3600


def test_a_back_off_is_not_stretched_by_a_clock_that_was_set_back():
    queue = JobQueue()
    queue.job_added(a_job(not_before=START + timedelta(days=30)), {}, moment(0))
    assert queue.next_check_s() == BACK_OFF.limit_s
