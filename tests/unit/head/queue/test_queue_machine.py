"""The job queue under random orders, outcomes and answers: what must hold after every step."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farm.common.errors import Fault
from farm.head.queue import model as m
from farm.head.queue.queue import JobQueue
from farm.head.queue.retry import failed_instead, succeeded
from farm.model.job import FINAL, AttemptState, Job, JobState

START = datetime(2026, 1, 1, tzinfo=UTC)
PHONES = ("p1", "p2", "p3", "p4")
UNWANTED = {"code": "job_cancelled", "fault": "user", "message": "not wanted"}
OUTCOMES = (
    m.Outcome(AttemptState.DONE),
    m.Outcome(AttemptState.YIELDED),
    m.Outcome(AttemptState.INTERRUPTED),
    *(m.Outcome(AttemptState.FAILED, {"fault": fault, "message": "it broke"}) for fault in Fault),
)

ORDERS = (
    JobQueue.job_held,
    JobQueue.job_resumed,
    lambda queue, job, now: queue.job_cancelled(job, UNWANTED, now),
    lambda queue, job, now: queue.job_impossible(job, UNWANTED, now),
)


class QueueMachine(RuleBasedStateMachine):
    """Plays the store, leasing and the executors; writes and grants are answered in any order."""

    def __init__(self):
        super().__init__()
        self.queue = JobQueue()
        self.s = 0.0
        self.names = []  # of jobs and arrays, as `after` may use them
        self.stored = {}  # job -> as committed
        self.asked = {}  # job -> phones to avoid
        self.offered = {}  # job -> phone whose host has not answered
        self.waits_again = {}  # offered job -> phones to avoid, if the host refuses
        self.starting = {}  # job -> phone
        self.running = {}  # job -> phone
        self.stopping = {}  # job -> how it was told to end
        self.ended = {}  # running job -> how its attempt ended
        self.writing = {}  # job -> what is being written
        self.began = {}  # array -> phone -> job
        self.starts = {}  # job -> attempts begun
        self.ends = {}  # job -> how often it ended

    @property
    def now(self):
        return m.ClockReading(self.s, START + timedelta(seconds=self.s))

    def perform(self, instructions):
        for instruction in instructions:
            self.perform_one(instruction)

    def perform_one(self, instruction):
        match instruction:
            case m.AskForPhone(job, avoid):
                assert job.id not in self.asked
                assert self.stored[job.id].state is JobState.QUEUED
                assert not self.not_done(self.stored[job.id])
                self.asked[job.id] = avoid
            case m.Withdraw(job):
                del self.asked[job]
            case m.StartAttempt(job, number):
                assert number == self.starts[job.id] + 1
            case m.StopAttempt(job, state):
                assert job not in self.stopping
                if job not in self.ended:  # another head may not know yet that the host has nothing to stop
                    assert job in self.running
                    self.stopping[job] = state
            case m.SaveJob(job, before):
                assert self.stored[job.id].state is before
                assert job.id not in self.writing
                assert not {job.id} & {*self.asked, *self.offered, *self.starting, *self.running}
                self.writing[job.id] = job

    def attempt_ended(self, job, outcome):
        if outcome.state is AttemptState.DONE:  # committed with the attempt's end
            self.stored[job] = succeeded(self.stored[job], self.now.at)
            self.ends[job] += 1
        else:
            self.ended[job] = outcome
        self.perform(self.queue.attempt_ended(job, outcome, self.now))
        assert (job in self.writing) == (outcome.state is not AttemptState.DONE)

    def not_done(self, job):
        def done(name):
            members = [each for each in self.stored.values() if each.array == name] or [self.stored[name]]
            return all(each.state is JobState.DONE for each in members)

        return [name for name in job.after if not done(name)]

    def known_end(self, name):
        """What the store says of a name in `after`; None while it lives."""
        members = [each for each in self.stored.values() if each.array == name] or [self.stored[name]]
        failed = [each.state for each in members if each.state in (JobState.FAILED, JobState.CANCELLED)]
        if failed:
            return failed[0]
        return JobState.DONE if all(each.state is JobState.DONE for each in members) else None

    # --- what people do -------------------------------------------------------------------------------------------

    @rule(
        size=st.integers(1, 3),
        pinned=st.booleans(),
        held=st.booleans(),
        after=st.lists(st.integers(0, 50), max_size=2),
        deadline=st.none() | st.floats(0.1, 200),
        tries=st.integers(1, 3),
    )
    def submit(self, size, pinned, held, after, deadline, tries):
        names = tuple(dict.fromkeys(self.names[index % len(self.names)] for index in after)) if self.names else ()
        array = f"array-{len(self.names)}" if size > 1 else ""
        for index in range(size):
            job = Job(
                f"job-{len(self.stored)}", "bench", "alice", {}, "android", START, array=array, after=names,
                state=JobState.HELD if held else JobState.BLOCKED if names else JobState.QUEUED,
                device=PHONES[index] if pinned else "", max_attempts=tries,
                deadline=None if deadline is None else START + timedelta(seconds=self.s + deadline),
            )  # fmt: skip
            self.stored[job.id] = job
            self.starts[job.id] = self.ends[job.id] = 0
            self.names.append(job.id)
            ended = {name: how for name in names if (how := self.known_end(name)) is not None}
            self.perform(self.queue.job_added(job, ended, self.now))
        if array:
            self.names.append(array)

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), order=st.sampled_from(ORDERS))
    def order(self, data, order):
        job = data.draw(st.sampled_from(sorted(self.stored)))
        ending = job in self.writing and self.writing[job].state in FINAL
        over = self.stored[job].state in FINAL or ending
        try:
            self.perform(order(self.queue, job, self.now))
        except m.NoSuchJobError:
            assert over
        except m.JobRunsError:
            assert order is JobQueue.job_held
            assert {job} & {*self.starting, *self.offered, *self.running, *self.writing}
        else:
            assert not over

    # --- what leasing, the store and executors do -----------------------------------------------------------------

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), apart=st.booleans())
    def grant(self, data, apart):
        job = data.draw(st.sampled_from(sorted(self.asked)))
        wanted = self.stored[job].device
        free = set(PHONES) - {*self.starting.values(), *self.offered.values(), *self.running.values()} - self.asked[job]
        fit = sorted(free & {wanted} if wanted else free)
        if not fit:
            self.perform(self.queue.phones_changed(job))
            return
        phone = data.draw(st.sampled_from(fit))
        if apart:
            start = self.queue.phone_offered(job)
            assert start.number == self.starts[job] + 1
            self.waits_again[job], self.offered[job] = self.asked.pop(job), phone
            return
        self.give(job, phone)

    @precondition(lambda self: self.offered)
    @rule(data=st.data(), taken=st.booleans(), claimed=st.booleans())
    def answer_offer(self, data, taken, claimed):
        job = data.draw(st.sampled_from(sorted(self.offered)))
        phone, avoid = self.offered.pop(job), self.waits_again.pop(job)
        if not taken:
            if self.queue.offer_undone(job, avoid):
                self.asked[job] = avoid
            else:
                self.perform(self.queue.look_again(job, self.now))
        elif claimed:
            self.give(job, phone, claimed=True)
            self.begin_attempt(job)
        else:
            self.give(job, phone)

    def give(self, job, phone, *, claimed=False):
        wanted = self.stored[job].device
        self.asked.pop(job, None)
        self.starting[job] = phone
        array = self.stored[job].array
        if array and not wanted:
            assert self.began.setdefault(array, {}).setdefault(phone, job) == job
        self.perform(self.queue.phone_granted(job, phone, claimed=claimed))

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), lost=st.booleans())
    def answer_start(self, data, lost):
        job = data.draw(st.sampled_from(sorted(self.starting)))
        if lost:
            del self.starting[job]
            self.perform(self.queue.attempt_not_started(job, 1.0, self.now))
            return
        self.begin_attempt(job)

    def begin_attempt(self, job):
        phone = self.starting.pop(job)
        before = self.stored[job]
        self.starts[job] += 1
        self.stored[job] = replace(before, state=JobState.RUNNING, attempts=before.attempts + 1)
        self.running[job] = phone
        self.perform(self.queue.attempt_started(job, self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), another_phone=st.booleans())
    def end_attempt(self, data, outcome, another_phone):
        job = data.draw(st.sampled_from(sorted(self.running)))
        phone = self.running.pop(job)
        told = self.stopping.pop(job, None)
        outcome = m.Outcome(told or outcome.state, UNWANTED if told else outcome.error, phone, another_phone)
        self.attempt_ended(job, outcome)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES[1:]))
    def end_attempt_of_which_no_head_hears(self, data, outcome):
        job = data.draw(st.sampled_from(sorted(self.running)))
        self.ended[job] = replace(outcome, device=self.running.pop(job))
        self.another_head()

    @rule()
    def another_head(self):
        """It knows what is stored: attempts under way continue, all else that was to be written is decided again."""
        for doing in (self.asked, self.offered, self.waits_again, self.starting, self.stopping, self.writing):
            doing.clear()
        self.queue, self.began = JobQueue(), {}
        for job in self.stored.values():
            if job.state not in FINAL:
                ended = {name: how for name in job.after if (how := self.known_end(name)) is not None}
                self.perform(self.queue.job_added(job, ended, self.now))
        for job, outcome in self.ended.items():
            self.attempt_ended(job, outcome)
        self.wait(0.0)

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), refused=st.sampled_from((False,) * 9 + (True,)))
    def answer_write(self, data, refused):
        job = data.draw(st.sampled_from(sorted(self.writing)))
        becomes = self.writing.pop(job)
        self.ended.pop(job, None)
        self.stored[job] = failed_instead(becomes, UNWANTED, self.now.at) if refused else becomes
        if self.stored[job].state in FINAL:
            self.ends[job] += 1
        self.perform(self.queue.job_saved(self.stored[job], self.now))

    @rule(seconds=st.floats(0.01, 100))
    def wait(self, seconds):
        self.s += seconds
        self.perform(self.queue.time_passed(self.now))

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def every_job_ends_once(self):
        for job_id, job in self.stored.items():
            assert self.ends[job_id] == (job.state in FINAL)
            assert (job_id in self.queue) == (job.state not in FINAL)

    @invariant()
    def attempts_are_counted(self):
        for job_id, job in self.stored.items():
            assert job.attempts == self.starts[job_id]
            assert job.attempts - job.uncounted <= job.max_attempts

    @invariant()
    def the_queue_believes_what_the_store_has(self):
        live = {job_id for job_id, job in self.stored.items() if job.state not in FINAL}
        assert {job.id for job in self.queue.jobs()} == live
        assert self.queue.count_of("alice") == len(live)
        for job_id in live:
            assert self.queue.job(job_id).state is self.stored[job_id].state

    @invariant()
    def phases_are_what_is_being_done(self):
        starting = {*self.starting, *self.offered}
        doing = {m.Phase.ASKED: self.asked, m.Phase.STARTING: starting, m.Phase.SAVING: self.writing}
        for job in self.queue.jobs():
            phase = self.queue.phase(job.id)
            for each, jobs in doing.items():
                assert (phase is each) == (job.id in jobs)
            assert (phase in (m.Phase.RUNNING, m.Phase.STOPPING)) == (job.id in self.running)

    @invariant()
    def whoever_rests_waits_for_something(self):
        for job in self.queue.jobs():
            if self.queue.phase(job.id) is m.Phase.RESTING:
                assert self.queue.why(job.id, self.now)

    @invariant()
    def nothing_outlives_its_deadline(self):
        for job in self.queue.jobs():
            # A microsecond, to which times of day are rounded, may be left.
            if job.deadline is not None and job.deadline < START + timedelta(seconds=self.s):
                assert self.queue.phase(job.id) in (m.Phase.SAVING, m.Phase.STARTING, m.Phase.STOPPING)

    @invariant()
    def time_is_watched(self):
        due_s = self.queue.next_check_s()
        assert due_s is None or due_s > self.s

    def teardown(self):
        """Left alone with friendly partners, every job ends."""
        for _ in range(100 * len(self.stored)):
            if not len(self.queue):
                break
            for job in list(self.writing):
                self.stored[job] = self.writing.pop(job)
                self.perform(self.queue.job_saved(self.stored[job], self.now))
            for job in list(self.offered):
                self.give(job, self.offered.pop(job))
            for job in list(self.starting):
                self.running[job] = self.starting.pop(job)
                self.perform(self.queue.attempt_started(job, self.now))
            for job in list(self.running):
                del self.running[job]
                self.stopping.pop(job, None)
                self.attempt_ended(job, m.Outcome(AttemptState.DONE))
            for job in list(self.asked)[:1]:
                del self.asked[job]
                self.starting[job] = "a new phone"
                self.perform(self.queue.phone_granted(job, f"phone {self.s}"))
            for job in list(self.queue.jobs()):
                if job.state is JobState.HELD and self.queue.phase(job.id) is m.Phase.RESTING:
                    self.perform(self.queue.job_resumed(job.id, self.now))
            self.s += 1
            self.perform(self.queue.time_passed(self.now))
        assert not len(self.queue)
        assert self.queue.next_check_s() is None


QueueMachine.TestCase.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
TestQueueMachine = QueueMachine.TestCase
