"""What an attempt's end makes of its job: whose fault it was, how often, and how long to wait."""

import pytest

from farm.common.errors import Code, Fault, HostError, error_to_wire
from farm.head.queue.model import Outcome
from farm.head.queue.retry import BACK_OFF, MAX_CRASHES, crashes
from farm.model.job import Attempt, AttemptState, JobState
from tests.support.queue_desk import START, Desk, a_job, failure, moment

DIED, STOPPED = (error_to_wire(HostError(code=each)) for each in (Code.DAEMON_DIED, Code.DAEMON_STOPPED))


def test_a_phones_fault_means_another_phone_at_once_until_no_others_are_left(desk):
    for number in (1, 2):
        desk.run(device=f"p{number}")
        desk.end(outcome=failure(Fault.PHONE, f"p{number}"))
        assert desk.asked == {"a": frozenset(("p1", "p2")[:number])}
    desk.perform(desk.queue.phones_changed("a"))
    assert desk.asked == {"a": frozenset()}


@pytest.mark.parametrize(("pinned", "more"), [("", {"another_phone": False}), ("p1", {})], ids=["the only", "pinned"])
def test_a_phone_that_no_other_can_stand_in_for_gets_another_chance(pinned, more):
    desk = Desk()
    desk.add(a_job(device=pinned))
    desk.run()
    desk.end(outcome=failure(Fault.PHONE, "p1", **more))
    assert desk.asked == {"a": frozenset()}


def test_a_users_fault_is_final(desk):
    desk.run()
    desk.end(outcome=failure(Fault.USER))
    assert desk.saved["a"].state is JobState.FAILED
    assert desk.saved["a"].error["message"] == "it broke"


@pytest.mark.parametrize("fault", [Fault.HOST, Fault.FARM])
def test_the_hosts_fault_waits_longer_each_time(fault):
    desk = Desk()
    desk.add(a_job(max_attempts=4))
    for expected_s in (1.0, 2.0, 4.0):
        desk.run()
        desk.end(outcome=failure(fault))
        assert not desk.asked
        assert "tried again in" in desk.queue.why("a", moment(desk.s))
        assert desk.queue.next_check_s() == desk.s + expected_s
        desk.wait(expected_s - 0.01)
        assert not desk.asked
        desk.wait(0.01)
        assert desk.asked == {"a": frozenset()}
    desk.run()
    desk.end(outcome=failure(fault))
    assert desk.saved["a"].state is JobState.FAILED


def test_back_off_is_bounded():
    assert BACK_OFF.delay_s(1) == BACK_OFF.first_s
    assert BACK_OFF.delay_s(50) == BACK_OFF.limit_s


def test_yielding_and_interruption_are_no_tries():
    desk = Desk()
    desk.add(a_job(max_attempts=1))
    for _ in range(3 * MAX_CRASHES):
        desk.run()
        desk.end(outcome=Outcome(AttemptState.YIELDED))
        desk.run()
        desk.end(outcome=Outcome(AttemptState.INTERRUPTED))
    for died in range(1, MAX_CRASHES + 1):
        assert "a" in desk.asked
        desk.run()
        desk.end(outcome=Outcome(AttemptState.INTERRUPTED, crashes=died))
    job = desk.saved["a"]
    assert (job.state, job.error["code"], job.error["fault"]) == (JobState.FAILED, "interrupted_too_often", "farm")
    assert f"died {MAX_CRASHES} times" in job.error["message"]
    assert job.attempts == job.uncounted == 7 * MAX_CRASHES


@pytest.mark.parametrize(
    ("state", "reason"),
    [(AttemptState.YIELDED, None), (AttemptState.INTERRUPTED, DIED)],
    ids=["yielded", "interrupted"],
)
def test_a_jobs_reason_is_that_of_its_latest_attempt(desk, state, reason):
    desk.run()
    desk.end(outcome=failure(Fault.PHONE, "p1"))
    assert desk.queue.job("a").error["message"] == "it broke"
    desk.run()
    assert desk.queue.job("a").error is None
    desk.end(outcome=Outcome(state, reason))
    assert desk.queue.job("a").error == reason


@pytest.mark.parametrize(
    ("ends", "count"),
    [
        ([], 0),
        ([(AttemptState.INTERRUPTED, DIED)], 1),
        ([(AttemptState.INTERRUPTED, STOPPED)], 0),
        ([(AttemptState.INTERRUPTED, None)], 0),  # of a release that did not tell them apart
        ([(AttemptState.FAILED, DIED), (AttemptState.YIELDED, None), (AttemptState.RUNNING, None)], 0),
        ([(AttemptState.INTERRUPTED, STOPPED)] * 10 + [(AttemptState.INTERRUPTED, DIED)] * 2, 2),
    ],
)
def test_only_a_daemon_that_died_counts_against_a_job(ends, count):
    attempts = [
        Attempt(f"a.{number}", "a", number, "p1", "l", number, START, state=state, error=error)
        for number, (state, error) in enumerate(ends, start=1)
    ]
    assert crashes(attempts) == count


@pytest.mark.parametrize(
    ("outcome", "place_s"),
    [
        (failure(Fault.PHONE), 0.0),
        (Outcome(AttemptState.INTERRUPTED, error_to_wire(HostError(code=Code.HOST_LOST))), 0.0),
        (Outcome(AttemptState.YIELDED), 5.0),
        (Outcome(AttemptState.INTERRUPTED, error_to_wire(HostError("no toolchain"))), 5.0),
    ],
)
def test_a_job_keeps_its_place_unless_it_gave_way(desk, outcome, place_s):
    desk.run()
    desk.s = 5.0
    (save,) = desk.queue.attempt_ended("a", outcome, desk.now)
    (again,) = desk.queue.job_saved(save.job, desk.now)
    assert again.place_s == place_s
