"""Jobs, their attempts and results. Every change is conditional on what it was decided from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Select,
    and_,
    insert,
    literal_column,
    select,
    type_coerce,
    union_all,
    update,
)

from farm.core.events import Event
from farm.core.job import FINAL, Attempt, AttemptState, Job, JobState
from farm.store import schema
from farm.store.database import Database, must_change
from farm.store.measurements import keep_measurement
from farm.store.rows import (
    attempt_end,
    attempt_of,
    attempt_values,
    in_parts,
    job_changes,
    job_of,
    job_values,
    put,
    select_jobs,
    selector_number,
)
from farm.store.schema import attempt, job, submission

PAGE = 50


class JobTable:
    """Statements over jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
            found = connection.execute(select(job.c.state).where(_of_array(array)).distinct()).scalars()
            return frozenset(map(JobState, found))

    def find(self, prefix: str, limit: int = 10) -> tuple[Job, ...]:
        """Jobs whose id begins with `prefix`, at most `limit`, by id."""
        beyond = prefix + "\U0010ffff"  # sorts behind whatever continues it
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
                select(job.c.seq).where(job.c.state == each.value, *older)
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
        """What a job came to, None when it has no result."""
        rows = self._database.rows(select(schema.result.c.body).where(schema.result.c.job == job_id))
        return rows[0]["body"] if rows else None

    # --- writes ---------------------------------------------------------------------------------------------------

    async def add(self, jobs: Sequence[Job], *, key: str = "", events: Sequence[Event] = ()) -> tuple[str, ...]:
        """Keep the jobs of one submit; returns their ids.

        The same user's same `key` again adds nothing and tells nothing: the ids of the first time are returned.
        """

        def add(connection: Connection) -> tuple[str, ...]:
            number = None
            if key:
                number, known = _submission(connection, jobs[0].user, key)
                if known:
                    raise _SubmittedBeforeError(known)
            selectors = {text: selector_number(connection, text) for text in sorted({each.selector for each in jobs})}
            rows = [{**job_values(each), "selector": selectors[each.selector], "submission": number} for each in jobs]
            connection.execute(insert(job), rows)
            return tuple(each.id for each in jobs)

        if not jobs:
            return ()
        try:
            return await self._database.write(add, events)
        except _SubmittedBeforeError as before:
            return before.ids

    async def start(self, begun: Attempt, *, attempts_before: int, events: Sequence[Event] = ()) -> bool:
        """The claim: the job is still queued and has been tried as often as believed -> it runs, under this attempt.

        Raises:
            StoreConflictError: another attempt runs on that device, or the lease is not known.
        """
        claim = (
            update(job)
            .where(job.c.id == begun.job, job.c.state == JobState.QUEUED.value, job.c.attempts == attempts_before)
            .values(state=JobState.RUNNING.value, attempts=attempts_before + 1, not_before=None)
        )

        def start(connection: Connection) -> None:
            must_change(connection.execute(claim).rowcount)
            connection.execute(insert(attempt).values(attempt_values(begun)))

        return await self._database.write_if(start, events)

    async def finish(
        self, ended: Attempt, becomes: Job, *, result: Mapping[str, Any] | None = None, events: Sequence[Event] = ()
    ) -> bool:
        """The end of an attempt, what its job becomes by it, and its result, together.

        False: that attempt is not running under that fence any more; nothing is written.
        """
        end = (
            update(attempt)
            .where(
                attempt.c.id == ended.id,
                attempt.c.fence == ended.fence,
                attempt.c.state == AttemptState.RUNNING.value,
            )
            .values(attempt_end(ended))
        )
        change = update(job).where(job.c.id == becomes.id, job.c.ended_at.is_(None)).values(job_changes(becomes))

        def finish(connection: Connection) -> None:
            must_change(connection.execute(end).rowcount)
            must_change(connection.execute(change).rowcount)
            _keep_result(connection, becomes.id, result)
            keep_measurement(connection, becomes, ended, result)

        return await self._database.write_if(finish, events, last=True)

    async def save(
        self,
        becomes: Job,
        *,
        expected: Collection[JobState],
        events: Sequence[Event] = (),
    ) -> bool:
        """What a decision makes of a job that is in one of the `expected` states; False: it is in another."""
        change = (
            update(job)
            .where(job.c.id == becomes.id, job.c.state.in_(sorted(each.value for each in expected)))
            .values(job_changes(becomes))
        )
        return await self._database.change(change, events, last=becomes.state in FINAL)

    async def move_deadlines(self, by_s: float) -> None:
        """The wall clock was set by so many seconds: jobs that have not ended keep the time they have left."""
        late = type_coerce(job.c.deadline, Double) + by_s
        change = update(job).where(job.c.ended_at.is_(None), job.c.deadline.is_not(None)).values(deadline=late)
        await self._database.execute(change)

    async def facts(self, attempt_id: str, fence: int, facts: Mapping[str, Any]) -> bool:
        """What a running attempt needs to be taken up after a restart; False: it does not run under that fence."""
        change = (
            update(attempt)
            .where(
                attempt.c.id == attempt_id,
                attempt.c.fence == fence,
                attempt.c.state == AttemptState.RUNNING.value,
            )
            .values(facts=dict(facts))
        )
        return await self._database.change(change)

    def _jobs(self, wanted: Select[Any]) -> tuple[Job, ...]:
        return tuple(map(job_of, self._database.rows(wanted)))

    def _attempts(self, wanted: Select[Any]) -> tuple[Attempt, ...]:
        return tuple(map(attempt_of, self._database.rows(wanted)))


class _SubmittedBeforeError(Exception):
    """This user's key has jobs already."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        super().__init__(ids)
        self.ids = ids


_IN_ARRAY = job.c.array != literal_column("''")  # word for word what the index of arrays is for


def _of_array(array: str) -> ColumnElement[bool]:
    return and_(job.c.array == array, _IN_ARRAY)


def _submission(connection: Connection, user: str, key: str) -> tuple[int, tuple[str, ...]]:
    """The number of a user's key, and the jobs it has if it was used before."""
    known = select(submission.c.id).where(submission.c.user == user, submission.c.key == key)
    number = connection.execute(known).scalar_one_or_none()
    if number is not None:
        ids = connection.execute(select(job.c.id).where(job.c.submission == number).order_by(job.c.seq)).scalars()
        return int(number), tuple(ids)
    added = connection.execute(insert(submission).values(user=user, key=key)).inserted_primary_key
    assert added is not None
    return int(added[0]), ()


def _keep_result(connection: Connection, job_id: str, body: Mapping[str, Any] | None) -> None:
    if body is not None:
        put(connection, schema.result, {"job": job_id, "body": dict(body)})
