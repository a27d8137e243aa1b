"""The verbs of the job door about jobs. Viewers look; users act on their own jobs, operators on all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import chain
from typing import Any

from farm.control.callers import Caller, Role
from farm.control.forms import Verbs, verb
from farm.control.router import CallerGoneError
from farm.control.server import ControlCall
from farm.control.verbs.job_forms import MAX_PAGE, Cancel, Check, ListJobs, Logs, LogTail, OneJob, Submit, Watch
from farm.control.verbs.job_rows import attempt_row, job_row
from farm.control.verbs.job_steps import JobSteps
from farm.control.verbs.job_streams import JobStreams
from farm.core.durations import format_duration
from farm.core.error_wire import error_to_wire
from farm.core.errors import ExitCode, FarmError, NotAllowedError, UserError
from farm.core.job import FINAL, Job, JobState
from farm.core.limits import MAX_JOBS_AT_ONCE
from farm.core.queue_model import JobRunsError, NoSuchJobError
from farm.core.selector import did_you_mean
from farm.jobs.dispatcher import Dispatcher
from farm.jobs.specs import KINDS, spec_from_wire
from farm.leasing import Leasing
from farm.store.job_search import Wanted
from farm.store.store import Store

LIVE = tuple(state for state in JobState if state not in FINAL)
SETTLE_LIMIT_S = 30.0  # a running attempt is stopped within seconds; a full disk may take longer than anybody waits


class CancelledError(UserError):
    """The job was cancelled."""

    code = "cancelled"
    exit_code = ExitCode.FAILED


class JobVerbs(Verbs):
    """Verbs over the dispatcher, the store and their streams."""

    def __init__(
        self, dispatcher: Dispatcher, store: Store, streams: JobStreams, leasing: Leasing, steps: JobSteps
    ) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._streams = streams
        self._leasing = leasing
        self._steps = steps

    @verb("job.submit", Role.USER)
    async def submit(self, asked: Submit, call: ControlCall) -> Mapping[str, Any]:
        """Take jobs in."""
        submitted = await self._dispatcher.submit(
            spec_from_wire(asked.spec), call.caller.user, key=asked.key, must_match=asked.must_match
        )
        if submitted.taken:
            rows = [job_row(job, on="", waits="") for job in submitted.taken]
        else:
            rows = await self._rows(await asyncio.to_thread(self._store.jobs.several, submitted.jobs))
        return {"jobs": rows, "array": submitted.array, "warnings": list(submitted.warnings)}

    @verb("job.check", Role.USER)
    async def check(self, asked: Check, call: ControlCall) -> Mapping[str, Any]:
        """Whether jobs could be taken in: how many there would be, or which entry could not and why."""
        jobs = asked.besides
        for index, entry in enumerate(asked.entries):
            try:
                spec = spec_from_wire(entry.spec)
                jobs += self._dispatcher.check(
                    spec, call.caller.user, key=entry.key, must_match=entry.must_match, besides=jobs
                )
            except FarmError as error:
                return {"jobs": jobs, "entry": index, "error": error_to_wire(error)}
        return {"jobs": jobs, "entry": None, "error": None}

    @verb("job.list", Role.VIEWER)
    async def list_jobs(self, asked: ListJobs) -> Mapping[str, Any]:
        """A page of jobs."""
        await asyncio.to_thread(self._check_filter, asked)
        if asked.text or asked.selector or asked.device:
            return await self._searched(asked)
        page = await asyncio.to_thread(
            self._store.jobs.page,
            state=asked.state, user=asked.user, kind=asked.of_kind, array=asked.array, jobs=asked.jobs,
            before=asked.before, limit=asked.limit + 1,
        )  # fmt: skip
        more = len(page) > asked.limit
        rows = await self._rows(page[: asked.limit])
        return {"jobs": rows, "more": more, "before": rows[-1]["id"] if more else ""}

    async def _searched(self, asked: ListJobs) -> Mapping[str, Any]:
        if asked.array or asked.jobs:
            raise UserError("text, selector and device exclude array and jobs", hint="leave some out")
        wanted = Wanted(text=asked.text, selector=asked.selector, device=asked.device,
                        state=asked.state, user=asked.user, kind=asked.of_kind)  # fmt: skip
        search = self._store.job_search.search
        found = await asyncio.to_thread(search, wanted, before=asked.before, limit=asked.limit)
        return {"jobs": await self._rows(found.jobs), "more": bool(found.before), "before": found.before}

    @verb("job.show", Role.VIEWER)
    async def show(self, asked: OneJob, call: ControlCall) -> Mapping[str, Any]:
        """One job, whole."""
        job = await asyncio.to_thread(self._one, asked.job)
        attempts = await asyncio.to_thread(self._store.jobs.attempts, job.id)
        mine = _may_act(call.caller, job)
        (row,) = await self._rows((job,))
        return {
            "job": {**row, "error": job.error},
            "spec": dict(job.spec),
            "after": list(job.after),
            "attempts": [attempt_row(each, with_facts=mine) for each in attempts],
            "result": await asyncio.to_thread(self._store.jobs.result, job.id),
            "progress": None if (step := self._steps.of(job.id)) is None else step.to_wire(),
        }

    @verb("job.cancel", Role.USER)
    async def cancel(self, asked: Cancel, call: ControlCall) -> Mapping[str, Any]:
        """End jobs; those that have ended stay as they are."""
        error = CancelledError(f"{call.caller.user} cancelled it")
        find = partial(self._meant, asked.job) if asked.job else partial(self._meant_by, asked, call.caller.user)
        jobs = await asyncio.to_thread(find)
        more = not asked.job and len(jobs) > MAX_PAGE
        jobs = jobs[:MAX_PAGE] if more else jobs
        ordered = await self._order(call.caller, jobs, lambda job: self._dispatcher.cancel(job.id, error))
        return {**ordered, "more": more}

    @verb("job.hold", Role.USER)
    async def hold(self, asked: OneJob, call: ControlCall) -> Mapping[str, Any]:
        """Keep waiting jobs from running. One that runs is refused; of an array only those that wait are held."""
        jobs = await asyncio.to_thread(self._meant, asked.job)
        return await self._order(call.caller, jobs, lambda job: self._dispatcher.hold(job.id))

    @verb("job.resume", Role.USER)
    async def resume(self, asked: OneJob, call: ControlCall) -> Mapping[str, Any]:
        """Let held jobs go on."""
        jobs = await asyncio.to_thread(self._meant, asked.job)
        return await self._order(call.caller, jobs, lambda job: self._dispatcher.resume(job.id))

    @verb("job.watch", Role.VIEWER)
    async def watch(self, asked: Watch, call: ControlCall) -> Mapping[str, Any]:
        """Stream the events of jobs; answers with them when all have ended."""
        jobs = await asyncio.to_thread(self._all_meant, asked.jobs)
        try:
            async with aclosing(self._streams.events(jobs, asked.since)) as events:
                async for event in events:
                    await call.progress(**event.to_wire())
        except CallerGoneError:
            if asked.attended:
                self._abandoned(call.caller, jobs)
            return {}
        except asyncio.CancelledError:
            if asked.attended and call.call.gone.is_set():  # not the end of the daemon
                self._abandoned(call.caller, jobs)
            raise
        return {"jobs": await self._rows(await asyncio.to_thread(self._store.jobs.several, jobs))}

    @verb("job.logs", Role.VIEWER)
    async def logs(self, asked: Logs, call: ControlCall) -> Mapping[str, Any]:
        """Stream an attempt's log."""
        job = await asyncio.to_thread(self._one, asked.job)
        if asked.number is not None and asked.number > job.attempts and not (asked.follow and job.state not in FINAL):
            had = f"{job.attempts} attempt{'s' * (job.attempts != 1)}"
            raise UserError(f"job {job.id} has had {had}", hint=f"farm job show {job.id} lists them")
        answer: dict[str, Any] = {"lines": [], "next": asked.after}
        try:
            pages = self._streams.log(job.id, asked.number, asked.after, follow=asked.follow)
            async with aclosing(pages) as streamed:
                async for number, page in streamed:
                    lines = [line.to_wire() for line in page.lines]
                    await call.progress(lines=lines, next=page.next, number=number)
                    answer["next"] = page.next
        except CallerGoneError:
            return {}
        return answer

    @verb("job.log_tail", Role.VIEWER)
    async def log_tail(self, asked: LogTail) -> Mapping[str, Any]:
        """The end of a log, or what is before a position of it."""
        job = await asyncio.to_thread(self._one, asked.job)
        number, tail = await asyncio.to_thread(
            self._streams.log_tail, job.id, asked.number, before=asked.before, after=asked.after, limit=asked.limit
        )
        return {
            "lines": [line.to_wire() for line in tail.lines], "start": tail.start, "next": tail.next, "number": number,
        }  # fmt: skip

    async def explain(self, name: str) -> Mapping[str, Any]:
        """Why a job does not run, in sentences; the verb `explain job`.

        Raises:
            NoSuchJobError: there is no such job.
        """
        job = await asyncio.to_thread(self._one, name)
        attempts = await asyncio.to_thread(self._store.jobs.attempts, job.id)
        lines = [f"{job.id} ({job.kind} of {job.user}, priority {job.priority}) is {job.state}"]
        request = self._dispatcher.request_of(job.id)
        explanation = self._leasing.explain_request(request) if request else None
        waits = self._dispatcher.waits((job.id,))[job.id]
        if waits and explanation is None:
            lines.append(waits)
        if job.error is not None:
            lines.append(f"last error: {job.error.get('message')}")
        for attempt in attempts:
            failed = f": {attempt.error.get('message')}" if attempt.error else ""
            lines.append(f"attempt {attempt.number} on {attempt.device} is {attempt.state}{failed}")
        if explanation is not None:
            lines += explanation.limits
            lines += [f"{reason.device}: {reason.reason}" for reason in explanation.devices]
            if explanation.estimate_s is not None:
                lines.append(f"it should have a phone within {format_duration(explanation.estimate_s)}")
        return {"subject": job.id, "lines": lines, "estimate_s": explanation and explanation.estimate_s}

    # --- helpers --------------------------------------------------------------------------------------------------

    async def _order(self, caller: Caller, jobs: Sequence[Job], give: Callable[[Job], None]) -> dict[str, Any]:
        """Give an order about jobs; answers with all of them as they are then, and whom it `changed`.

        Whatever has ended or is being ended stays as it is; of an array, whatever runs too if the order is not for it.
        """
        changed = []
        for job in jobs:
            if not _may_act(caller, job):
                raise NotAllowedError(f"job {job.id} is {job.user}'s", hint="its owner or an operator may do that")
        spared = (NoSuchJobError, JobRunsError) if len(jobs) > 1 else (NoSuchJobError,)
        for job in jobs:
            with suppress(*spared):
                give(job)
                changed.append(job.id)
        await self._settled(jobs)
        now = await asyncio.to_thread(self._store.jobs.several, [job.id for job in jobs])
        return {"jobs": await self._rows(now), "changed": changed}

    async def _settled(self, jobs: Iterable[Job]) -> None:
        waits = [asyncio.ensure_future(self._dispatcher.settled(job.id)) for job in jobs]
        if not waits:
            return
        try:
            await asyncio.wait(waits, timeout=SETTLE_LIMIT_S)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _abandoned(self, caller: Caller, jobs: Sequence[str]) -> None:
        """Cancel what has not begun: whoever waited for it is gone."""
        error = CancelledError(f"{caller.user} went away while it waited")
        for job in self._store.jobs.several(jobs):
            if job.state is not JobState.RUNNING and _may_act(caller, job):
                with suppress(NoSuchJobError):
                    self._dispatcher.cancel(job.id, error)

    def _meant(self, name: str) -> tuple[Job, ...]:
        """The one job, or the jobs of an array.

        Raises:
            NoSuchJobError: there is neither.
            UserError: several jobs begin so.
        """
        job = self._store.jobs.get(name)
        if job is not None:
            return (job,)
        return self._store.jobs.page(array=name, limit=MAX_JOBS_AT_ONCE)[::-1] or (self._one(name),)

    def _meant_by(self, asked: Cancel, caller: str) -> tuple[Job, ...]:
        """A page, and one more if there is more, of the jobs that have not ended and that `job.cancel` means.

        Raises:
            UserError: nothing like that is known.
        """
        if ended := FINAL.intersection(asked.state):
            raise UserError(f"what is {min(ended)} has ended", hint=f"states: {', '.join(LIVE)}")
        self._check_filter(ListJobs(array=asked.array, before=asked.before))
        user = asked.user or ("" if asked.array else caller)
        keyed = self._store.jobs.submitted(user or caller, asked.key) if asked.key else ()
        if asked.key and not keyed:
            raise UserError(
                f"{user or caller} submitted nothing with key {asked.key!r}", hint="farm job list shows jobs"
            )
        return self._store.jobs.page(
            state=asked.state or LIVE, user=user, array=asked.array, jobs=keyed, before=asked.before, limit=MAX_PAGE + 1
        )

    def _check_filter(self, asked: ListJobs) -> None:
        """Refuse names that mean nothing: an empty answer would pass for "no jobs".

        Raises:
            UserError: there is no such kind, array or job.
        """
        if asked.of_kind and asked.of_kind not in KINDS:
            hint = did_you_mean(asked.of_kind, KINDS, f"kinds: {', '.join(KINDS)}")
            raise UserError(f"there is no kind of job {asked.of_kind[:80]!r}", hint=hint)
        if asked.array and not self._store.jobs.states(asked.array):
            raise NoSuchJobError(f"there is no array {asked.array[:80]!r}", hint="farm job list shows them")
        if asked.before and self._store.jobs.get(asked.before) is None:
            raise NoSuchJobError(f"there is no job {asked.before[:80]!r}", hint="--before takes a whole id")

    def _all_meant(self, names: Sequence[str]) -> tuple[str, ...]:
        """The ids of all jobs that these names mean, each once."""
        names = tuple(dict.fromkeys(names))
        known = {job.id for job in self._store.jobs.several(names)}
        meant = ([name] if name in known else [job.id for job in self._meant(name)] for name in names)
        return tuple(dict.fromkeys(chain.from_iterable(meant)))

    def _one(self, name: str) -> Job:
        found = self._store.jobs.get(name)
        if found is not None:
            return found
        several = self._store.jobs.find(name, limit=2)
        if len(several) > 1:
            raise UserError(f"several jobs begin with {name!r}: {several[0].id}, {several[1].id}", hint="write more")
        if several:
            return several[0]
        if self._store.jobs.states(name):
            raise UserError(f"{name} is an array of jobs", hint=f"farm job list --array {name} shows them")
        raise NoSuchJobError(f"there is no job {name!r}", hint="farm job list shows them")

    async def _rows(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        tried = [job.id for job in jobs if job.attempts]
        latest = await asyncio.to_thread(self._store.jobs.latest_attempts, tried) if tried else {}
        waits = self._dispatcher.waits(job.id for job in jobs if job.state not in FINAL)
        return [
            job_row(
                job,
                on=latest[job.id].device if job.id in latest else "",
                waits=waits.get(job.id, ""),
                step=self._steps.of(job.id),
            )
            for job in jobs
        ]


def _may_act(caller: Caller, job: Job) -> bool:
    return caller.role >= Role.OPERATOR or caller.user == job.user
