"""Jobs and attempts as plain values: the queue decides about them, the store keeps them.

A *job* is one piece of work for one phone, or for several at once (`tune --devices`). An *array* is several jobs
submitted as one, each for another phone. An
*attempt* is one try of a job under one lease; its fence is that lease's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from farm.common.limits import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY
from farm.model.requests import LeaseClass


class JobState(StrEnum):
    """Where a job is. The last three are final: nothing ever changes a job that is in one."""

    HELD = "held"  # its owner holds it back
    BLOCKED = "blocked"  # waits for the jobs in `after` to be done
    QUEUED = "queued"  # waits for a phone, or for the end of its back-off first
    RUNNING = "running"  # an attempt has a phone
    DONE = "done"  # an attempt succeeded
    FAILED = "failed"  # `error` says why there will be no further attempt
    CANCELLED = "cancelled"  # a user cancelled it, or a job that it waited for did not succeed


FINAL = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
MEASURING_KINDS = ("bench", "program")  # whose results are in histories, exports and comparisons of stored results


class AttemptState(StrEnum):
    """How one try stands. All but `running` are final."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # `error` says how, and by its fault whether another attempt follows
    CANCELLED = "cancelled"  # with its job
    YIELDED = "yielded"  # gave the phone to others at a candidate boundary; continues later, not counted as a try
    INTERRUPTED = "interrupted"  # the daemon stopped or died under it, or the host's adb, hub or toolchain did; no try


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work."""

    id: str
    kind: str
    user: str
    spec: Mapping[str, Any]  # as submitted (farm.model.specs); the queue never looks inside
    selector: str  # canonical text (str(Selector))
    submitted_at: datetime
    state: JobState = JobState.QUEUED
    device: str = ""  # only this phone
    avoid: frozenset[str] = frozenset()  # phones that failed it, and those its array's siblings began with
    array: str = ""  # id shared by the jobs of one array
    priority: int = DEFAULT_PRIORITY
    lease_class: LeaseClass = LeaseClass.INTERACTIVE
    timeout_s: float = 600.0  # one attempt, all steps
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    deadline: datetime | None = None  # it must have ended by then
    after: tuple[str, ...] = ()  # jobs that must be done first
    attempts: int = 0  # begun so far, whatever became of them
    uncounted: int = 0  # of these, the yielded and interrupted ones
    not_before: datetime | None = None  # back-off
    # Why its latest attempt, or the job, ended; None while one runs. As farm.common.errors.error_to_wire writes it.
    error: Mapping[str, object] | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a job under one lease."""

    id: str  # JOB.NUMBER
    job: str
    number: int  # from 1
    device: str
    lease: str
    fence: int
    started_at: datetime
    state: AttemptState = AttemptState.RUNNING
    ended_at: datetime | None = None
    error: Mapping[str, object] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # what an executor needs to take it up after a restart
    pooled: bool = False  # `device` and `lease` are its first ones; it continues without them
