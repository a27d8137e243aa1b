"""Jobs in the store: the queue's decisions are written with their events, and a start takes up what it finds there.

A decision is made once; a full disk only delays that it is kept. What the store refuses for another reason (a bug) is
kept as a plain failure of its job instead: one job's end must not hold its phone, its followers or the queue.

At a start, the leases that the daemon before it left on this host are ended in the store and its attempts interrupted,
except a person's lease: within its time it continues under its id, fence and expiry, beyond that its job is done.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from farm.common.errors import Code, HostError, PhoneError, UserError, error_to_wire, log_error
from farm.common.events import EventDraft, EventLog
from farm.head.messages import AttemptEnded
from farm.head.planning import request_of
from farm.head.queue.model import ClockReading, Error, Outcome
from farm.head.queue.retry import broken_off, crashes, failed_instead, succeeded
from farm.head.write_queue import released_event
from farm.model.job import FINAL, Attempt, AttemptState, Job, JobState
from farm.model.requests import ENDED_BY_OPERATOR, TIME_OVER, Lease
from farm.model.specs import Kinds
from farm.store.database import WriteRetrier
from farm.store.jobs import JobTable
from farm.store.leases import LeaseRecord
from farm.store.mailbox import Letter
from farm.store.store import Store

log = logging.getLogger(__name__)
RESTARTED = "the daemon was restarted"
OVER_MEANWHILE = "its time ended while the daemon was down"
Kept = TypeVar("Kept", Job, Attempt)


class JobWriter:
    """Commits what the queue decides about jobs and attempts."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self._store = store
        self._events = events
        self._alone = store.server is None  # no other process writes jobs
        self._retrier = WriteRetrier()
        store.on_problem(self._retrier.on_store_problem)

    async def add(self, jobs: Sequence[Job], key: str) -> tuple[str, ...]:
        """Keep the jobs of a submit; the ids of an earlier one with that user and key if there was one.

        Raises:
            StoreWriteError: they cannot be kept.
        """
        submitted = [("job.submitted", job.id, _job_facts(job)) for job in jobs]
        with self._events.drafted(*submitted) as drafts:
            ids = await self._store.jobs.add(jobs, key=key, events=drafts)
            if ids != tuple(job.id for job in jobs):
                drafts.drop()
        return ids

    async def claim(self, attempt: Attempt, attempts_before: int) -> bool:
        """Commit that the attempt runs; False: the job is not as believed.

        Raises:
            FarmError: another attempt runs on that device, or its lease is not known.
        """

        async def claim() -> bool:
            with self._events.drafted(started_event(attempt)) as drafts:
                return await self._store.jobs.start(attempt, attempts_before=attempts_before, events=drafts)

        return await self._retrier.write(claim, f"attempt {attempt.id}")

    async def finish(
        self,
        job: Job,
        ended: Attempt,
        result: Mapping[str, Any] | None = None,
        *,
        letter: Callable[[Attempt], Letter | None],
    ) -> Attempt | None:
        """Commit an attempt's end and its result, and that its job is done if it succeeded.

        `letter`: makes the one that reports the end to a head apart, committed with it. Returns the end as committed;
        None: another process has ended the attempt, or the store takes no end of it.
        """
        at = ended.ended_at
        assert at is not None

        async def finish(end: Attempt) -> bool:
            done = succeeded(job, at) if end.state is AttemptState.DONE else None
            with self._events.drafted(*ended_events(job.kind, end, done)) as drafts:
                return await self._store.jobs.finish(
                    end, done, result=result if end is ended else None, events=drafts, letter=letter(end)
                )

        end, written = await self._write(
            ended, finish, lambda error: replace(ended, state=AttemptState.FAILED, error=error)
        )
        return end if written else None

    async def save(self, becomes: Job, before: JobState, at: datetime) -> Job:
        """Commit a job's next state; returns what it became."""

        async def save(becomes: Job) -> bool:
            with self._events.drafted(job_event(becomes, before)) as drafts:
                return await self._store.jobs.save(becomes, expected=(before,), events=drafts)

        became, _ = await self._write(becomes, save, lambda error: failed_instead(becomes, error, at))
        return became

    async def move_deadlines(self, by_s: float) -> None:
        """The wall clock was set: what is written of deadlines follows it."""
        await self._retrier.write(lambda: self._store.jobs.move_deadlines(by_s), "deadlines")

    async def _write(
        self, kept: Kept, write: Callable[[Kept], Awaitable[bool]], failed: Callable[[Error], Kept]
    ) -> tuple[Kept, bool]:
        """Write the next state of a job or an attempt, or if that is refused its failure; and whether it is written."""
        name = f"{type(kept).__name__.lower()} {kept.id}"
        try:
            written = await self._retrier.write(lambda: write(kept), name)
        except Exception as error:  # noqa: BLE001 - a lost term or a bug
            log_error(log, error, "%s cannot be kept as %s, it fails", name, kept.state)
            failure = failed(error_to_wire(error))
            try:
                return failure, await self._retrier.write(lambda: write(failure), name)
            except Exception as again:  # noqa: BLE001 - the next start takes the job up again
                log_error(log, again, "%s cannot be kept as failed either", name)
                return failure, False
        if not written and self._alone:
            log.error("%s cannot be kept as %s: it is in another state than is believed", name, kept.state)
        elif not written:  # normal: an attempt of a host that was lost, or a job that ended as it was cancelled
            log.info("%s is not kept as %s: another process has changed it since", name, kept.state)
        return kept, written


def started_event(attempt: Attempt) -> EventDraft:
    """The event of an attempt's begin."""
    return "attempt.started", attempt.id, _attempt_facts(attempt)


def ended_events(kind: str, ended: Attempt, done: Job | None = None) -> tuple[EventDraft, ...]:
    """The events of an attempt's end in a job of this kind, and of the job's if the attempt succeeded."""
    facts = {**_attempt_facts(ended), "kind": kind, "state": ended.state, "error": ended.error}
    end = "attempt.ended", ended.id, facts
    return (end,) if done is None else (end, job_event(done, JobState.RUNNING))


def job_event(job: Job, before: JobState) -> EventDraft:
    """The event for the step of a job from the state `before` to its own."""
    kind = "resumed" if before is JobState.HELD and job.state not in FINAL else job.state.value
    data = _job_facts(job)
    if job.error is not None and job.state is not JobState.DONE:
        data["error"] = dict(job.error)
    return f"job.{kind}", job.id, data


def _job_facts(job: Job) -> dict[str, object]:
    return {"kind": job.kind, "user": job.user, "array": job.array, "state": job.state}


def _attempt_facts(attempt: Attempt) -> dict[str, object]:
    return {"job": attempt.job, "device": attempt.device, "fence": attempt.fence, "lease": attempt.lease}


@dataclass(frozen=True, slots=True)
class LeftAttempt:
    """An attempt that ended with the daemon before this one, and nothing of it is written."""

    job: Job
    attempt: Attempt
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class InterruptedWork:
    """What the daemon before this one left running."""

    survivors: tuple[tuple[Job, Attempt, Lease], ...]  # these continue
    attempts: tuple[LeftAttempt, ...]
    leases: tuple[LeaseRecord, ...]  # that are over


async def read_interrupted(
    store: Store, now: ClockReading, kinds: Kinds, adopted: Collection[str], hosts: Collection[str] | None
) -> InterruptedWork:
    """Read what the daemon before this one left running.

    Args:
        store: where it is kept.
        now: when.
        kinds: of jobs.
        adopted: ids of leases that another component has restored.
        hosts: names that this host had, as it holds its own leases only, and those that it has armed; None: all.
    """
    read = store.read
    every = {record.id: record for record in await read(store.leases.open) if record.id not in adopted}
    leases = {name: each for name, each in every.items() if hosts is None or (each.host in hosts and each.armed_at)}
    survivors, left = [], []
    for attempt in await read(store.jobs.running):
        record = leases.get(attempt.lease)
        ended = None if record is not None else await read(store.leases.get, attempt.lease)
        if record is None and hosts is not None and (ended is None or ended.host not in hosts):
            continue
        if (job := await read(store.jobs.get, attempt.job)) is None:
            continue  # an attempt's job is kept as long as the attempt
        if record is not None and _goes_on(kinds, job, attempt, record, now):
            del leases[record.id]
            survivors.append((job, attempt, _lease(kinds, job, record, now)))
        elif was_handed_over(kinds, job, attempt):
            left.append(LeftAttempt(job, attempt, _end_of_lease(attempt, record or ended)))
        else:
            left.append(LeftAttempt(job, attempt, await _interrupted(store, kinds, job, attempt)))
    return InterruptedWork(tuple(survivors), tuple(left), tuple(leases.values()))


async def end_lease(
    store: Store, events: EventLog, record: LeaseRecord, now: ClockReading, letter: Letter | None
) -> None:
    """Keep that a lease ended with the daemon before this one; a head apart gets the letter.

    Raises:
        StoreWriteError: the store cannot write.
    """
    held_s = _held_s(record, now)
    with events.drafted(released_event(record, RESTARTED, held_s)) as drafts:
        await store.leases.end(
            record.id, ended_at=now.at, reason=RESTARTED, held_s=held_s, events=drafts, letter=letter
        )


def arrays_begun(store: Store, live: Sequence[Job]) -> Sequence[tuple[str, Mapping[str, str]]]:
    """For each array with jobs that may choose their phone: the phones its jobs have begun with, and which job."""
    begun = []
    for array in dict.fromkeys(job.array for job in live if job.array and not job.device):
        members: list[str] = []
        before = ""
        while page := store.jobs.page(array=array, before=before):
            members += (job.id for job in page)
            before = page[-1].id
        begun.append((array, {each.device: each.job for each in store.jobs.latest_attempts(members).values()}))
    return begun


def undecided_ends(jobs: JobTable, live: Sequence[Job]) -> Sequence[AttemptEnded]:
    """The latest attempts of running jobs that have ended: no head has decided yet what their jobs become."""
    attempts: defaultdict[str, list[Attempt]] = defaultdict(list)
    for each in jobs.attempts_of(job.id for job in live if job.state is JobState.RUNNING):
        attempts[each.job].append(each)
    return [AttemptEnded(some[-1], crashes(some)) for some in attempts.values() if some[-1].ended_at is not None]


def release_reason(state: AttemptState) -> str:
    """Why the lease of an attempt that ended so is given back."""
    how = {AttemptState.DONE: "is done", AttemptState.FAILED: "failed"}.get(state, f"was {state}")
    return f"its attempt {how}"


def was_handed_over(kinds: Kinds, job: Job, attempt: Attempt) -> bool:
    """Whether a person has had the phone: then what was asked for has been given, and is not given again."""
    kind = kinds.get(job.kind)
    return kind is not None and kind.personal and bool(attempt.facts)


def _goes_on(kinds: Kinds, job: Job, attempt: Attempt, record: LeaseRecord, now: ClockReading) -> bool:
    in_time = record.expires_at is not None and record.expires_at > now.at
    return was_handed_over(kinds, job, attempt) and in_time


def _lease(kinds: Kinds, job: Job, record: LeaseRecord, now: ClockReading) -> Lease:
    assert record.expires_at is not None  # else it does not continue
    held_s = (now.at - record.granted_at).total_seconds()
    left_s = (record.expires_at - now.at).total_seconds()
    request = replace(request_of(kinds, job, frozenset()), longest_s=left_s)
    return Lease(record.id, record.device, record.fence, request, granted_at=now.s - held_s)


def _end_of_lease(attempt: Attempt, record: LeaseRecord | None) -> Outcome:
    """The outcome of an attempt whose person has had the phone: its time is over, or the phone was taken away.

    `record`: its lease, which may have ended; None: it was deleted.
    """
    reason = "" if record is None else record.reason
    if record is not None and (record.ended_at is None or _ended_in_order(record)):
        result = {"device": attempt.device, "ended": OVER_MEANWHILE if record.ended_at is None else TIME_OVER}
        return Outcome(AttemptState.DONE, None, attempt.device, result=result)
    message = f"the lease on {attempt.device} was taken back" + (f": {reason}" if reason else "")
    by_user = reason in ("", ENDED_BY_OPERATOR)
    error = UserError(message, Code.LEASE_ENDED) if by_user else PhoneError(message)
    return Outcome(AttemptState.FAILED, error_to_wire(error), attempt.device)


def _ended_in_order(record: LeaseRecord) -> bool:
    due = record.ended_at is not None and record.expires_at is not None and record.ended_at >= record.expires_at
    return due or record.reason == release_reason(AttemptState.DONE)


async def _interrupted(store: Store, kinds: Kinds, job: Job, attempt: Attempt) -> Outcome:
    state, error = broken_off(kinds, job, HostError(code=Code.DAEMON_DIED))
    ended = replace(attempt, state=state, error=error)
    died = crashes((*await store.read(store.jobs.attempts, job.id), ended))  # the store has it as running
    return Outcome(state, error, attempt.device, crashes=died)


def _held_s(record: LeaseRecord, now: ClockReading) -> float:
    until = now.at if record.expires_at is None else min(now.at, record.expires_at)
    return max(0.0, (until - record.granted_at).total_seconds())
