"""Jobs, moments and somebody at the desk, for tests of farm.head.queue.queue."""

from datetime import UTC, datetime, timedelta

from farm.head.queue.model import (
    AskForPhone,
    ClockReading,
    Outcome,
    SaveJob,
    StartAttempt,
    StopAttempt,
    Withdraw,
)
from farm.head.queue.queue import JobQueue
from farm.head.queue.retry import succeeded
from farm.model.job import AttemptState, Job

START = datetime(2026, 1, 1, tzinfo=UTC)
UNWANTED = {"code": "job_cancelled", "fault": "user", "message": "not wanted"}


def moment(s):
    return ClockReading(s, START + timedelta(seconds=s))


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

    @property
    def now(self):
        return moment(self.s)

    def perform(self, instructions):
        for instruction in instructions:
            match instruction:
                case AskForPhone(job, avoid):
                    assert job.id not in self.asked
                    self.asked[job.id] = avoid
                case Withdraw(job):
                    del self.asked[job]
                case StartAttempt(job):
                    self.perform(self.queue.attempt_started(job.id, self.now))
                case StopAttempt(job, _, error):
                    self.stopped[job] = error
                case SaveJob(job):
                    self.save(job)

    def save(self, job):
        self.saved[job.id] = job
        self.perform(self.queue.job_saved(job, self.now))

    def add(self, *jobs, ended=None):
        for job in jobs:
            self.perform(self.queue.job_added(job, ended or {}, self.now))

    def cancel(self, name):
        self.perform(self.queue.job_cancelled(name, UNWANTED, self.now))

    def run(self, name="a", device="p1"):
        del self.asked[name]
        self.perform(self.queue.phone_granted(name, device))

    def end(self, name="a", outcome=None):
        outcome = outcome or Outcome(AttemptState.DONE)
        if outcome.state is AttemptState.DONE:  # its host commits that
            self.saved[name] = succeeded(self.queue.job(name), self.now.at)
        self.perform(self.queue.attempt_ended(name, outcome, self.now))

    def wait(self, seconds):
        self.s += seconds
        self.perform(self.queue.time_passed(self.now))
