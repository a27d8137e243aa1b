"""The verbs of the control channel about jobs. Viewers look; users act on their own jobs, operators on all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from farm.common.durations import format_duration
from farm.common.errors import Code, FarmError, NotAllowedError, UserError, error_to_wire
from farm.common.field_errors import KEY_FORM
from farm.common.limits import MAX_JOBS_AT_ONCE, MAX_WHY
from farm.common.verbs import MAX_COUNT, Count, verb
from farm.control.callers import Caller, Role
from farm.control.router import CallerGoneError
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup, fitting, json_of
from farm.control.verbs.job_views import JobSteps, JobStreams, attempt_row, in_brief, job_row
from farm.head.allocator.model import DeviceReason
from farm.head.head import Head
from farm.head.queue.model import NoSuchJobError
from farm.jobs.logs import PAGE_LINES
from farm.model.job import FINAL, Job, JobState
from farm.model.specs import Kinds, kind_named, spec_from_wire
from farm.store.database import run_to_completion
from farm.store.jobs import JobFilter
from farm.store.store import Store

LIVE = tuple(state for state in JobState if state not in FINAL)
SETTLE_LIMIT_S = 30.0  # a running attempt is stopped within seconds; a full disk may take longer than callers wait
DRAIN_END = "farm drain --end"
MAX_PAGE = 500  # rows of about 700 bytes, with errors 2 kB
MAX_WATCHED = 1000

Key = Annotated[str, Field(max_length=128, pattern=KEY_FORM)]  # of a submit
Searched = Annotated[str, Field(max_length=200)]
JobName = Annotated[str, Field(min_length=1, max_length=200)]  # a job's id or the beginning of it, or an array
AttemptNumber = Annotated[int, Field(ge=1, le=MAX_COUNT)]  # `number`, because `attempt` is the request's own field


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class JobEntry:
    """One of the submits that `job.check` looks at."""

    spec: dict[str, Any]
    key: Key = ""
    must_match: bool = False


class JobVerbs(VerbGroup):
    """Verbs over the head, the store and their streams."""

    def __init__(self, head: Head, store: Store, streams: JobStreams, steps: JobSteps, kinds: Kinds) -> None:
        self._kinds = kinds
        self._head = head
        self._store = store
        self._streams = streams
        self._steps = steps

    @verb("job.submit", Role.USER, subject="jobs", order=("spec.kind",))
    async def submit(
        self, call: ControlCall, spec: dict[str, Any], key: Key = "", must_match: bool = False
    ) -> Mapping[str, Any]:
        """Take jobs in. The same `key` again adds nothing; `must_match` refuses jobs that no phone could run now."""
        submitted = await self._head.submit(
            spec_from_wire(self._kinds, spec), call.caller.user, key=key, must_match=must_match
        )
        if submitted.earlier:
            rows = await self._rows(submitted.jobs)
        else:
            rows = [job_row(job, None, waits="") for job in submitted.jobs]
        return {"jobs": rows, "array": submitted.array, "warnings": list(submitted.warnings)}

    @verb("job.check", Role.USER, changes=False)
    async def check(
        self,
        call: ControlCall,
        entries: Annotated[tuple[JobEntry, ...], Field(max_length=MAX_JOBS_AT_ONCE)],
        besides: Annotated[int, Field(ge=0)] = 0,
    ) -> Mapping[str, Any]:
        """Whether jobs could be taken in: how many there would be, or which entry could not and why.

        `besides`: how many jobs were checked before, and would be submitted too.
        """
        jobs = besides
        for index, entry in enumerate(entries):
            try:
                spec = spec_from_wire(self._kinds, entry.spec)
                jobs += await self._head.check(
                    spec, call.caller.user, key=entry.key, must_match=entry.must_match, besides=jobs
                )
            except FarmError as error:
                return {"jobs": jobs, "entry": index, "error": error_to_wire(error)}
        return {"jobs": jobs, "entry": None, "error": None}

    def _now(self) -> str:
        """By the clock of the times in the answer."""
        return self._store.now().isoformat()

    @verb("job.list", Role.VIEWER)
    async def list_jobs(
        self,
        state: tuple[JobState, ...] = (),
        user: str = "",
        of_kind: str = "",
        array: str = "",
        jobs: Annotated[tuple[str, ...], Field(max_length=MAX_WATCHED)] = (),
        before: str = "",
        limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50,
        text: Searched = "",
        selector: Searched = "",
        device: Searched = "",
        results: bool = False,
    ) -> Mapping[str, Any]:
        """A page of jobs, newest first.

        `of_kind` is not called `kind` because that is the request's own field. `jobs`: only these, by their ids or
        their arrays'. `text`: in a job's id, phone, selector or spec, any case; `selector`: canonical text, whole. With
        one of text, selector and device a search looks at some of the jobs only. `results`: with the result of each
        that is done, in brief.
        """
        await self._store.in_thread(self._check_filter, of_kind, array, before)
        if text or selector or device:
            if array or jobs:
                raise UserError("text, selector and device exclude array and jobs", hint="leave some out")
            wanted = JobFilter(text=text, selector=selector, device=device, state=state, user=user, kind=of_kind)
            found = await self._store.in_thread(self._store.job_search.search, wanted, before=before, limit=limit)
            rows = await self._rows(found.jobs, results=results)
            shown = fitting(rows)
            before = found.before if len(shown) == len(rows) else shown[-1]["id"]
            return {"jobs": shown, "more": bool(before), "before": before, "now": self._now()}
        page = await self._store.in_thread(
            self._store.jobs.page,
            state=state, user=user, kind=of_kind, array=array, jobs=jobs, before=before, limit=limit + 1,
        )  # fmt: skip
        rows = fitting(await self._rows(page[:limit], results=results))
        more = len(page) > len(rows)
        return {"jobs": rows, "more": more, "before": rows[-1]["id"] if more else "", "now": self._now()}

    @verb("job.show", Role.VIEWER, subject="job")
    async def show(self, call: ControlCall, job: JobName) -> Mapping[str, Any]:
        """One job, whole."""
        found = await self._store.in_thread(self._one, job)
        attempts = await self._store.in_thread(self._store.jobs.attempts, found.id)
        mine = call.caller.may_act_for(found.user)
        (row,) = await self._rows((found,))
        return {
            "job": {**row, "error": found.error},
            "spec": dict(found.spec),
            "after": list(found.after),
            "attempts": [attempt_row(each, with_facts=mine) for each in attempts],
            "result": await self._store.in_thread(self._store.jobs.result, found.id),
            "progress": None if (step := self._steps.of(found.id)) is None else step.to_wire(),
            "now": self._now(),
        }

    @verb("job.steps", Role.VIEWER, subject="host")
    async def steps(self, host: str = "") -> Mapping[str, Any]:  # noqa: ARG002 (another host of the lab answers its own)
        """The present step of each job that runs at a host."""
        return {"steps": self._steps.to_wire()}

    @verb("job.cancel", Role.USER, subject="job", order=("array", "user", "state", "before"))
    async def cancel(
        self,
        call: ControlCall,
        job: Annotated[str, Field(max_length=200)] = "",
        array: str = "",
        key: Key = "",
        user: str = "",
        state: tuple[JobState, ...] = (),
        before: str = "",
        why: Annotated[str, Field(max_length=MAX_WHY)] = "",
    ) -> Mapping[str, Any]:
        """End a job or an array, of them those in `state`; without `job`, a user's (one's own) that meet all fields.

        Answers about at most 500 of the latter; `more`: again, with `before` the last of them. Jobs that have ended
        stay as they are. `key` is that of a submit. `why` is the jobs' error; else who cancelled them.
        """
        error = UserError(why or f"{call.caller.user} cancelled it", Code.JOB_CANCELLED)
        if job:
            named, more = await self._store.in_thread(self._named, job), False
            jobs = tuple(each for each in named if not state or each.state in state)
        else:
            page = await self._store.in_thread(
                self._not_ended, call.caller.user, array=array, key=key, user=user, state=state, before=before
            )
            jobs, more = page[:MAX_PAGE], len(page) > MAX_PAGE
        ordered = await self._order(call.caller, jobs, lambda ids: self._head.cancel(ids, error))
        return {**ordered, "more": more}

    @verb("job.hold", Role.USER, subject="job")
    async def hold(self, call: ControlCall, job: JobName) -> Mapping[str, Any]:
        """Keep waiting jobs from running. One that runs is refused; of an array only those that wait are held."""
        jobs = await self._store.in_thread(self._named, job)
        return await self._order(call.caller, jobs, self._head.hold)

    @verb("job.resume", Role.USER, subject="job")
    async def resume(self, call: ControlCall, job: JobName) -> Mapping[str, Any]:
        """Let held jobs continue."""
        jobs = await self._store.in_thread(self._named, job)
        return await self._order(call.caller, jobs, self._head.resume)

    @verb("job.watch", Role.VIEWER, subject="jobs", stream=True)
    async def watch(
        self,
        call: ControlCall,
        jobs: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_WATCHED)],
        since: Count = 0,
        attended: bool = False,
    ) -> Mapping[str, Any]:
        """Stream the events of jobs and arrays after `since`; answers with the jobs when all have ended.

        `attended`: jobs that have not begun are cancelled when this caller leaves.
        """
        ids = await self._store.in_thread(self._all_named, jobs)
        try:
            async with aclosing(self._streams.events(ids, since)) as events:
                async for event in events:
                    await call.progress(**event.to_wire())
        except CallerGoneError:
            if attended:
                await self._abandoned(call.caller, ids)
            return {}
        except asyncio.CancelledError:
            if attended and call.caller_gone.is_set():  # not the end of the daemon
                await self._abandoned(call.caller, ids)
            raise
        return {"jobs": await self._rows(await self._store.in_thread(self._store.jobs.several, ids))}

    @verb("job.logs", Role.VIEWER, subject="job", stream=True)
    async def logs(
        self,
        call: ControlCall,
        job: str,
        number: AttemptNumber | None = None,
        after: Count = 0,
        follow: bool = False,
    ) -> Mapping[str, Any]:
        """Stream the log of attempt `number`; None: the latest."""
        found = await self._store.in_thread(self._one, job)
        if number is not None and number > found.attempts and not (follow and found.state not in FINAL):
            had = f"{found.attempts} attempt{'s' * (found.attempts != 1)}"
            raise UserError(f"job {found.id} has had {had}", hint=f"farm job show {found.id} lists them")
        answer: dict[str, Any] = {"lines": [], "next": after}
        try:
            pages = self._streams.log(found.id, number, after, follow=follow)
            async with aclosing(pages) as streamed:
                async for number, page in streamed:
                    lines = [line.to_wire() for line in page.lines]
                    await call.progress(lines=lines, next=page.next, number=number)
                    answer["next"] = page.next
        except CallerGoneError:
            return {}
        return answer

    @verb("job.log_tail", Role.VIEWER, subject="job")
    async def log_tail(
        self,
        job: str,
        number: AttemptNumber | None = None,
        before: Count | None = None,
        after: Count | None = None,
        limit: Annotated[int, Field(ge=1, le=PAGE_LINES)] = 200,
    ) -> Mapping[str, Any]:
        """The last lines before the position `before` (None: the end) of the log of attempt `number` or the latest.

        `after`: in place of that, the first ones after this position.
        """
        found = await self._store.in_thread(self._one, job)
        number, tail = await self._streams.log_tail(found.id, number, before=before, after=after, limit=limit)
        return {
            "lines": [line.to_wire() for line in tail.lines], "start": tail.start, "next": tail.next, "number": number,
        }  # fmt: skip

    async def explain(self, name: str) -> Mapping[str, Any]:
        """Why a job does not run, in sentences; the verb `explain job`.

        Raises:
            NoSuchJobError: there is no such job.
        """
        job = await self._store.in_thread(self._one, name)
        attempts = await self._store.in_thread(self._store.jobs.attempts, job.id)
        lines = [f"{job.id} ({job.kind} of {job.user}, priority {job.priority}) is {job.state}"]
        explained = await self._head.explain_job(job.id)
        explanation, waits = explained.request, explained.waits
        if waits:
            lines.append(waits)
        if job.error is not None:
            lines.append(f"last error: {job.error.get('message')}")
        for attempt in attempts:
            failed = f": {attempt.error.get('message')}" if attempt.error else ""
            lines.append(f"attempt {attempt.number} on {attempt.device} is {attempt.state}{failed}")
        answer: dict[str, Any] = {"subject": job.id, "lines": lines, "estimate_s": None}
        if explanation is None:
            return answer | {"waits": waits, "limits": [], "devices": []}
        lines += explanation.limits
        lines += [line for each in explanation.devices for line in each.lines()]
        if explanation.estimate_s is not None:
            lines.append(f"it should have a phone within {format_duration(explanation.estimate_s)}")
        return answer | {
            "estimate_s": explanation.estimate_s,
            "waits": "",
            "operator": DRAIN_END if self._drained(explanation.limits) else _for_operator(explanation.devices),
            "limits": list(explanation.limits),
            "devices": [
                json_of(each, "device", "reason", "evidence", "hint", "operator") for each in explanation.devices
            ],
        }

    # --- helpers --------------------------------------------------------------------------------------------------

    def _drained(self, limits: Sequence[str]) -> bool:
        """Whether `farm drain` keeps a request waiting. Other hosts of the lab may not be drained."""
        return any(self._head.drained and self._head.drained in each for each in limits)

    async def _order(
        self, caller: Caller, jobs: Sequence[Job], give: Callable[[Sequence[str]], Awaitable[Sequence[str]]]
    ) -> dict[str, Any]:
        """Give an order about jobs; answers with all of them as they are then, and the ids of those that it `changed`.

        Whatever has ended or is being ended stays as it is; of an array, whatever runs too if the order is not for it.
        """
        for job in jobs:
            if not caller.may_act_for(job.user):
                raise NotAllowedError(f"job {job.id} is {job.user}'s", hint="its owner or an operator may do that")
        ids = [job.id for job in jobs]
        changed = await give(ids)
        await self._head.settle(ids, SETTLE_LIMIT_S)
        now = await self._store.in_thread(self._store.jobs.several, ids)
        return {"jobs": await self._rows(now), "changed": list(changed)}

    @run_to_completion  # by now its call is cancelled
    async def _abandoned(self, caller: Caller, jobs: Sequence[str]) -> None:
        """Cancel jobs that have not begun: the caller that waited for them left."""
        error = UserError(f"{caller.user} went away while it waited", Code.JOB_CANCELLED)
        known = await self._store.read(self._store.jobs.several, jobs)
        mine = [job.id for job in known if job.state is not JobState.RUNNING and caller.may_act_for(job.user)]
        await self._head.cancel(mine, error)

    def _named(self, name: str) -> tuple[Job, ...]:
        """The one job, or the jobs of an array.

        Raises:
            NoSuchJobError: there is neither.
            UserError: several jobs begin so.
        """
        job = self._store.jobs.get(name)
        if job is not None:
            return (job,)
        return self._store.jobs.page(array=name, limit=MAX_JOBS_AT_ONCE)[::-1] or (self._one(name),)

    def _not_ended(
        self, caller: str, *, array: str, key: str, user: str, state: Collection[JobState], before: str
    ) -> tuple[Job, ...]:
        """A page, and one more if there is more, of the jobs that have not ended and that `job.cancel` means.

        Raises:
            UserError: nothing like that is known.
        """
        if ended := FINAL.intersection(state):
            raise UserError(f"what is {min(ended)} has ended", hint=f"states: {', '.join(LIVE)}")
        self._check_filter("", array, before)
        user = user or ("" if array else caller)
        keyed = self._store.jobs.submitted(user or caller, key) if key else ()
        if key and not keyed:
            raise UserError(f"{user or caller} submitted nothing with key {key!r}", hint="farm job list shows jobs")
        return self._store.jobs.page(
            state=state or LIVE, user=user, array=array, jobs=keyed, before=before, limit=MAX_PAGE + 1
        )

    def _check_filter(self, kind: str, array: str, before: str) -> None:
        """Refuse names that mean nothing: an empty answer would pass for "no jobs".

        Raises:
            UserError: there is no such kind, array or job.
        """
        if kind:
            kind_named(self._kinds, kind)
        if array and not self._store.jobs.states(array):
            raise NoSuchJobError(f"there is no array {array[:80]!r}", hint="farm job list shows them")
        if before and self._store.jobs.get(before) is None:
            raise NoSuchJobError(f"there is no job {before[:80]!r}", hint="--before takes a whole id")

    def _all_named(self, names: Sequence[str]) -> tuple[str, ...]:
        """The ids of all jobs that these names mean, each once."""
        names = tuple(dict.fromkeys(names))
        known = {job.id for job in self._store.jobs.several(names)}
        resolved = ([name] if name in known else [job.id for job in self._named(name)] for name in names)
        return tuple(dict.fromkeys(chain.from_iterable(resolved)))

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

    async def _rows(self, jobs: Sequence[Job], *, results: bool = False) -> list[dict[str, Any]]:
        tried = [job.id for job in jobs if job.attempts]
        latest = await self._store.in_thread(self._store.jobs.latest_attempts, tried) if tried else {}
        waits = await self._head.waits([job.id for job in jobs if job.state not in FINAL])
        ended = [job.id for job in jobs if job.state in FINAL] if results else []
        found = await self._store.in_thread(self._store.jobs.results, ended) if ended else {}
        rows = [
            job_row(job, latest.get(job.id), waits=waits.get(job.id, ""), step=self._steps.of(job.id)) for job in jobs
        ]
        return [{**row, "result": in_brief(found[row["id"]])} if row["id"] in found else row for row in rows]


def _for_operator(devices: Sequence[DeviceReason]) -> str:
    """What an operator must do before one of these devices comes free; "" where one comes free without."""
    if not all(each.operator for each in devices):
        return ""
    return next((each.hint for each in devices if each.hint), "farm device list shows the phones that there are")
