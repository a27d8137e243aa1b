"""Jobs, their attempts and results, searches over them, and the toolchains that run them.

Every change of a job is conditional on the state it was decided from.

Words of a search lie anywhere in a job, so no index finds them: a search looks at the newest jobs in the order of their
numbers, at most LOOKED_AT, and returns where it stopped, so its cost does not grow with the history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    false,
    func,
    insert,
    literal_column,
    or_,
    select,
    type_coerce,
    union_all,
    update,
)

from farm.common.events import Event
from farm.model.job import FINAL, Attempt, AttemptState, Job, JobState
from farm.model.toolchain import Toolchain
from farm.store import schema
from farm.store.database import TableAccess, in_parts, insert_new, must_change, put, selector_number, values_of
from farm.store.mailbox import Letter, post
from farm.store.measurements import insert_measurement
from farm.store.schema import attempt, has_no_end, job, selector, submission, toolchain

PAGE = 50


_JOB_COLUMNS = [
    selector.c.text.label("selector") if field.name == "selector" else job.c[field.name] for field in fields(Job)
]
# Columns that a decision changes, and that the end of an attempt changes.
_DECIDED = ("state", "device", "avoid", "priority", "attempts", "uncounted", "not_before", "error", "ended_at")
_ENDED = ("state", "ended_at", "error")
_FIELD = re.compile(r'"[^"\\]*":')  # a field's name in JSON: parsing thousands of specs would take half a second
LOOKED_AT = 2_000  # jobs of one search


# Built once: to build a statement and its cache key takes longer than SQLite takes to execute it.
CLAIM = update(job).where(  # the state as an expression, for the reason of `has_no_end`
    job.c.id == bindparam("of"),
    job.c.state.concat("") == JobState.QUEUED,
    job.c.attempts == bindparam("attempts_before"),
)
RUNNING = update(attempt).where(  # of an attempt that runs under that fence
    attempt.c.id == bindparam("of"), attempt.c.fence == bindparam("under"), attempt.c.state == AttemptState.RUNNING
)
LIVE = update(job).where(job.c.id == bindparam("of"), has_no_end(job))


def select_jobs() -> Select[Any]:
    """Whole jobs (`Job(*row)`), with the text of their selector."""
    return select(*_JOB_COLUMNS).join_from(job, selector)


def claim(begun: Attempt, attempts_before: int) -> Mapping[str, Any]:
    """The values of `CLAIM` for the job of an attempt, whose row is appended (`begin`)."""
    claimed = {"state": JobState.RUNNING, "attempts": attempts_before + 1, "not_before": None, "error": None}
    return {"of": begun.job, "attempts_before": attempts_before, **claimed}


def begin(begun: Attempt) -> tuple[Table, Mapping[str, Any]]:
    """The row of an attempt that begins, for the write that claims its job."""
    return attempt, values_of(begun)


class JobTable(TableAccess):
    """Statements over jobs."""

    # --- reads ----------------------------------------------------------------------------------------------------

    def live(self) -> tuple[Job, ...]:
        """Every job that has not ended, oldest first."""
        return self._jobs(select_jobs().where(job.c.ended_at.is_(None)).order_by(job.c.seq))

    def get(self, job_id: str) -> Job | None:
        """The job of that id."""
        found = self._jobs(select_jobs().where(job.c.id == job_id))
        return found[0] if found else None

    def several(self, job_ids: Sequence[str]) -> tuple[Job, ...]:
        """The jobs of these ids, in their order; those that are not there are left out."""
        parts = in_parts(job_ids)
        found = {each.id: each for some in parts for each in self._jobs(select_jobs().where(job.c.id.in_(some)))}
        return tuple(found[job_id] for job_id in job_ids if job_id in found)

    def states(self, array: str) -> frozenset[JobState]:
        """The states that an array's jobs are in; none when there is no such array."""
        with self._database.reading() as connection:
            return frozenset(connection.execute(select(job.c.state).where(_of_array(array)).distinct()).scalars())

    def find(self, prefix: str, limit: int = 10) -> tuple[Job, ...]:
        """Jobs whose id begins with `prefix`, at most `limit`, by id."""
        beyond = prefix + "\U0010ffff"  # sorts behind every continuation
        wanted = select_jobs().where(job.c.id >= prefix, job.c.id < beyond).order_by(job.c.id).limit(limit)
        return self._jobs(wanted)

    def page(
        self,
        *,
        state: Collection[JobState] = (),
        user: str = "",
        kind: str = "",
        array: str = "",
        jobs: Collection[str] = (),
        before: str = "",
        limit: int = PAGE,
    ) -> tuple[Job, ...]:
        """Jobs, newest first; those submitted before the job `before` if it is given.

        `jobs`: only these, by their ids or their arrays'.
        """
        conditions: list[ColumnElement[bool]] = []
        if user:
            conditions.append(job.c.user == user)
        if kind:
            conditions.append(job.c.kind == kind)
        if array:
            conditions.append(_of_array(array))
        if jobs:
            meant = union_all(
                select(job.c.seq).where(job.c.id.in_(jobs)),
                select(job.c.seq).where(job.c.array.in_(jobs), _IN_ARRAY),
            )
            conditions.append(job.c.seq.in_(meant))
        older = [job.c.seq < select(job.c.seq).where(job.c.id == before).scalar_subquery()] if before else []
        newest = select_jobs().where(*conditions, *older).order_by(job.c.seq.desc()).limit(limit)
        if not state:
            return self._jobs(newest)
        if conditions:
            if not (array or jobs or FINAL.intersection(state)):
                newest = newest.where(job.c.ended_at.is_(None))  # the index of live jobs, however long the history
            # An expression, lest the index of states is taken, out of which several states would have to be sorted.
            return self._jobs(newest.where(job.c.state.concat("").in_(sorted(state))))
        # Each state's newest come in order out of the index.
        each_newest = [
            select(
                select(job.c.seq).where(job.c.state == each, *older)
                .order_by(job.c.seq.desc()).limit(limit).subquery().c.seq
            )
            for each in sorted(state)
        ]  # fmt: skip
        return self._jobs(
            select_jobs().where(job.c.seq.in_(union_all(*each_newest))).order_by(job.c.seq.desc()).limit(limit)
        )

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        """Every attempt of a job, first to last."""
        return self._attempts(select(attempt).where(attempt.c.job == job_id).order_by(attempt.c.number))

    def latest_attempts(self, job_ids: Iterable[str]) -> dict[str, Attempt]:
        """The latest attempt of each of these jobs that has one."""
        return {each.job: each for each in self.attempts_of(job_ids)}

    def attempts_of(self, job_ids: Iterable[str]) -> tuple[Attempt, ...]:
        """Every attempt of these jobs; of each job first to last."""
        wanted = select(attempt).order_by(attempt.c.number)
        parts = in_parts(job_ids)
        return tuple(each for some in parts for each in self._attempts(wanted.where(attempt.c.job.in_(some))))

    def submitted(self, user: str, key: str) -> tuple[str, ...]:
        """The jobs that this user submitted with this key, in their order; none when it was not used."""
        wanted = (
            select(job.c.id)
            .join(submission, job.c.submission == submission.c.id)
            .where(submission.c.user == user, submission.c.key == key)
            .order_by(job.c.seq)
        )
        with self._database.reading() as connection:
            return tuple(connection.execute(wanted).scalars())

    def running(self) -> tuple[Attempt, ...]:
        """Attempts that have not ended."""
        found = self._attempts(select(attempt).where(attempt.c.ended_at.is_(None)))
        return tuple(sorted(found, key=lambda each: each.fence))  # here: in SQL, the index of all fences were taken

    def result(self, job_id: str) -> Mapping[str, Any] | None:
        """The result of a job; None when it has none."""
        return self.results((job_id,)).get(job_id)

    def results(self, job_ids: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """The results of those of these jobs that have one."""
        wanted, of = select(schema.result.c.job, schema.result.c.body), schema.result.c.job
        found = (row for some in in_parts(job_ids) for row in self._database.rows(wanted.where(of.in_(some))))
        return {row["job"]: row["body"] for row in found}

    # --- writes ---------------------------------------------------------------------------------------------------

    async def add(self, jobs: Sequence[Job], *, key: str = "", events: Sequence[Event] = ()) -> tuple[str, ...]:
        """Keep the jobs of one submit; returns their ids.

        A `key` that the same user has used before adds neither jobs nor events: the ids of the first time are returned.
        """

        def add(connection: Connection) -> tuple[str, ...]:
            number = _new_submission(connection, jobs[0].user, key) if key else None
            selectors = {text: selector_number(connection, text) for text in sorted({each.selector for each in jobs})}
            rows = [{**values_of(each), "selector": selectors[each.selector], "submission": number} for each in jobs]
            connection.execute(insert(job), rows)
            return tuple(each.id for each in jobs)

        if not jobs:
            return ()
        try:
            return await self._database.write(add, events)
        except _SubmittedBeforeError as before:
            return before.ids

    async def start(self, begun: Attempt, *, attempts_before: int, events: Sequence[Event] = ()) -> bool:
        """The claim: a job that is still queued and has had `attempts_before` attempts runs under this one; else False.

        Raises:
            FarmError: another attempt runs on that device, the lease is not known, or another head has taken over.
        """
        return await self._database.change(CLAIM, events, claim(begun, attempts_before), [begin(begun)])

    async def finish(
        self,
        ended: Attempt,
        becomes: Job | None = None,
        *,
        result: Mapping[str, Any] | None = None,
        events: Sequence[Event] = (),
        letter: Letter | None = None,
    ) -> bool:
        """The end of an attempt, its result, and what its job becomes, together; a head apart gets the letter.

        `becomes`: None if that is still to be decided. False: that attempt is not running under that fence any more;
        nothing is written.
        """
        end = {name: getattr(ended, name) for name in _ENDED}

        def finish(connection: Connection) -> None:
            must_change(connection, RUNNING, {"of": ended.id, "under": ended.fence, **end})
            if becomes is not None:
                must_change(connection, LIVE, {"of": becomes.id, **_decided(becomes)})
                insert_measurement(connection, becomes, ended, result)
            if result is not None:
                put(connection, schema.result, {"job": ended.job, "body": result})

        return await self._database.write_if(finish, events, post(schema.to_head, letter), last=True)

    async def save(self, becomes: Job, *, expected: Collection[JobState], events: Sequence[Event] = ()) -> bool:
        """Store a decision about a job that is in one of the `expected` states; False: it is in another."""
        known = (job.c.id == becomes.id, job.c.state.in_(sorted(expected)))
        change = update(job).where(*known).values(_decided(becomes))
        return await self._database.change(change, events, last=becomes.state in FINAL)

    async def move_deadlines(self, by_s: float) -> None:
        """The wall clock was set by so many seconds: jobs that have not ended keep the time they have left."""
        late = type_coerce(job.c.deadline, Double) + by_s
        change = update(job).where(job.c.ended_at.is_(None), job.c.deadline.is_not(None)).values(deadline=late)
        await self._database.execute(change)

    async def save_facts(self, attempt_id: str, fence: int, facts: Mapping[str, Any]) -> bool:
        """Store the data with which a restarted daemon adopts the attempt; False: it does not run under that fence."""
        return await self._database.change(RUNNING, values={"of": attempt_id, "under": fence, "facts": facts})

    def _jobs(self, wanted: Select[Any]) -> tuple[Job, ...]:
        with self._database.reading() as connection:
            return tuple(Job(*row) for row in connection.execute(wanted).all())  # faster than one by one

    def _attempts(self, wanted: Select[Any]) -> tuple[Attempt, ...]:
        return tuple(Attempt(**row) for row in self._database.rows(wanted))


class _SubmittedBeforeError(Exception):
    """This user's key has jobs already."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        super().__init__(ids)
        self.ids = ids


_IN_ARRAY = job.c.array != literal_column("''")  # word for word what the index of arrays is for


def _of_array(array: str) -> ColumnElement[bool]:
    return and_(job.c.array == array, _IN_ARRAY)


def _decided(becomes: Job) -> dict[str, Any]:
    return {name: getattr(becomes, name) for name in _DECIDED}


def _new_submission(connection: Connection, user: str, key: str) -> int:
    """The number of a user's key.

    Raises:
        _SubmittedBeforeError: the key was used before.
    """
    known = select(submission.c.id).where(submission.c.user == user, submission.c.key == key)
    if (inserted := insert_new(connection, submission, {"user": user, "key": key})) is not None:
        return int(inserted.id)
    number = connection.execute(known).scalar_one()
    ids = tuple(connection.execute(select(job.c.id).where(job.c.submission == number).order_by(job.c.seq)).scalars())
    if not ids:
        return int(number)
    raise _SubmittedBeforeError(ids)


class ToolchainTable(TableAccess):
    """Statements over toolchains added by command."""

    def all(self) -> tuple[Toolchain, ...]:
        """Every toolchain, by name."""
        rows = self._database.rows(select(toolchain).order_by(toolchain.c.name))
        return tuple(Toolchain(**{**row, "python": Path(row["python"])}) for row in rows)

    async def add(self, added: Toolchain, events: Sequence[Event] = ()) -> None:
        """Insert or replace a toolchain."""
        await self._database.put(toolchain, values_of(added) | {"python": str(added.python)}, events)

    async def remove(self, name: str, events: Sequence[Event] = ()) -> bool:
        """Remove a toolchain; whether there was one."""
        return await self._database.change(delete(toolchain).where(toolchain.c.name == name), events)


@dataclass(frozen=True, slots=True)
class Found:
    """Some jobs, newest first; `before` is where to continue, "" when there is nothing older."""

    jobs: tuple[Job, ...]
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Conditions of a search; empty means any. `text`: in id, phone, selector or a value of the spec, any case."""

    text: str = ""
    selector: str = ""  # canonical text, whole
    device: str = ""  # an attempt ran there, or the job is for it alone
    state: Collection[JobState] = ()
    user: str = ""
    kind: str = ""


class JobSearch(TableAccess):
    """Searches over jobs."""

    def search(self, wanted: JobFilter, *, before: str = "", limit: int = 50, look_at: int = LOOKED_AT) -> Found:
        """The newest jobs that meet `wanted`, of the `look_at` that were submitted before the job `before`."""
        older = [job.c.seq >= 0]  # of every job; so that the planner goes by the numbers
        if before:
            older.append(job.c.seq < select(job.c.seq).where(job.c.id == before).scalar_subquery())
        newest = select(job.c.seq).where(*older).order_by(job.c.seq.desc()).limit(look_at).subquery()
        with self._database.reading() as connection:
            last, count = connection.execute(select(func.min(newest.c.seq), func.count()).select_from(newest)).one()
            if last is None:
                return Found((), "")
            candidates = (
                select(job.c.seq, job.c.id, job.c.device, type_coerce(job.c.spec, Text).label("spec"), selector.c.text)
                .join_from(job, selector)
                .where(job.c.seq >= last, *older, *_conditions(wanted))
                .order_by(job.c.seq.desc())
            )
            seqs: list[int] = []
            for row in connection.execute(candidates):
                if _says(wanted.text, row.id, row.device, row.text, row.spec):
                    seqs.append(row.seq)
                    if len(seqs) > limit:
                        break
            jobs = _jobs(connection, seqs[:limit])
            if len(seqs) > limit:
                return Found(jobs, jobs[-1].id)
            if count < look_at or not _older(connection, last):
                return Found(jobs, "")
            return Found(jobs, str(connection.execute(select(job.c.id).where(job.c.seq == last)).scalar_one()))


def _conditions(wanted: JobFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.state:
        # An expression, lest the index of states is taken: the order is that of the numbers.
        conditions.append(job.c.state.concat("").in_(sorted(wanted.state)))
        if not FINAL.intersection(wanted.state):
            conditions.append(job.c.ended_at.is_(None))
    if wanted.user:
        conditions.append(job.c.user.concat("") == wanted.user)
    if wanted.kind:
        conditions.append(job.c.kind.concat("") == wanted.kind)
    if wanted.selector:
        conditions.append(selector.c.text == wanted.selector)
    if wanted.device:
        ran = select(attempt.c.id).where(attempt.c.job == job.c.id, attempt.c.device == wanted.device)
        conditions.append(or_(job.c.device == wanted.device, ran.exists()))
    if wanted.text:
        places = [type_coerce(job.c.spec, Text).icontains(_written(wanted.text), autoescape=True)]
        places += [
            column.icontains(wanted.text, autoescape=True) for column in (job.c.id, job.c.device, selector.c.text)
        ]
        conditions.append(or_(false(), *places))
    return conditions


def _says(text: str, name: str, device: str, chosen: str, spec: str) -> bool:
    """Whether a value has the text: the database found it anywhere in the spec's JSON, in the names of fields too."""
    if not text or any(text.casefold() in each.casefold() for each in (name, device, chosen)):
        return True
    return _written(text).casefold() in _FIELD.sub("", spec).casefold()


def _written(text: str) -> str:
    """As it stands in the spec's JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _jobs(connection: Connection, seqs: list[int]) -> tuple[Job, ...]:
    wanted = select_jobs().where(job.c.seq.in_(seqs)).order_by(job.c.seq.desc())
    return tuple(Job(*row) for row in connection.execute(wanted))


def _older(connection: Connection, seq: int) -> bool:
    return connection.execute(select(job.c.seq).where(job.c.seq < seq).limit(1)).first() is not None
