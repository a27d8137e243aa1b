"""The job queue by example: one rule of farm.core.queue per test."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.core.error_wire import error_to_wire
from farm.core.errors import Fault
from farm.core.job import Attempt, AttemptState, Job, JobState
from farm.core.queue import JobQueue
from farm.core.queue_messages import (
    ArrayBegan,
    AskForPhone,
    AttemptEnded,
    AttemptNotStarted,
    AttemptStarted,
    EndAttempt,
    JobAdded,
    JobCancelled,
    JobHeld,
    JobImpossible,
    JobResumed,
    JobSaved,
    Moment,
    Outcome,
    PhoneGranted,
    PhonesChanged,
    SaveJob,
    StartAttempt,
    StopAttempt,
    TimePassed,
    Withdraw,
)
from farm.core.queue_model import JobRunsError, NoSuchJobError, Phase, QueueError
from farm.core.retry import (
    FIRST_BACK_OFF_S,
    LONGEST_BACK_OFF_S,
    MOST_CRASHES,
    DaemonDiedError,
    DaemonStoppedError,
    back_off_s,
    crashes,
    failed_instead,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
UNWANTED = {"code": "cancelled", "fault": "user", "message": "not wanted"}


def moment(s):
    return Moment(s, START + timedelta(seconds=s))


def a_job(name="a", **facts):
    return Job(name, "bench", "alice", {}, "android", START, **facts)


def failure(fault, device="p1", **facts):
    return Outcome(AttemptState.FAILED, {"fault": fault, "code": "x", "message": "it broke"}, device, **facts)


class Desk:
    """A queue with somebody who performs what it says: writes succeed at once, phones are given by the test."""

    def __init__(self):
        self.queue = JobQueue()
        self.s = 0.0
        self.saved = {}
        self.asked = {}
        self.stopped = {}

    def tell(self, *events):
        for event in events:
            for instruction in self.queue.apply(event, moment(self.s)):
                self.perform(instruction)

    def perform(self, instruction):
        match instruction:
            case AskForPhone(job, avoid):
                assert job.id not in self.asked
                self.asked[job.id] = avoid
            case Withdraw(job):
                del self.asked[job]
            case StartAttempt(job):
                self.tell(AttemptStarted(job.id))
            case StopAttempt(job, _, error):
                self.stopped[job] = error
            case SaveJob(job) | EndAttempt(job):
                self.saved[job.id] = job
                self.tell(JobSaved(job.id))

    def add(self, *jobs, ended=None):
        self.tell(*(JobAdded(job, ended or {}) for job in jobs))

    def run(self, name="a", device="p1"):
        del self.asked[name]
        self.tell(PhoneGranted(name, device))

    def end(self, name="a", outcome=None):
        self.tell(AttemptEnded(name, outcome or Outcome(AttemptState.DONE)))

    def wait(self, seconds):
        self.s += seconds
        self.tell(TimePassed())


def test_a_job_asks_runs_and_is_done():
    desk = Desk()
    desk.add(a_job())
    assert desk.asked == {"a": frozenset()}
    desk.run()
    assert desk.queue.phase("a") is Phase.RUNNING
    desk.end()
    assert desk.saved["a"] == a_job(state=JobState.DONE, attempts=1, ended_at=START)
    assert len(desk.queue) == 0
    assert desk.queue.next_look_s() is None


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


def test_a_phones_fault_means_another_phone_at_once():
    desk = Desk()
    desk.add(a_job())
    desk.run(device="p1")
    desk.end(outcome=failure(Fault.PHONE, "p1"))
    assert desk.asked == {"a": frozenset({"p1"})}
    desk.run(device="p2")
    desk.end(outcome=failure(Fault.PHONE, "p2"))
    assert desk.asked == {"a": frozenset({"p1", "p2"})}


def test_the_only_phone_gets_another_chance():
    desk = Desk()
    desk.add(a_job())
    desk.run(device="p1")
    desk.end(outcome=failure(Fault.PHONE, "p1", elsewhere=False))
    assert desk.asked == {"a": frozenset()}


def test_a_pinned_job_stays_with_its_phone():
    desk = Desk()
    desk.add(a_job(device="p1"))
    desk.run()
    desk.end(outcome=failure(Fault.PHONE))
    assert desk.asked == {"a": frozenset()}


def test_failed_phones_are_forgiven_when_no_others_are_left():
    desk = Desk()
    desk.add(a_job())
    desk.run()
    desk.end(outcome=failure(Fault.PHONE))
    desk.tell(PhonesChanged("a"))
    assert desk.asked == {"a": frozenset()}


def test_a_users_fault_is_final():
    desk = Desk()
    desk.add(a_job())
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
        assert desk.queue.next_look_s() == desk.s + expected_s
        desk.wait(expected_s - 0.01)
        assert not desk.asked
        desk.wait(0.01)
        assert desk.asked == {"a": frozenset()}
    desk.run()
    desk.end(outcome=failure(fault))
    assert desk.saved["a"].state is JobState.FAILED


def test_back_off_is_bounded():
    assert back_off_s(1) == FIRST_BACK_OFF_S
    assert back_off_s(50) == LONGEST_BACK_OFF_S


def test_yielding_and_interruption_are_no_tries():
    desk = Desk()
    desk.add(a_job(max_attempts=1))
    for _ in range(3 * MOST_CRASHES):
        desk.run()
        desk.end(outcome=Outcome(AttemptState.YIELDED))
        desk.run()
        desk.end(outcome=Outcome(AttemptState.INTERRUPTED))
    for died in range(1, MOST_CRASHES + 1):
        assert "a" in desk.asked
        desk.run()
        desk.end(outcome=Outcome(AttemptState.INTERRUPTED, crashes=died))
    job = desk.saved["a"]
    assert (job.state, job.error["code"], job.error["fault"]) == (JobState.FAILED, "interrupted_too_often", "farm")
    assert f"died {MOST_CRASHES} times" in job.error["message"]
    assert job.attempts == job.uncounted == 7 * MOST_CRASHES


DIED, STOPPED = error_to_wire(DaemonDiedError()), error_to_wire(DaemonStoppedError())


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


def test_what_was_kept_instead_is_what_a_job_has_become():
    queue = JobQueue()
    queue.apply(JobAdded(a_job()), moment(0))
    queue.apply(JobAdded(a_job("b", state=JobState.BLOCKED, after=("a",))), moment(0))
    queue.apply(PhoneGranted("a", "p1"), moment(0))
    queue.apply(AttemptStarted("a"), moment(0))
    (end,) = queue.apply(AttemptEnded("a", Outcome(AttemptState.DONE)), moment(1))
    error = error_to_wire(ValueError("the store would not have it"))
    failed = failed_instead(end.job, error, moment(1).at)
    assert (end.job.state, failed.state, failed.error) == (JobState.DONE, JobState.FAILED, error)
    (save,) = queue.apply(JobSaved("a", failed), moment(1))
    assert (save.job.id, save.job.state) == ("b", JobState.CANCELLED)
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


def test_it_is_said_how_what_a_job_waits_for_stands():
    desk = Desk()
    desk.add(a_job("x", state=JobState.HELD), a_job("y"), a_job("z", array="zz"))
    desk.add(a_job("b", state=JobState.BLOCKED, after=("y",)))
    for name, after in (("1", "x"), ("2", "y"), ("3", "zz"), ("4", "b")):
        desk.add(a_job(name, state=JobState.BLOCKED, after=(after,)))
    assert [desk.queue.why(name, moment(0)) for name in "1234"] == [
        "it waits for x, which is held",
        "it waits for y, which is queued",
        "it waits for zz, of which 1 have not ended",
        "it waits for b, which waits for others itself",
    ]
    desk.run("y", "phone")
    assert desk.queue.why("2", moment(0)) == "it waits for y, which runs"


@pytest.mark.parametrize("order", list(itertools.permutations(("x", "y", "z"))))
def test_a_job_runs_after_all_it_waits_for_in_whatever_order_they_end(order):
    desk = Desk()
    desk.add(a_job("x"), a_job("y", array="xy"), a_job("z", array="xy"))
    desk.add(a_job(state=JobState.BLOCKED, after=("x", "xy")))
    for name in order:
        assert "a" not in desk.asked
        assert "it waits for" in desk.queue.why("a", moment(0))
        desk.run(name, f"phone of {name}")
        desk.end(name)
    assert list(desk.asked) == ["a"]


@pytest.mark.parametrize("culprit", ["x", "y", "z"])
def test_what_does_not_succeed_cancels_what_waits_for_it_and_so_on(culprit):
    desk = Desk()
    desk.add(a_job("x"), a_job("y", array="xy"), a_job("z", array="xy"))
    desk.add(a_job("b", state=JobState.BLOCKED, after=("x", "xy")))
    desk.add(a_job("c", state=JobState.HELD, after=("b",)))
    desk.run(culprit)
    desk.end(culprit, failure(Fault.USER))
    assert desk.saved["b"].state is desk.saved["c"].state is JobState.CANCELLED
    assert f"{culprit}, which it waits for, is failed" in desk.saved["b"].error["message"]
    assert "b, which it waits for, is cancelled" in desk.saved["c"].error["message"]


@pytest.mark.parametrize(
    ("how", "state"),
    [(JobState.DONE, JobState.QUEUED), (JobState.FAILED, JobState.CANCELLED), (None, JobState.CANCELLED)],
)
def test_what_ended_before_counts_too(how, state):
    desk = Desk()
    desk.add(a_job(state=JobState.BLOCKED, after=("old",)), ended={"old": how})
    assert desk.saved["a"].state is state


def test_added_before_what_it_waits_for():
    desk = Desk()
    desk.add(a_job(state=JobState.BLOCKED, after=("b",)), a_job("b"))
    desk.run("b")
    desk.end("b")
    assert list(desk.asked) == ["a"]


def test_a_deadline_ends_waiting_and_running_jobs():
    deadline = START + timedelta(seconds=10)
    desk = Desk()
    desk.add(a_job(deadline=deadline), a_job("b", deadline=deadline))
    desk.run("b")
    desk.wait(9.9)
    assert not desk.saved
    desk.wait(0.1)
    assert (desk.saved["a"].state, desk.saved["a"].error["code"]) == (JobState.FAILED, "deadline")
    assert not desk.asked
    assert desk.stopped["b"]["code"] == "deadline"
    desk.end("b", Outcome(AttemptState.FAILED, desk.stopped["b"]))
    assert desk.saved["b"].state is JobState.FAILED
    assert desk.queue.next_look_s() is None


def test_a_jump_of_the_wall_clock_ends_no_job():
    queue = JobQueue()
    queue.apply(JobAdded(a_job(deadline=START + timedelta(hours=1))), moment(0))
    next_year = Moment(1.0, START + timedelta(days=365))
    assert queue.apply(TimePassed(), next_year) == ()
    assert queue.next_look_s() == 3600


def test_a_back_off_is_not_stretched_by_a_clock_that_was_set_back():
    queue = JobQueue()
    queue.apply(JobAdded(a_job(not_before=START + timedelta(days=30))), moment(0))
    assert queue.next_look_s() == LONGEST_BACK_OFF_S


def test_jobs_of_an_array_keep_off_each_others_phones():
    desk = Desk()
    desk.add(*(a_job(name, array="all") for name in "abc"), a_job("other"))
    desk.run("a", "p1")
    assert desk.asked == {"b": {"p1"}, "c": {"p1"}, "other": frozenset()}
    desk.end("a")
    desk.run("b", "p2")
    desk.end("b", failure(Fault.PHONE, "p2"))
    assert desk.asked == {"b": {"p1", "p2"}, "c": {"p1", "p2"}, "other": frozenset()}


def test_an_array_found_at_the_start_remembers_its_phones():
    desk = Desk()
    desk.add(a_job("b", array="all", attempts=1))
    desk.tell(ArrayBegan("all", {"p1": "a", "p2": "b"}))
    desk.add(a_job("c", array="all"))
    assert desk.asked["c"] == {"p1", "p2"}


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
    with pytest.raises(QueueError, match="asked -> starting"):
        queue.apply(PhoneGranted("a", "p2"), moment(0))
    with pytest.raises(QueueError, match="is added"):
        queue.apply(JobAdded(a_job()), moment(0))
    with pytest.raises(QueueError, match="is added"):
        queue.apply(JobAdded(a_job("b", state=JobState.DONE)), moment(0))
    with pytest.raises(QueueError):
        queue.apply(JobSaved("a"), moment(0))
    with pytest.raises(QueueError, match="never was"):
        queue.apply(AttemptStarted("b"), moment(0))


def test_counts_by_user():
    desk = Desk()
    desk.add(a_job(), a_job("b"), replace(a_job("c"), user="bob"))
    assert (desk.queue.count_of("alice"), desk.queue.count_of("bob"), desk.queue.count_of("eve")) == (2, 1, 0)
    desk.tell(JobCancelled("a", UNWANTED))
    assert desk.queue.count_of("alice") == 1
