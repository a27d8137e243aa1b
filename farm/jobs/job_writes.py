"""Writes of the queue's decisions: each with the events that tell it, and patient while the store cannot write.

A decision is made once; a full disk only delays that it is kept. What the store refuses for another reason (a bug) is
kept as a plain failure of its job instead: one job's end must not hold its phone, its followers or the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from farm.core.error_wire import error_to_wire
from farm.core.events import EventLog, Told
from farm.core.job import FINAL, Attempt, AttemptState, Job, JobState
from farm.core.retry import failed_instead
from farm.store.patience import Patience
from farm.store.store import Store

log = logging.getLogger(__name__)


class JobWriter:
    """Commits what the queue decides about jobs and attempts."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self._store = store
        self._events = events
        self._patience = Patience()
        store.on_problem(self._patience.store_problem)

    async def add(self, jobs: Sequence[Job], key: str) -> tuple[str, ...]:
        """Keep the jobs of a submit; the ids of an earlier one with that user and key if there was one.

        Raises:
            StoreWriteError: they cannot be kept.
        """
        told = [
            ("job.submitted", job.id, {"kind": job.kind, "user": job.user, "array": job.array, "state": job.state})
            for job in jobs
        ]
        with self._events.drafted(*told) as drafts:
            ids = await self._store.jobs.add(jobs, key=key, events=drafts)
            if ids != tuple(job.id for job in jobs):
                drafts.drop()
        return ids

    async def claim(self, attempt: Attempt, attempts_before: int) -> bool:
        """Commit that the attempt runs; False: the job is not as believed.

        Raises:
            StoreConflictError: another attempt runs on that device, or its lease is not known.
        """

        async def claim() -> bool:
            with self._events.drafted(("attempt.started", attempt.id, _attempt_facts(attempt))) as drafts:
                return await self._store.jobs.start(attempt, attempts_before=attempts_before, events=drafts)

        return await self._patience.write(claim, f"attempt {attempt.id}")

    async def finish(self, ended: Attempt, becomes: Job, at: datetime, result: Mapping[str, Any] | None = None) -> Job:
        """Commit an attempt's end, its result and what its job becomes; returns what it became."""

        async def finish(becomes: Job, ended: Attempt, result: Mapping[str, Any] | None) -> bool:
            facts = {**_attempt_facts(ended), "state": ended.state, "error": ended.error}
            told = ("attempt.ended", ended.id, facts), job_event(becomes, JobState.RUNNING)
            with self._events.drafted(*told) as drafts:
                return await self._store.jobs.finish(ended, becomes, result=result, events=drafts)

        def failed(instead: Job) -> Awaitable[bool]:
            return finish(instead, replace(ended, state=AttemptState.FAILED, error=instead.error), None)

        return await self._kept(becomes, at, lambda: finish(becomes, ended, result), failed)

    async def save(self, becomes: Job, before: JobState, at: datetime) -> Job:
        """Commit a job's next state; returns what it became."""

        async def save(becomes: Job) -> bool:
            with self._events.drafted(job_event(becomes, before)) as drafts:
                return await self._store.jobs.save(becomes, expected=(before,), events=drafts)

        return await self._kept(becomes, at, lambda: save(becomes), save)

    async def move_deadlines(self, by_s: float) -> None:
        """The wall clock was set: what is written of deadlines follows it."""
        await self._patience.write(lambda: self._store.jobs.move_deadlines(by_s), "deadlines")

    async def _kept(
        self,
        becomes: Job,
        at: datetime,
        write: Callable[[], Awaitable[bool]],
        failed: Callable[[Job], Awaitable[bool]],
    ) -> Job:
        """Write what a job becomes; `failed` writes its failure in its place, `at` that moment, if that is refused."""
        try:
            written = await self._patience.write(write, f"job {becomes.id}")
        except Exception as error:
            log.exception("job %s cannot be kept as %s: it fails", becomes.id, becomes.state)
            becomes = failed_instead(becomes, error_to_wire(error), at)
            try:
                written = await self._patience.write(partial(failed, becomes), f"job {becomes.id}")
            except Exception:
                log.exception("job %s cannot be kept as failed either: the next start takes it up again", becomes.id)
                return becomes
        if not written:
            log.error("job %s was not as it was believed to be: that it is %s was not kept", becomes.id, becomes.state)
        return becomes


def job_event(job: Job, before: JobState) -> Told:
    """The event that tells how a job got from the state `before` to its own."""
    kind = "resumed" if before is JobState.HELD and job.state not in FINAL else job.state.value
    data: dict[str, object] = {"state": job.state, "user": job.user, "array": job.array}
    if job.error is not None and job.state is not JobState.DONE:
        data["error"] = dict(job.error)
    return f"job.{kind}", job.id, data


def _attempt_facts(attempt: Attempt) -> dict[str, object]:
    return {"job": attempt.job, "device": attempt.device, "fence": attempt.fence, "lease": attempt.lease}
