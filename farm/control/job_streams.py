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
        pending = set(jobs)
        wanted = frozenset(jobs)
        since = max(since, self._before_first(jobs))
        for wait in (False, True):
            if wait:
                pending = {job for job in pending if self._lives(job)}
                if not pending:
                    return
            async with aclosing(self._history.follow(since, wait=wait)) as told:
                async for event in told:
                    since = event.seq
                    if event.subject not in wanted and event.data.get("job") not in wanted:
                        continue
                    yield event
                    if event.kind in ENDS:
                        pending.discard(event.subject)
                        if wait and not pending:
                            return

    def _before_first(self, jobs: Collection[str]) -> int:
        """The number before the first event of any of them: there is no need to read what is older."""
        firsts = [self._store.events.since(0, limit=1, subject=job) for job in jobs]
        return min((first[0].seq - 1 for first in firsts if first), default=0)

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
