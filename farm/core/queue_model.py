"""Where a job of the queue may be and what can be wrong with an order about it: states, tables, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from farm.core.error_wire import error_to_wire
from farm.core.errors import ExitCode, FarmError, UserError
from farm.core.job import FINAL, Job, JobState
from farm.core.queue_messages import Error

KEPT_STEPS = 20  # length of the story an illegal transition tells


class Phase(StrEnum):
    """What is being done about a job that has not ended."""

    RESTING = "resting"  # held, blocked or backing off: nobody is asked anything
    ASKED = "asked"  # leasing looks for a phone
    STARTING = "starting"  # it has a phone; its attempt is being written
    RUNNING = "running"  # its attempt works
    STOPPING = "stopping"  # its attempt has been told to end
    SAVING = "saving"  # its next state is being written


PHASES: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        Phase.RESTING: frozenset({Phase.ASKED, Phase.SAVING}),
        Phase.ASKED: frozenset({Phase.STARTING, Phase.SAVING}),
        Phase.STARTING: frozenset({Phase.RUNNING, Phase.RESTING}),
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


class QueueError(FarmError):
    """The job queue was told something that cannot be."""

    code = "queue"


class NoSuchJobError(UserError):
    """There is no such job, or it has ended."""

    code = "no_such_job"


class JobRunsError(UserError):
    """The job runs already."""

    code = "job_runs"


class DeadlineError(UserError):
    """The job did not end before its deadline."""

    code = "deadline"
    exit_code = ExitCode.FAILED


class AfterFailedError(UserError):
    """A job that this one waits for did not succeed."""

    code = "after_failed"
    exit_code = ExitCode.FAILED


def not_done(name: str, how: JobState | None) -> tuple[JobState, Error]:
    """How a job ends that waits for `name`, which did not succeed; None: nothing is known of it any more."""
    said = f"{name}, which it waits for, " + (f"is {how}" if how else "is not known any more")
    return JobState.CANCELLED, error_to_wire(AfterFailedError(said, hint=f"farm job show {name}"))


@dataclass(slots=True, eq=False)
class Entry:
    """One job that has not ended, and what is known about its future. Times are monotonic seconds."""

    job: Job  # as committed
    phase: Phase
    deadline_s: float | None
    ready_s: float  # end of its back-off
    missing: set[str] = field(default_factory=set)  # of `after`: not done yet
    saving: Job | None = None
    held: bool | None = None  # wish: hold (True), resume (False)
    doom: tuple[JobState, Error] | None = None  # how it must end as soon as nothing runs or is written
    story: list[str] = field(default_factory=list)

    def told(self) -> str:
        """What has become of it lately."""
        return " -> ".join(self.story) or "it has just come"


@dataclass(slots=True)
class Array:
    """What jobs of one array know of each other."""

    live: dict[str, None] = field(default_factory=dict)  # insertion-ordered set
    began: dict[str, str] = field(default_factory=dict)  # device -> the job that began there
