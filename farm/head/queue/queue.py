"""The job queue as a state machine: each method of what happened answers with instructions, and does nothing else.

Rules of this file:
- A job is what the store has committed. While its next state is being written (`SAVING`, `STARTING`) nothing else is
  decided about it; orders that arrive meanwhile are remembered and looked at when the write is answered.
- Everything that a job at rest does next follows from `_next`: one look at its orders, its deadline and what it waits
  for. Whatever happens changes a fact and looks again; looking twice changes nothing.
- Hold concerns jobs that are not running: a running attempt is cancelled or waited for.
- What a job waits for (`after`) is jobs and arrays. One of them that does not succeed cancels the job. Names are given
  out at submission, so nothing can wait for what comes later: there are no circles.
- Jobs of one array keep off each other's phones, except those pinned to theirs.
- Cost per event is O(log n) in the number of jobs; the first phone of an array's job costs O(jobs of that array).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from farm.common.errors import Code, UserError, error_to_wire
from farm.head.queue.model import (
    KEPT_STEPS,
    PHASES,
    TRANSITIONS,
    AskForPhone,
    ClockReading,
    Error,
    Instruction,
    JobArray,
    JobRunsError,
    NoSuchJobError,
    Outcome,
    Phase,
    QueuedJob,
    SaveJob,
    StartAttempt,
    StopAttempt,
    Withdraw,
    not_done,
    queue_error,
)
from farm.head.queue.retry import BACK_OFF, after_attempt, begun, keeps_place
from farm.model.job import FINAL, AttemptState, Job, JobState

STANDS = {JobState.HELD: "is held", JobState.BLOCKED: "waits for others itself", JobState.RUNNING: "runs"}


class JobQueue:
    """Every job that has not ended. Each method of "what happened" returns what is to be done, in order.

    Raises of those methods:
        NoSuchJobError: an order about a job that has ended.
        FarmError: what is said to have happened cannot be; nothing has changed.
    """

    def __init__(self) -> None:
        self._entries: dict[str, QueuedJob] = {}
        self._arrays: dict[str, JobArray] = {}
        self._waiting: dict[str, dict[str, None]] = {}  # name in `after` -> jobs that wait for it
        self._by_user: Counter[str] = Counter()
        self._choosy: dict[str, None] = {}  # jobs that phones have failed
        self._due: list[tuple[float, int, str]] = []
        self._pushed = 0
        self._out: list[Instruction] = []

    # --- questions ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._entries

    def job(self, job_id: str) -> Job | None:
        """The job as committed; None when it has ended or never was."""
        entry = self._entries.get(job_id)
        return entry.job if entry else None

    def phase(self, job_id: str) -> Phase | None:
        """The phase of a job."""
        entry = self._entries.get(job_id)
        return entry.phase if entry else None

    def jobs(self) -> Iterable[Job]:
        """Every job that has not ended, in the order they were added."""
        return [entry.job for entry in self._entries.values()]

    def avoided(self, job_id: str) -> frozenset[str]:
        """Phones that job must not get now: those that failed it, and its siblings'."""
        entry = self._entries.get(job_id)
        return self._avoid(entry) if entry else frozenset()

    def choosy(self) -> tuple[Job, ...]:
        """Jobs that wait for a phone other than those that failed them."""
        entries = (self._entries[job_id] for job_id in self._choosy)
        return tuple(entry.job for entry in entries if entry.phase is Phase.ASKED)

    def count_of(self, user: str) -> int:
        """How many jobs of that user have not ended."""
        return self._by_user[user]

    def why(self, job_id: str, now: ClockReading) -> str:
        """Why a job does not run, as far as the queue decides it; empty when it runs or only a phone is missing."""
        entry = self._entries.get(job_id)
        if entry is None:
            return ""
        if entry.fixed_end is not None:
            return "it is being ended"
        match entry.job.state:
            case JobState.HELD:
                return f"it is held: farm job resume {job_id}"
            case JobState.BLOCKED if entry.missing:
                first, *more = sorted(entry.missing)
                return f"it waits for {first}{self._state_of(first)}" + (f" and {len(more)} more" if more else "")
            case JobState.QUEUED if entry.ready_s > now.s:
                message = (entry.job.error or {}).get("message", "the last attempt failed")
                return f"it is tried again in {entry.ready_s - now.s:.0f} s: {message}"
        return ""

    def _state_of(self, name: str) -> str:
        """How a job or array that others wait for stands, behind its name; nothing when it is not known."""
        if (entry := self._entries.get(name)) is not None:
            return f", which {STANDS.get(entry.job.state, f'is {entry.job.state}')}"
        array = self._arrays.get(name)
        return f", of which {len(array.live)} have not ended" if array else ""

    def next_check_s(self) -> float | None:
        """When `time_passed` is due, in monotonic seconds; None when nothing waits for a time."""
        while self._due and self._due[0][2] not in self._entries:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    # --- what happened --------------------------------------------------------------------------------------------

    def job_added(self, job: Job, ended: Mapping[str, JobState | None], now: ClockReading) -> tuple[Instruction, ...]:
        """The store has this job: just submitted, or found at the start.

        A running job has a running attempt, or `attempt_ended` follows. `ended`: the names in `after` that have ended,
        and how; None: the store has no such name. The others are added too.
        """
        if job.id in self._entries or job.state in FINAL:
            raise queue_error(f"job {job.id} is added, but it is {job.state} and {self.phase(job.id) or 'unknown'}")
        running = job.state is JobState.RUNNING
        entry = QueuedJob(
            job,
            Phase.RUNNING if running else Phase.RESTING,
            None if job.deadline is None else now.s + (job.deadline - now.at).total_seconds(),
            # A wall clock that was set back while the daemon was away must not stretch a back-off.
            now.s + min(BACK_OFF.limit_s, (job.not_before - now.at).total_seconds()) if job.not_before else now.s,
            now.s,
        )
        self._entries[job.id] = entry
        if job.avoid:
            self._choosy[job.id] = None
        self._by_user[job.user] += 1
        if job.array:
            self._arrays.setdefault(job.array, JobArray()).live[job.id] = None
        if entry.deadline_s is not None:
            self._push(entry.deadline_s, job.id)
        if not running and job.attempts == 0:  # one that has begun has had what it waited for
            self._wait_for(entry, ended)
        return self._decide(entry, now)

    def _wait_for(self, entry: QueuedJob, ended: Mapping[str, JobState | None]) -> None:
        for name in entry.job.after:
            if name not in ended:
                entry.missing.add(name)
                self._waiting.setdefault(name, {})[entry.job.id] = None
            elif ended[name] is not JobState.DONE:
                entry.fixed_end = entry.fixed_end or not_done(name, ended[name])

    def array_began(self, array: str, devices: Mapping[str, str]) -> None:
        """At the start: the phones that jobs of an array have begun with, and which job."""
        self._arrays.setdefault(array, JobArray()).began.update(devices)

    def job_cancelled(self, job_id: str, error: Error, now: ClockReading) -> tuple[Instruction, ...]:
        """A user cancels the job."""
        return self._end(job_id, JobState.CANCELLED, error, now)

    def job_impossible(self, job_id: str, error: Error, now: ClockReading) -> tuple[Instruction, ...]:
        """Nothing can ever run the job: its phone was forgotten."""
        return self._end(job_id, JobState.FAILED, error, now)

    def _end(self, job_id: str, state: JobState, error: Error, now: ClockReading) -> tuple[Instruction, ...]:
        entry = self._ordered(job_id)
        entry.fixed_end = entry.fixed_end or (state, error)
        return self._decide(entry, now)

    def job_held(self, job_id: str, now: ClockReading) -> tuple[Instruction, ...]:
        """Its owner holds the job back.

        Raises:
            JobRunsError: a running job cannot be held.
        """
        entry = self._ordered(job_id)
        if entry.job.state is JobState.RUNNING or entry.phase is Phase.STARTING:
            raise JobRunsError(f"job {job_id} runs: it cannot be held", hint=f"farm job cancel {job_id}, or wait")
        entry.held = True
        return self._decide(entry, now)

    def job_resumed(self, job_id: str, now: ClockReading) -> tuple[Instruction, ...]:
        """Its owner lets the job continue."""
        entry = self._ordered(job_id)
        entry.held = False
        return self._decide(entry, now)

    def phones_changed(self, job_id: str) -> tuple[Instruction, ...]:
        """Only phones that failed the job are left: it may have them again."""
        entry = self._entries.get(job_id)
        if entry is not None and entry.phase is Phase.ASKED and entry.job.avoid:
            entry.job = replace(entry.job, avoid=frozenset())
            del self._choosy[job_id]
            self._ask_again(entry)
        return self._taken()

    def phone_offered(self, job_id: str) -> StartAttempt | None:
        """A phone is offered to the job, whose host commits this attempt if it can.

        None: the job does not wait for a phone any more. Answer: `phone_granted`, or `offer_undone`.
        """
        entry = self._entries.get(job_id)
        if entry is None or entry.phase is not Phase.ASKED:
            return None
        self._go(entry, Phase.STARTING)
        entry.offered = True
        return StartAttempt(entry.job, entry.job.attempts + 1)

    def offer_undone(self, job_id: str, avoid: frozenset[str]) -> bool:
        """The host refused the offer.

        `avoid`: the phones that the job's request excludes. Returns whether that request still fits; if not, call
        `look_again`.
        """
        entry = self._entry(job_id)
        waits = entry.fixed_end is None and avoid == self._avoid(entry)
        self._go(entry, Phase.ASKED if waits else Phase.RESTING)
        entry.offered = False
        return waits

    def look_again(self, job_id: str, now: ClockReading) -> tuple[Instruction, ...]:
        """A job whose offer was undone has no request: it ends as was ordered meanwhile, or asks again."""
        return self._decide(self._entry(job_id), now)

    def phone_granted(self, job_id: str, device: str, *, claimed: bool = False) -> tuple[Instruction, ...]:
        """A lease for the job was granted. `claimed`: its attempt is committed, as `phone_offered` said."""
        entry = self._entry(job_id)
        if not entry.offered:
            self._go(entry, Phase.STARTING)
        entry.offered = False
        job = entry.job
        if not claimed:
            self._out.append(StartAttempt(job, job.attempts + 1))
        if job.array and not job.device:
            array = self._arrays[job.array]
            if array.began.setdefault(device, job.id) == job.id:
                for sibling in array.live:
                    other = self._entries[sibling]
                    if other.phase is Phase.ASKED:
                        self._ask_again(other)
        return self._taken()

    def attempt_started(self, job_id: str, now: ClockReading) -> tuple[Instruction, ...]:
        """The attempt was committed and works; the job is running."""
        entry = self._entry(job_id)
        self._go(entry, Phase.RUNNING)
        self._become(entry, begun(entry.job))
        return self._decide(entry, now)

    def attempt_not_started(self, job_id: str, pause_s: float, now: ClockReading) -> tuple[Instruction, ...]:
        """The lease was lost before the attempt was committed; the job is as before, and asks again in `pause_s`."""
        entry = self._entry(job_id)
        self._go(entry, Phase.RESTING)
        entry.ready_s = now.s + pause_s
        return self._decide(entry, now)

    def attempt_ended(self, job_id: str, outcome: Outcome, now: ClockReading) -> tuple[Instruction, ...]:
        """The attempt's end is committed, and that the job is done if the attempt succeeded."""
        entry = self._entry(job_id)
        job = after_attempt(entry.job, outcome, now)
        if entry.fixed_end is not None and job.state is not JobState.DONE:
            state, error = entry.fixed_end
            job = replace(job, state=state, error=error, not_before=None, ended_at=now.at)
        self._go(entry, Phase.SAVING)
        entry.saving = job
        if not keeps_place(outcome):
            entry.place_s = now.s
        if job.state is JobState.DONE:
            return self.job_saved(job, now)
        self._out.append(SaveJob(job, JobState.RUNNING))
        return self._taken()

    def job_saved(self, job: Job, now: ClockReading) -> tuple[Instruction, ...]:
        """The job's next state is committed: what `SaveJob` said, or a failure in its place."""
        entry = self._entry(job.id)
        if entry.saving is None:
            raise queue_error(f"nothing of job {job.id} is being written: {entry.history()}")
        self._go(entry, Phase.RESTING)
        self._become(entry, job)
        entry.saving = None
        if job.state in FINAL:
            self._drop(entry, now)
            return self._taken()
        if job.not_before is not None:
            entry.ready_s = now.s + max(0.0, (job.not_before - now.at).total_seconds())
        return self._decide(entry, now)

    def time_passed(self, now: ClockReading) -> tuple[Instruction, ...]:
        """It is at least `next_check_s`."""
        while self._due and self._due[0][0] <= now.s:
            _, _, job_id = heapq.heappop(self._due)
            if job_id in self._entries:
                self._advance(self._entries[job_id], now)
        return self._taken()

    # --- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, entry: QueuedJob, now: ClockReading) -> tuple[Instruction, ...]:
        """The instructions after a change of a job, in order."""
        self._advance(entry, now)
        return self._taken()

    def _taken(self) -> tuple[Instruction, ...]:
        instructions, self._out = tuple(self._out), []
        return instructions

    def _advance(self, entry: QueuedJob, now: ClockReading) -> None:
        """Do what is due for a job now. Does nothing while something of it is being written."""
        if entry.fixed_end is None and entry.deadline_s is not None and now.s >= entry.deadline_s:
            late = UserError("the job did not end before its deadline", Code.DEADLINE_MISSED)
            entry.fixed_end = JobState.FAILED, error_to_wire(late)
        if entry.phase is Phase.RUNNING and entry.fixed_end is not None:
            self._go(entry, Phase.STOPPING)
            state, error = entry.fixed_end
            self._out.append(StopAttempt(entry.job.id, AttemptState(state.value), error))
        if entry.phase not in (Phase.RESTING, Phase.ASKED):
            return
        following = self._next(entry, now)
        if following is not None:
            if entry.phase is Phase.ASKED:
                self._out.append(Withdraw(entry.job.id))
            self._go(entry, Phase.SAVING)
            entry.saving = following
            self._out.append(SaveJob(following, entry.job.state))
        elif entry.job.state is JobState.QUEUED and entry.phase is Phase.RESTING:
            if entry.ready_s > now.s:
                self._push(entry.ready_s, entry.job.id)
            else:
                self._go(entry, Phase.ASKED)
                self._ask(entry)

    def _next(self, entry: QueuedJob, now: ClockReading) -> Job | None:
        """The state that a job at rest goes to; None when it stays as it is."""
        job, held = entry.job, entry.held
        entry.held = None
        if entry.fixed_end is not None:
            state, error = entry.fixed_end
            return replace(job, state=state, error=error, not_before=None, ended_at=now.at)
        if held and job.state is not JobState.HELD:
            return replace(job, state=JobState.HELD)
        waits = JobState.BLOCKED if entry.missing else JobState.QUEUED
        if job.state is JobState.BLOCKED or (job.state is JobState.HELD and held is False):
            return None if job.state is waits else replace(job, state=waits)
        return None

    def _drop(self, entry: QueuedJob, now: ClockReading) -> None:
        """A job has ended: forget it and notify those that wait for it or for its array."""
        job = entry.job
        del self._entries[job.id]
        self._choosy.pop(job.id, None)
        self._by_user[job.user] -= 1
        if not self._by_user[job.user]:
            del self._by_user[job.user]
        for name in entry.missing:
            self._waiting[name].pop(job.id, None)
        self._end_wait(job.id, job, now)
        if job.array:
            array = self._arrays[job.array]
            del array.live[job.id]
            if job.state is not JobState.DONE or not array.live:
                self._end_wait(job.array, job, now)
            if not array.live:
                del self._arrays[job.array]

    def _end_wait(self, name: str, job: Job, now: ClockReading) -> None:
        for waiter in self._waiting.pop(name, ()):
            entry = self._entries[waiter]
            entry.missing.discard(name)
            if job.state is not JobState.DONE:
                entry.fixed_end = entry.fixed_end or not_done(job.id, job.state)
            self._advance(entry, now)

    # --- helpers --------------------------------------------------------------------------------------------------

    def _avoid(self, entry: QueuedJob) -> frozenset[str]:
        job = entry.job
        array = self._arrays.get(job.array)
        if array is None or job.device:
            return job.avoid
        return job.avoid | {device for device, owner in array.began.items() if owner != job.id}

    def _ask_again(self, entry: QueuedJob) -> None:
        self._out.append(Withdraw(entry.job.id))
        self._ask(entry)

    def _ask(self, entry: QueuedJob) -> None:
        self._out.append(AskForPhone(entry.job, self._avoid(entry), entry.place_s))

    def _push(self, due_s: float, job_id: str) -> None:
        self._pushed += 1
        heapq.heappush(self._due, (due_s, self._pushed, job_id))

    def _entry(self, job_id: str) -> QueuedJob:
        entry = self._entries.get(job_id)
        if entry is None:
            raise queue_error(f"something was done for job {job_id}, which has ended or never was")
        return entry

    def _ordered(self, job_id: str) -> QueuedJob:
        """The job that an order names."""
        entry = self._entries.get(job_id)
        if entry is None or (entry.saving is not None and entry.saving.state in FINAL):
            raise NoSuchJobError(f"job {job_id} has ended or never was")
        return entry

    def _go(self, entry: QueuedJob, phase: Phase) -> None:
        if phase not in PHASES[entry.phase]:
            raise queue_error(f"job {entry.job.id} cannot go from {entry.phase} to {phase}: {entry.history()}")
        entry.phase = phase
        entry.steps.append(phase)
        del entry.steps[:-KEPT_STEPS]

    def _become(self, entry: QueuedJob, job: Job) -> None:
        if job.state not in TRANSITIONS[entry.job.state]:
            raise queue_error(f"job {job.id} cannot go from {entry.job.state} to {job.state}: {entry.history()}")
        entry.job = job
        entry.steps.append(job.state)
        if job.avoid:
            self._choosy[job.id] = None
        else:
            self._choosy.pop(job.id, None)
