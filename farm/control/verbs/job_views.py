"""Jobs as the answers of verbs show them: rows, the current step of running jobs, streams of events and logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from farm.common.causes import brief, cause_of
from farm.common.durations import is_number
from farm.common.errors import Code, HostError
from farm.common.events import Event, EventLog
from farm.common.tasks import end_tasks
from farm.control.verbs import json_of
from farm.jobs.logs import FARM, LogLine, LogPage, LogReader
from farm.measure.conditions import Verdict
from farm.model.job import FINAL, Attempt, AttemptState, Job, JobState
from farm.store.event_history import EventHistory
from farm.store.store import Store

MAX_BY_SUBJECT = 5_000  # jobs; of more, the farm's whole history is read sooner
ENDS = frozenset(f"job.{state.value}" for state in FINAL)
STOPS = frozenset(f"job.{state.value}" for state in JobState if state is not JobState.RUNNING)
MAX_POINTS = 2_000  # of a curve: 60 kB; of a search that improves more often the rest is left out
# Of a result, in a list (farm.results.series.list_words).
BRIEF = ("verdict", "estimate", "comparison", "speedup", "energy", "plateau", "peak_bytes", "exit_code")
MAX_FIGURES = 50  # of one field of it: a page of rows fits one message, whatever a worker reports
SHOWN_NAME_CHARS = 80  # of a shell command or a note, in a row
ROW_EVIDENCE_CHARS = 200  # of an error in a list: `job.show` has all of it


class JobStreams:
    """Streams over the farm's history and the attempts' logs."""

    def __init__(
        self,
        store: Store,
        history: EventHistory,
        open_log: Callable[[Attempt], AbstractAsyncContextManager[LogReader]],
        is_live: Callable[[str], Awaitable[bool]],
    ) -> None:
        """`is_live`: whether a job has not ended, or its end is still being published."""
        self._store = store
        self._events = history.shown
        self._history = history
        self._open_log = open_log
        self._is_live = is_live

    async def events(self, jobs: Collection[str], since: int) -> AsyncGenerator[Event, None]:
        """Events of these jobs after `since`, until all have ended. 0: all that is known of them."""
        since = min(since, self._events.seq)
        remembered = self._events.oldest  # before the store is asked: whatever comes after that is in memory
        pending = await self._store.in_thread(self._ends_to_come, jobs, since)
        if not pending:
            return
        async with aclosing(self._events_of(frozenset(jobs), since, remembered)) as concerned:
            async for event in concerned:
                yield event
                if event.kind in ENDS:
                    pending.discard(event.subject)
                    if not pending:
                        return

    async def _events_of(self, jobs: frozenset[str], since: int, remembered: int) -> AsyncGenerator[Event, None]:
        """Events of these jobs; events older than the memory are read by subject, for the farm's history is long."""
        if since + 1 < remembered and len(jobs) <= MAX_BY_SUBJECT:
            subjects = await self._store.in_thread(self._subjects, jobs)
            async with aclosing(self._history.past(subjects, since, remembered)) as past:
                async for event in past:
                    if not jobs.isdisjoint(_concerned(event)):
                        yield event
            since = remembered - 1
        async with aclosing(self._history.follow(since)) as news:
            async for event in news:
                if not jobs.isdisjoint(_concerned(event)):
                    yield event

    def _ends_to_come(self, jobs: Collection[str], since: int) -> set[str]:
        """Those of the jobs whose end is published after `since`."""
        # First the live ones: an end that comes meanwhile is published after all events so far.
        live = {job.id for job in self._store.jobs.several(tuple(jobs)) if job.ended_at is None}
        return live | {job for job, seq in self._store.events.latest(jobs, ENDS).items() if seq > since}

    def _subjects(self, jobs: Collection[str]) -> frozenset[str]:
        """The subjects of events of these jobs: they, their attempts and the attempts' leases."""
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
            follow: continue until the attempt, or with `number` None the job, has ended.
        """
        news = asyncio.Event()
        stop = self._events.subscribe(lambda event: news.set() if job in _concerned(event) else None)
        try:
            read = 0  # the attempt whose log was read to its end
            while True:
                news.clear()
                attempt = await self._store.read(self._attempt, job, number, read)
                if attempt is not None:
                    async with aclosing(self._pages(attempt, after, news, follow=follow)) as pages:
                        async for page in pages:
                            yield attempt.number, page
                    read, after = attempt.number, 0
                    if number is not None or not follow:
                        return
                elif not follow or not await self._is_live(job):
                    return
                else:
                    await news.wait()
        finally:
            stop()

    async def log_tail(
        self, job: str, number: int | None, *, before: int | None, after: int | None, limit: int
    ) -> tuple[int, LogPage]:
        """The last lines before a position of an attempt's log, or the first after one, with its number.

        The number is 0 when there is no such attempt. A log of another host that does not answer is a line about that.
        """
        attempt = await self._store.in_thread(self._attempt, job, number, 0)
        if attempt is None:
            return 0, LogPage((), 0, 0)
        try:
            async with self._open_log(attempt) as log:
                page = await (log.read_back(before, limit) if after is None else log.read(after, limit))
        except HostError as error:
            if error.code != Code.LOG_AWAY:
                raise
            return attempt.number, _away(error, after or 0)
        return attempt.number, page

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
        try:
            async with self._open_log(attempt) as log:
                while True:
                    news.clear()
                    # First: lines from before the end are read after it.
                    ended = await self._store.read(self._ended, attempt)
                    while (page := await log.read(after)).lines:
                        yield page
                        after = page.next
                    if ended or not follow:
                        if lost := log.lost():
                            yield LogPage(lost, after, after)
                        return
                    await _either(log.grown(after), news.wait())
        except HostError as error:
            if error.code != Code.LOG_AWAY:
                raise
            yield _away(error, after)

    def _ended(self, attempt: Attempt) -> bool:
        now = next((each for each in self._store.jobs.attempts(attempt.job) if each.id == attempt.id), None)
        return now is None or now.state is not AttemptState.RUNNING


def _away(error: HostError, after: int) -> LogPage:
    """In place of lines that another host has."""
    line = LogLine(datetime.now(UTC).isoformat(timespec="milliseconds"), "warning", FARM, error.message)
    return LogPage((line,), after, after)


def _concerned(event: Event) -> tuple[object, ...]:
    return event.subject, event.data.get("job")


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them is over; the others are given up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(*tasks)


@dataclass(frozen=True, slots=True)
class Step:
    """The latest step that a running job reported."""

    step: str
    at: str  # ISO 8601
    device: str
    attempt: int
    # farm.jobs.progress_schema.TuningFacts; {}: no search
    tuning: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, Any] = field(default_factory=dict)  # a bench's interval so far (docs/bench.md)
    curve: tuple[tuple[float, ...], ...] = ()  # trial, seconds of search, estimated latency in seconds

    @property
    def done(self) -> int | None:
        """Of a search: trials so far; None where nothing is counted."""
        return _whole(self.tuning.get("trials"))

    @property
    def of(self) -> int | None:
        """Of a search: trials in all."""
        return _whole(self.tuning.get("wanted"))

    def row(self) -> dict[str, Any]:
        """For a list."""
        return {
            "step": self.step,
            "step_at": self.at,
            "done": self.done,
            "of": self.of,
            "eta_s": self.tuning.get("eta_s"),
        }

    def to_wire(self) -> dict[str, Any]:
        """Whole, for one job."""
        return {**self.row(), "device": self.device, "attempt": self.attempt, "tuning": dict(self.tuning),
                "timing": dict(self.timing), "curve": [list(point) for point in self.curve]}  # fmt: skip


def stepped(before: Step | None, event: Event) -> Step:
    """The step after a `job.progress` event. A search reports only new points, and the number of the first."""
    data = event.data
    number = _whole(data.get("attempt")) or 0
    timing = data.get("timing")
    now = Step(str(data.get("step", "")), event.at.isoformat(), str(data.get("device", "")), number,
               timing=timing if isinstance(timing, Mapping) else {})  # fmt: skip
    known = before if before is not None and before.attempt == number else None
    tuning = data.get("tuning")
    if not isinstance(tuning, Mapping):
        return now if known is None else replace(now, tuning=known.tuning, curve=known.curve)
    first = _whole(tuning.get("points_from")) or 0
    points = tuple(tuple(map(float, point)) for point in tuning.get("points", ()))
    curve = ((known.curve[:first] if known else ()) + points)[:MAX_POINTS]
    rest = {name: value for name, value in tuning.items() if name not in ("points", "points_from")}
    return replace(now, tuning=rest, curve=curve)


class JobSteps:
    """The latest step of each job that runs. Used on one event loop."""

    def __init__(self, events: EventLog) -> None:
        self._steps: dict[str, Step] = {}
        self.stop: Callable[[], None] = events.subscribe(self._on_event)

    def of(self, job: str) -> Step | None:
        """Of a job; None when it reported none, or does not run."""
        return self._steps.get(job)

    def to_wire(self) -> dict[str, Any]:
        """Of each job that runs, by its id."""
        return {job: step.to_wire() for job, step in self._steps.items()}

    def _on_event(self, event: Event) -> None:
        if event.kind == "job.progress":
            self._steps[event.subject] = stepped(self._steps.get(event.subject), event)
        elif event.kind in STOPS:
            self._steps.pop(event.subject, None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def job_row(job: Job, latest: Attempt | None, waits: str, step: Step | None = None) -> dict[str, Any]:
    """A job in a list.

    Args:
        job: as the store has it.
        latest: its latest attempt: `on` is its phone, "" without one.
        waits: why it does not run, one sentence; "" when it does or has ended.
        step: the present one; None when it does not run.
    """
    return {
        **json_of(job, "id", "kind"),
        "name": _name(job),
        **json_of(job, "user", "state", "selector", "device"),
        "on": "" if latest is None else latest.device,
        **json_of(job, "array", "priority", "submitted_at", "ended_at", "attempts"),
        "started_at": None if latest is None else latest.started_at.isoformat(),
        "error": _shortened(job.error),
        "waits": waits,
        "progress": None if step is None else step.row(),
    }


def in_brief(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a result that a list shows, by form: a hostile model may have had a hand in the report."""
    shown = {name: found for name in BRIEF if (found := _figures(name, result.get(name))) is not None}
    return {**shown, "why": why} if (why := _why(result)) else shown


def _why(result: Mapping[str, Any]) -> str:
    """The cause of the gravest reason against a result; "": there is none."""
    for part in (result.get("certificate"), result.get("comparison")):
        wire = part.get("reasons") if isinstance(part, Mapping) else None
        reasons = [each for each in wire if isinstance(each, Mapping)] if isinstance(wire, list | tuple) else []
        reasons.sort(key=lambda each: each.get("verdict") != Verdict.REJECTED)
        if reasons:
            return brief(cause_of(reasons[0]))
    return ""


def _figures(name: str, value: object) -> Any:
    """Numbers, verdicts and answers of a result's field; None for what is none of them."""
    if name in ("verdict", "answer"):
        return value if isinstance(value, str) and len(value) <= SHOWN_NAME_CHARS else None
    if isinstance(value, Mapping):
        shown = (each for each in islice(value.items(), MAX_FIGURES) if len(each[0]) <= SHOWN_NAME_CHARS)
        plain = ((each, inner) for each, inner in shown if not isinstance(inner, Mapping))
        return {each: found for each, inner in plain if (found := _figures(each, inner)) is not None}
    return value if is_number(value) else None


def attempt_row(attempt: Attempt, *, with_facts: bool) -> dict[str, Any]:
    """An attempt; its facts are for the job's owner and for operators."""
    shown = ("id", "number", "device", "fence", "lease", "state", "started_at", "ended_at", "error")
    return json_of(attempt, *shown, *(["facts"] if with_facts else []))


def _name(job: Job) -> str:
    """Its name for people: the model's file name, the command's or the note's beginning."""
    name = job.spec.get("name") or job.spec.get("command") or job.spec.get("note") or ""
    return str(name)[:SHOWN_NAME_CHARS]


def _shortened(error: Mapping[str, object] | None) -> dict[str, object] | None:
    if error is None:
        return None
    return {**error, "evidence": str(error.get("evidence", ""))[-ROW_EVIDENCE_CHARS:]}
