"""Writes of the queue's decisions: each with the events that tell it, and patient while the store cannot write.

A decision is made once; a full disk only delays that it is kept. So nothing here gives up: whoever waits for a write
may be cancelled, and then nothing was decided for anybody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from farm.core.events import EventLog
from farm.core.job import FINAL, Attempt, Job, JobState
from farm.store.store import Store
from farm.store.writer import StoreWriteError

PROBE_S = 1.0  # how often a write is tried again if nobody says that the store is back

log = logging.getLogger(__name__)

T = TypeVar("T")
Told = tuple[str, str, Mapping[str, object]]  # an event: kind, subject, data


class JobWriter:
    """Commits what the queue decides about jobs and attempts."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self._store = store
        self._events = events
        self._back = asyncio.Event()
        store.on_problem(self._problem)

    def _problem(self, failing: bool) -> None:
        if not failing:
            self._back.set()

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

        return await self._patiently(claim)

    async def finish(self, attempt: Attempt, becomes: Job, result: Mapping[str, Any] | None = None) -> None:
        """Commit an attempt's end, its result and what its job becomes."""
        ended = {**_attempt_facts(attempt), "state": attempt.state, "error": attempt.error}
        told: list[Told] = [("attempt.ended", attempt.id, ended), job_event(becomes, JobState.RUNNING)]

        async def finish() -> bool:
            with self._events.drafted(*told) as drafts:
                return await self._store.jobs.finish(attempt, becomes, result=result, events=drafts)

        if not await self._patiently(finish):
            log.error("attempt %s had ended before: nothing of this end was kept", attempt.id)

    async def save(self, becomes: Job, before: JobState) -> None:
        """Commit a job's next state."""

        async def save() -> bool:
            with self._events.drafted(job_event(becomes, before)) as drafts:
                return await self._store.jobs.save(becomes, expected=(before,), events=drafts)

        if not await self._patiently(save):
            log.error("job %s was not %s any more: it was not made %s", becomes.id, before, becomes.state)

    async def move_deadlines(self, by_s: float) -> None:
        """The wall clock was set: what is written of deadlines follows it."""
        await self._patiently(lambda: self._store.jobs.move_deadlines(by_s))

    async def _patiently(self, write: Callable[[], Awaitable[T]]) -> T:
        while True:
            self._back.clear()
            try:
                return await write()
            except StoreWriteError as error:
                log.warning("%s; it is kept in memory: %s", error.message, error.evidence)
            try:
                async with asyncio.timeout(PROBE_S):
                    await self._back.wait()
            except TimeoutError:
                continue


def job_event(job: Job, before: JobState) -> Told:
    """The event that tells how a job got from the state `before` to its own."""
    kind = "resumed" if before is JobState.HELD and job.state not in FINAL else job.state.value
    data: dict[str, object] = {"state": job.state, "user": job.user, "array": job.array}
    if job.error is not None and job.state is not JobState.DONE:
        data["error"] = dict(job.error)
    return f"job.{kind}", job.id, data


def _attempt_facts(attempt: Attempt) -> dict[str, object]:
    return {"job": attempt.job, "device": attempt.device, "fence": attempt.fence, "lease": attempt.lease}
