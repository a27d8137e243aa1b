"""Jobs that concern others: those that wait for some to be done, and arrays that share no phone."""

import itertools

import pytest

from farm.common.errors import Fault, error_to_wire
from farm.head.queue.model import Outcome
from farm.head.queue.queue import JobQueue
from farm.head.queue.retry import failed_instead
from farm.model.job import AttemptState, JobState
from tests.support.queue_desk import Desk, a_job, failure, moment


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
    waits = a_job(state=JobState.BLOCKED, after=("x", "xy"))
    jobs = a_job("x"), a_job("y", array="xy"), a_job("z", array="xy")
    desk.add(*((waits, *jobs) if order[0] == "z" else (*jobs, waits)))  # it may come before what it waits for
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


def test_what_was_kept_instead_is_what_a_job_has_become():
    queue = JobQueue()
    queue.job_added(a_job(), {}, moment(0))
    queue.job_added(a_job("b", state=JobState.BLOCKED, after=("a",)), {}, moment(0))
    queue.phone_granted("a", "p1")
    queue.attempt_started("a", moment(0))
    (save,) = queue.attempt_ended("a", Outcome(AttemptState.YIELDED), moment(1))
    error = error_to_wire(ValueError("the store would not have it"))
    failed = failed_instead(save.job, error, moment(1).at)
    assert (save.job.state, failed.state, failed.error) == (JobState.QUEUED, JobState.FAILED, error)
    (save,) = queue.job_saved(failed, moment(1))
    assert (save.job.id, save.job.state) == ("b", JobState.CANCELLED)
    assert "a" not in queue


def test_jobs_of_an_array_keep_off_each_others_phones_also_after_a_start():
    desk = Desk()
    desk.add(*(a_job(name, array="all") for name in "abc"), a_job("other"))
    desk.run("a", "p1")
    assert desk.asked == {"b": {"p1"}, "c": {"p1"}, "other": frozenset()}
    desk.end("a")
    desk.run("b", "p2")
    desk.end("b", failure(Fault.PHONE, "p2"))
    assert desk.asked == {"b": {"p1", "p2"}, "c": {"p1", "p2"}, "other": frozenset()}
    desk = Desk()
    desk.add(a_job("b", array="all", attempts=1))
    desk.queue.array_began("all", {"p1": "a", "p2": "b"})
    desk.add(a_job("c", array="all"))
    assert desk.asked["c"] == {"p1", "p2"}
