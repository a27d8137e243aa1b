"""The values of the job queue: where a job may be, the instructions the queue answers, and its errors.

The performer of an instruction that writes answers by the queue's `job_saved`, `attempt_started` or
`attempt_not_started`; until then the queue decides nothing else about that job. Nor does it while the host of an
offered phone may commit the attempt (`phone_offered`), until `attempt_started` or `offer_undone`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from types import MappingProxyType

from farm.common.errors import Code, FarmError, UserError, error_to_wire
from farm.model.job import FINAL, AttemptState, Job, JobState

Error = Mapping[str, object]  # as farm.common.errors writes it
KEPT_STEPS = 20  # steps that the error of an illegal transition shows


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Now, on both clocks: decisions follow the monotonic one, what is written down shows the other."""

    s: float  # monotonic seconds
    at: datetime  # timezone-aware

    @property
    def wall_ahead_s(self) -> float:
        """How far the wall clock is ahead of the monotonic one; changes when it is set."""
        return self.at.timestamp() - self.s


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    state: AttemptState  # `running`: it continues under the next daemon, of which the queue learns nothing
    error: Error | None = None  # of a failed one
    device: str = ""  # the phone it had
    another_phone: bool = True  # whether another one could do it
    result: Mapping[str, object] | None = None  # kept with the end; the queue does not read it
    crashes: int = 0  # of an interrupted one: how many of the job's attempts the daemon has died under by now


@dataclass(frozen=True, slots=True)
class AskForPhone:
    """Ask leasing for a phone for the job, not one of `avoid`. Answer: `phone_granted`."""

    job: Job
    avoid: frozenset[str]
    place_s: float  # as in `QueuedJob`


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Withdraw the job's request for a phone."""

    job: str


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Commit attempt `number` under the granted lease, then run it. Answer: `attempt_started` or `_not_started`."""

    job: Job  # as it is now: still queued
    number: int


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """End the running attempt with this state and error, unless it has ended by itself. Then: `attempt_ended`."""

    job: str
    state: AttemptState  # failed or cancelled; interrupted when its host was lost and has ended it too late
    error: Error
    attempt: str = ""  # id; "": the job's only one


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Commit the job's next state. Answer: `job_saved`."""

    job: Job
    before: JobState


Instruction = AskForPhone | Withdraw | StartAttempt | StopAttempt | SaveJob


class Phase(StrEnum):
    """The phase of a job that has not ended."""

    RESTING = "resting"  # held, blocked or backing off: nothing is requested
    ASKED = "asked"  # leasing looks for a phone
    STARTING = "starting"  # it has a phone, or is offered one; its attempt is being written
    RUNNING = "running"  # its attempt works
    STOPPING = "stopping"  # its attempt is being ended
    SAVING = "saving"  # its next state is being written


PHASES: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        Phase.RESTING: frozenset({Phase.ASKED, Phase.SAVING}),
        Phase.ASKED: frozenset({Phase.STARTING, Phase.SAVING}),
        Phase.STARTING: frozenset({Phase.RUNNING, Phase.RESTING, Phase.ASKED}),
        Phase.RUNNING: frozenset({Phase.STOPPING, Phase.SAVING}),
        Phase.STOPPING: frozenset({Phase.SAVING}),
        Phase.SAVING: frozenset({Phase.RESTING}),
    }
)

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        JobState.HELD: frozenset({JobState.BLOCKED, JobState.QUEUED, JobState.CANCELLED, JobState.FAILED}),
        JobState.BLOCKED: frozenset({JobState.HELD, JobState.QUEUED, JobState.CANCELLED, JobState.FAILED}),
        JobState.QUEUED: frozenset({JobState.HELD, JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
        JobState.RUNNING: frozenset({JobState.QUEUED, *FINAL}),
        JobState.DONE: frozenset(),
        JobState.FAILED: frozenset(),
        JobState.CANCELLED: frozenset(),
    }
)


queue_error = partial(FarmError, code=Code.BAD_QUEUE_EVENT)


class NoSuchJobError(UserError):
    """There is no such job, or it has ended."""

    code = "no_such_job"


class JobRunsError(UserError):
    """The job runs already."""

    code = "job_running"


def not_done(name: str, how: JobState | None) -> tuple[JobState, Error]:
    """How a job ends that waits for `name`, which did not succeed; None: nothing is known of it any more."""
    message = f"{name}, which it waits for, " + (f"is {how}" if how else "is not known any more")
    return JobState.CANCELLED, error_to_wire(UserError(message, Code.AFTER_FAILED, hint=f"farm job show {name}"))


@dataclass(slots=True, eq=False)
class QueuedJob:
    """One job that has not ended, and its planned future. Times are monotonic seconds."""

    job: Job  # as committed
    phase: Phase
    deadline_s: float | None
    ready_s: float  # end of its back-off
    place_s: float  # the time of its place among its user's jobs: when it was added, or gave way
    missing: set[str] = field(default_factory=set)  # of `after`: not done yet
    saving: Job | None = None
    offered: bool = False  # while it is starting: its phone's host has not answered the offer
    held: bool | None = None  # asked for: hold (True), resume (False)
    fixed_end: tuple[JobState, Error] | None = None  # how it must end as soon as nothing runs or is written
    steps: list[str] = field(default_factory=list)

    def history(self) -> str:
        """Its latest steps."""
        return " -> ".join(self.steps) or "it has just been added"


@dataclass(slots=True)
class JobArray:
    """The jobs of one array that have not ended, and the devices that its jobs began on."""

    live: dict[str, None] = field(default_factory=dict)  # insertion-ordered set
    began: dict[str, str] = field(default_factory=dict)  # device -> the job that began there
