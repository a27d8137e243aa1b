"""What the job queue is told and what it answers: plain values, see farm.core.queue.

Events are past tense, instructions imperative. Whoever performs an instruction that writes answers with `JobSaved`,
`AttemptStarted` or `AttemptNotStarted`; until then the queue decides nothing else about that job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from farm.core.job import AttemptState, Job, JobState

Error = Mapping[str, object]  # as farm.core.error_wire writes it


@dataclass(frozen=True, slots=True)
class Moment:
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

    state: AttemptState  # not `running`
    error: Error | None = None  # of a failed one
    device: str = ""  # the phone it had
    elsewhere: bool = True  # whether another phone could do it
    crashes: int = 0  # of an interrupted one: how many of the job's attempts the daemon has died under by now


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobAdded:
    """A job that the store has: just submitted, or found at the start (a running one has a running attempt)."""

    job: Job
    ended: Mapping[str, JobState | None] = field(default_factory=dict)
    """Those of `after` that have ended; None: nothing is known of that name. The others are added before or after."""


@dataclass(frozen=True, slots=True)
class ArrayBegan:
    """At the start: phones that jobs of an array have begun with, and which job."""

    array: str
    devices: Mapping[str, str]  # device -> job


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """Somebody does not want the job any more."""

    job: str
    error: Error


@dataclass(frozen=True, slots=True)
class JobHeld:
    """Its owner holds the job back."""

    job: str


@dataclass(frozen=True, slots=True)
class JobResumed:
    """Its owner lets the job go on."""

    job: str


@dataclass(frozen=True, slots=True)
class JobImpossible:
    """Nothing can ever run the job: its phone was forgotten."""

    job: str
    error: Error


@dataclass(frozen=True, slots=True)
class PhonesChanged:
    """The phones that failed the job are all there is now: it may have them again."""

    job: str


@dataclass(frozen=True, slots=True)
class PhoneGranted:
    """A lease for the job was granted."""

    job: str
    device: str


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The attempt was committed and works; the job is running."""

    job: str


@dataclass(frozen=True, slots=True)
class AttemptNotStarted:
    """The lease was lost before the attempt was committed; the job is as before."""

    job: str
    pause_s: float = 0.0  # before it asks again


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The attempt is over; nothing of it is written yet."""

    job: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class JobSaved:
    """What `SaveJob` or `EndAttempt` asked for is committed, or a failure in its place."""

    job: str
    became: Job | None = None  # what was committed; None: as asked for


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is at least `next_look_s`."""


QueueEvent = (
    JobAdded
    | ArrayBegan
    | JobCancelled
    | JobHeld
    | JobResumed
    | JobImpossible
    | PhonesChanged
    | PhoneGranted
    | AttemptStarted
    | AttemptNotStarted
    | AttemptEnded
    | JobSaved
    | TimePassed
)

# --- instructions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskForPhone:
    """Ask leasing for a phone for the job, not one of `avoid`. Answer: PhoneGranted."""

    job: Job
    avoid: frozenset[str]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take the job's question back."""

    job: str


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Commit attempt `number` under the granted lease, then run it. Answer: AttemptStarted or AttemptNotStarted."""

    job: Job  # as it is now: still queued
    number: int


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """End the running attempt so, unless it has ended by itself. Answer: AttemptEnded."""

    job: str
    state: AttemptState  # failed or cancelled
    error: Error


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Commit the end of the attempt together with the job's next state, then give its phone back. Answer: JobSaved."""

    job: Job
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Commit the job's next state. Answer: JobSaved."""

    job: Job
    before: JobState


Instruction = AskForPhone | Withdraw | StartAttempt | StopAttempt | EndAttempt | SaveJob
