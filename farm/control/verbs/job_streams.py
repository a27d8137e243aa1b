"""What happens to jobs, as it happens: their events and their logs. Both go on where a reader left off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import aclosing
from typing import Any

from farm.core.events import Event, EventLog
from farm.core.job import FINAL, Attempt, AttemptState
from farm.jobs.logs import AttemptLogs, LogPage
from farm.store.history import EventHistory
from farm.store.store import Store

MOST_BY_SUBJECT = 5_000  # jobs; of more, the farm's whole history is read sooner
ENDS = frozenset(f"job.{state.value}" for state in FINAL)


class JobStreams:
    """Streams over the farm's history and the attempts' logs."""

    def __init__(
        self, store: Store, events: EventLog, history: EventHistory, logs: AttemptLogs, lives: Callable[[str], bool]
    ) -> None:
        """`lives`: whether a job has not ended, or its end is still being told."""
        self._store = store
        self._events = events
        self._history = history
        self._logs = logs
        self._lives = lives

    async def events(self, jobs: Collection[str], since: int) -> AsyncGenerator[Event, None]:
        """Events of these jobs after `since`, until all have ended. 0: all that is known of them."""
        since = min(since, self._events.seq)
        remembered = self._events.oldest  # before the store is asked: whatever comes after that is in memory
        pending = await asyncio.to_thread(self._ends_to_tell, jobs, since)
        if not pending:
            return
        async with aclosing(self._told(frozenset(jobs), since, remembered)) as told:
            async for event in told:
                yield event
                if event.kind in ENDS:
                    pending.discard(event.subject)
                    if not pending:
                        return

    async def _told(self, jobs: frozenset[str], since: int, remembered: int) -> AsyncGenerator[Event, None]:
        """Events of these jobs: what memory has forgotten by their subjects, for the farm's history is long."""
        if since + 1 < remembered and len(jobs) <= MOST_BY_SUBJECT:
            subjects = await asyncio.to_thread(self._subjects, jobs)
            async with aclosing(self._history.past(subjects, since, remembered)) as past:
                async for event in past:
                    if not jobs.isdisjoint(_concerned(event)):
                        yield event
            since = remembered - 1
        async with aclosing(self._history.follow(since)) as news:
            async for event in news:
                if not jobs.isdisjoint(_concerned(event)):
                    yield event

    def _ends_to_tell(self, jobs: Collection[str], since: int) -> set[str]:
        """Those of the jobs whose end is told after `since`."""
        # First who lives: what ends meanwhile is told later than everything that has been told.
        live = {job.id for job in self._store.jobs.several(tuple(jobs)) if job.ended_at is None}
        return live | {job for job, seq in self._store.events.latest(jobs, ENDS).items() if seq > since}

    def _subjects(self, jobs: Collection[str]) -> frozenset[str]:
        """What events of these jobs are about: they, their attempts and those's leases."""
        attempts = self._store.jobs.attempts_of(jobs)
        return frozenset(jobs).union(*((attempt.id, attempt.lease) for attempt in attempts))

    async def log(
        self, job: str, number: int | None, after: int, *, follow: bool
    ) -> AsyncGenerator[tuple[int, LogPage], None]:
        """Pages of the log of an attempt, each with the attempt's number.

        Args:
            job: its id.
            number: of the attempt; None: the latest, and with `follow` each that comes after it.
            after: where to read on in that attempt's log.
            follow: go on until the attempt, or with `number` None the job, has ended.
        """
        news = asyncio.Event()
        stop = self._events.subscribe(lambda event: news.set() if job in _concerned(event) else None)
        try:
            read = 0  # the attempt whose log was read to its end
            while True:
                news.clear()
                attempt = self._attempt(job, number, read)
                if attempt is not None:
                    async with aclosing(self._pages(attempt, after, news, follow=follow)) as pages:
                        async for page in pages:
                            yield attempt.number, page
                    read, after = attempt.number, 0
                    if number is not None or not follow:
                        return
                elif not follow or not self._lives(job):
                    return
                else:
                    await news.wait()
        finally:
            stop()

    def log_tail(
        self, job: str, number: int | None, *, before: int | None, after: int | None, limit: int
    ) -> tuple[int, LogPage]:
        """The last lines before a position of an attempt's log, or the first after one, with its number. Blocking.

        The number is 0 when there is no such attempt.
        """
        attempt = self._attempt(job, number, 0)
        if attempt is None:
            return 0, LogPage((), 0, 0)
        if after is None:
            return attempt.number, self._logs.read_back(job, attempt.number, before, limit)
        return attempt.number, self._logs.read(job, attempt.number, after, limit)

    def _attempt(self, job: str, number: int | None, read: int) -> Attempt | None:
        attempts = self._store.jobs.attempts(job)
        if number is not None:
            return next((each for each in attempts if each.number == number), None)
        if read == 0:
            return attempts[-1] if attempts else None
        return next((each for each in attempts if each.number > read), None)

    async def _pages(
        self, attempt: Attempt, after: int, news: asyncio.Event, *, follow: bool
    ) -> AsyncGenerator[LogPage, None]:
        while True:
            news.clear()
            ended = self._ended(attempt)  # first: what was said before the end is read after it
            while (page := await asyncio.to_thread(self._logs.read, attempt.job, attempt.number, after)).lines:
                yield page
                after = page.next
            if ended or not follow:
                return
            await _either(self._logs.grown(attempt.job, attempt.number, after), news.wait())

    def _ended(self, attempt: Attempt) -> bool:
        now = next((each for each in self._store.jobs.attempts(attempt.job) if each.id == attempt.id), None)
        return now is None or now.state is not AttemptState.RUNNING


def _concerned(event: Event) -> tuple[object, ...]:
    return event.subject, event.data.get("job")


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them is over; the others are given up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
