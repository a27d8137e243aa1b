"""What a daemon does with the jobs of the one before it, before anything else may happen to them.

Its leases are ended in the store and its attempts interrupted, except a person's lease: within its time it goes on
under its id, fence and expiry, beyond that its job is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from farm.core.error_wire import error_to_wire
from farm.core.events import EventLog
from farm.core.job import Attempt, AttemptState, Job
from farm.core.queue_messages import Moment, Outcome
from farm.core.requests import Lease
from farm.core.retry import DaemonDiedError, after_attempt, crashes
from farm.jobs.interruption import broken_off
from farm.jobs.job_writes import JobWriter
from farm.jobs.planning import request_of
from farm.jobs.specs import LeaseSpec
from farm.leasing import LeaseEndedError
from farm.leasing.book import released
from farm.store.records import LeaseRecord
from farm.store.store import Store

RESTARTED = "the daemon was restarted"
OVER_MEANWHILE = "its time ended while the daemon was down"


@dataclass(frozen=True, slots=True)
class Survivor:
    """An attempt that goes on under this daemon."""

    job: Job
    attempt: Attempt
    lease: Lease


async def recover(
    store: Store, events: EventLog, writer: JobWriter, now: Moment, kept: Collection[str] = ()
) -> tuple[Survivor, ...]:
    """End or take up what the daemon before this one left running; returns what goes on.

    `kept`: ids of leases that somebody has taken up already.

    Raises:
        StoreWriteError: the store cannot write.
    """
    open_leases = {record.id: record for record in store.leases.open() if record.id not in kept}
    survivors = []
    for attempt in store.jobs.running():
        job, record = store.jobs.get(attempt.job), open_leases.get(attempt.lease)
        if job is None:
            continue  # an attempt's job is kept as long as the attempt
        if record is not None and _goes_on(job, attempt, record, now):
            del open_leases[record.id]
            survivors.append(Survivor(job, attempt, _lease(job, record, now)))
        elif _was_handed_over(job, attempt):
            await _end_of_lease(writer, job, attempt, record, now)
        else:
            await _interrupt(store, writer, job, attempt, now)
    for record in open_leases.values():
        held_s = _held_s(record, now)
        with events.drafted(released(record, RESTARTED, held_s)) as drafts:
            await store.leases.end(record.id, ended_at=now.at, reason=RESTARTED, held_s=held_s, events=drafts)
    return tuple(survivors)


def arrays_begun(store: Store, live: Sequence[Job]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """For each array with jobs that may choose their phone: the phones its jobs have begun with, and which job."""
    for array in dict.fromkeys(job.array for job in live if job.array and not job.device):
        members: list[str] = []
        before = ""
        while page := store.jobs.page(array=array, before=before):
            members += (job.id for job in page)
            before = page[-1].id
        yield array, {each.device: each.job for each in store.jobs.latest_attempts(members).values()}


def _was_handed_over(job: Job, attempt: Attempt) -> bool:
    """Whether a person has had the phone: then what was asked for has been given, and is not given again."""
    return job.kind == LeaseSpec.kind and bool(attempt.facts)


def _goes_on(job: Job, attempt: Attempt, record: LeaseRecord, now: Moment) -> bool:
    in_time = record.expires_at is not None and record.expires_at > now.at
    return _was_handed_over(job, attempt) and in_time


def _lease(job: Job, record: LeaseRecord, now: Moment) -> Lease:
    assert record.expires_at is not None  # else it does not go on
    held_s = (now.at - record.granted_at).total_seconds()
    left_s = (record.expires_at - now.at).total_seconds()
    request = replace(request_of(job, frozenset()), longest_s=left_s)
    return Lease(record.id, record.device, record.fence, request, granted_at=now.s - held_s)


async def _end_of_lease(writer: JobWriter, job: Job, attempt: Attempt, record: LeaseRecord | None, now: Moment) -> None:
    """A person had the phone, so there is nothing to begin again: its time is over, or it was taken away."""
    if record is not None:
        state, error, result = AttemptState.DONE, None, {"device": attempt.device, "ended": OVER_MEANWHILE}
    else:
        state, result = AttemptState.FAILED, None
        error = error_to_wire(LeaseEndedError(f"the lease on {attempt.device} was taken back"))
    becomes = after_attempt(job, Outcome(state, error, attempt.device), now)
    await writer.finish(replace(attempt, state=state, ended_at=now.at, error=error), becomes, now.at, result)


async def _interrupt(store: Store, writer: JobWriter, job: Job, attempt: Attempt, now: Moment) -> None:
    state, error = broken_off(job, DaemonDiedError)
    ended = replace(attempt, state=state, ended_at=now.at, error=error)
    died = crashes((*store.jobs.attempts(job.id), ended))  # the store has it as running
    becomes = after_attempt(job, Outcome(ended.state, error, attempt.device, crashes=died), now)
    await writer.finish(ended, becomes, now.at)


def _held_s(record: LeaseRecord, now: Moment) -> float:
    until = now.at if record.expires_at is None else min(now.at, record.expires_at)
    return max(0.0, (until - record.granted_at).total_seconds())
