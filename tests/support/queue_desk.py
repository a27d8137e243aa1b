"""Jobs, moments and somebody at the desk, for tests of farm.jobs.queue.queue."""

from datetime import UTC, datetime, timedelta

from farm.jobs.queue.model import (
    AskForPhone,
    AttemptEnded,
    AttemptStarted,
    ClockReading,
    EndAttempt,
    JobAdded,
    JobSaved,
    Outcome,
    PhoneGranted,
    SaveJob,
    StartAttempt,
    StopAttempt,
    TimePassed,
    Withdraw,
)
from farm.jobs.queue.queue import JobQueue
from farm.model.job import AttemptState, Job

START = datetime(2026, 1, 1, tzinfo=UTC)
UNWANTED = {"code": "cancelled", "fault": "user", "message": "not wanted"}


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
