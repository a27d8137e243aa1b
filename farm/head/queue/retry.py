"""The next state of a job after an attempt. Pure.

The fault decides, never the message: a phone's fault means another phone at once, a user's fault ends the job, the
host's or farm's own waits a little and tries again. Yielded and interrupted attempts are no tries of the job's own, nor
are those that ended by what stops every worker of a host until its operator mends it (`HOST_STANDS`). What a host lacks
for such jobs only (`JOB_LACKS`) is not tried there again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from farm.common.durations import BackOff
from farm.common.errors import HOST_STANDS, JOB_LACKS, Code, FarmError, Fault, error_to_wire
from farm.head.queue.model import ClockReading, Error, Outcome
from farm.model.job import Attempt, AttemptState, Job, JobState
from farm.model.specs import Kinds

# A worker that died or a full disk may be well again at once; a host that is repaired is used again within a minute.
BACK_OFF = BackOff(1.0, 60.0)
MAX_CRASHES = 10  # a job under which the daemon died this often is likely what kills it


def begun(job: Job) -> Job:
    """The job once an attempt of it runs: earlier attempts keep their errors, the job's own goes."""
    return replace(job, state=JobState.RUNNING, attempts=job.attempts + 1, not_before=None, error=None)


def succeeded(job: Job, at: datetime) -> Job:
    """The job once an attempt of it has succeeded: it is done, whatever else was decided about it meanwhile.

    `job`: running, or as it was when that attempt was given its phone.
    """
    running = job if job.state is JobState.RUNNING else begun(job)
    return replace(running, state=JobState.DONE, error=None, ended_at=at)


def after_attempt(job: Job, outcome: Outcome, now: ClockReading) -> Job:
    """The job as it is once its running attempt has ended with `outcome`.

    Args:
        job: running, with that attempt counted in `attempts`.
        outcome: how the attempt ended.
        now: `not_before` and `ended_at` are written with its wall clock.
    """
    match outcome.state:
        case AttemptState.DONE:
            return succeeded(job, now.at)
        case AttemptState.CANCELLED:
            return replace(job, state=JobState.CANCELLED, error=outcome.error, ended_at=now.at)
        case AttemptState.YIELDED:
            return _again(replace(job, uncounted=job.uncounted + 1, error=None))
        case AttemptState.INTERRUPTED:
            job = replace(job, uncounted=job.uncounted + 1, error=outcome.error)
            return _again(job) if outcome.crashes < MAX_CRASHES else _given_up(job, now)
        case AttemptState.FAILED:
            return _after_failure(job, outcome, now)
        case AttemptState.RUNNING:
            raise ValueError("a running attempt has not ended")


def keeps_place(outcome: Outcome) -> bool:
    """Whether the job's next request has the place of the last one."""
    code = (outcome.error or {}).get("code")
    lost = code in (Code.DAEMON_DIED, Code.HOST_LINK_LOST, Code.HOST_LOST)
    return outcome.state is AttemptState.FAILED or lost


def crashes(attempts: Iterable[Attempt]) -> int:
    """Under how many of a job's attempts the daemon, the adb server or a hub died. A stop in good order is none."""
    return sum(
        each.state is AttemptState.INTERRUPTED
        and (each.error or {}).get("code") in (Code.DAEMON_DIED, Code.HOST_LINK_LOST)
        for each in attempts
    )


def failed_instead(job: Job, error: Error, at: datetime) -> Job:
    """The plain failure that a job becomes when what was decided about it cannot be kept."""
    return replace(job, state=JobState.FAILED, error=error, not_before=None, ended_at=at)


def _after_failure(job: Job, outcome: Outcome, now: ClockReading) -> Job:
    fault, code = ((outcome.error or {}).get(name) for name in ("fault", "code"))
    stands, lacks = code in HOST_STANDS and job.max_attempts > 1, code in JOB_LACKS
    elsewhere = outcome.another_phone and not job.device
    job = replace(job, error=outcome.error, uncounted=job.uncounted + stands)
    tries = job.attempts - job.uncounted
    if fault == Fault.USER or tries >= job.max_attempts or (lacks and not elsewhere):
        return replace(job, state=JobState.FAILED, ended_at=now.at)
    if fault == Fault.PHONE or lacks:
        # With no other phone left the ones that failed get another chance, all of them.
        avoid = job.avoid | {outcome.device} if elsewhere else frozenset()
        return _again(replace(job, avoid=avoid))
    delay_s = BACK_OFF.delay_s(job.uncounted if stands else tries)
    return replace(_again(job), not_before=now.at + timedelta(seconds=delay_s))


def _again(job: Job) -> Job:
    return replace(job, state=JobState.QUEUED, not_before=None)


def _given_up(job: Job, now: ClockReading) -> Job:
    error = FarmError(
        f"the daemon, or its way to the phones, died {MAX_CRASHES} times while this job ran",
        Code.INTERRUPTED_TOO_OFTEN,
        hint="see the daemon's log for what kills it; submit the job again when that is solved",
    )
    return failed_instead(job, error_to_wire(error), now.at)


def broken_off(kinds: Kinds, job: Job, error: FarmError) -> tuple[AttemptState, Mapping[str, object]]:
    """State and error of an attempt of `job` that `error` ended.

    Interrupted, which counts as no try, or failed if its work may be done only as often as its user allows.
    """
    kind = kinds.get(job.kind)
    if kind is None or not kind.once:
        return AttemptState.INTERRUPTED, error_to_wire(error)
    more = "" if job.max_attempts > 1 else "; with --max-attempts 2 it would have been run again"
    error.hint = f"part of it may be done: farm logs {job.id}{more}"
    return AttemptState.FAILED, error_to_wire(error)
