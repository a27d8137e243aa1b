"""Jobs by words, selector and phone, newest first, at a cost that does not grow with the history.

Words lie anywhere in a job, so no index finds them: a search looks at the newest jobs in the order of their numbers,
so many at most, and says where it stopped. Whoever wants older ones goes on from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Text, false, func, or_, select, type_coerce

from farm.core.job import FINAL, Job, JobState
from farm.store.database import Database
from farm.store.rows import job_of, select_jobs
from farm.store.schema import attempt, job, selector

_FIELD = re.compile(r'"[^"\\]*":')  # a field's name in JSON: parsing thousands of specs would take half a second
LOOKED_AT = 2_000  # jobs of one search


@dataclass(frozen=True, slots=True)
class Found:
    """Some jobs, newest first; `before` is where to go on, "" when there is nothing older."""

    jobs: tuple[Job, ...]
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What all found jobs have; empty means any. `text`: in id, phone, selector or a value of the spec, any case."""

    text: str = ""
    selector: str = ""  # canonical text, whole
    device: str = ""  # an attempt ran there, or the job is for it alone
    state: Collection[JobState] = ()
    user: str = ""
    kind: str = ""


class JobSearch:
    """Searches over jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def search(self, wanted: Wanted, *, before: str = "", limit: int = 50, look_at: int = LOOKED_AT) -> Found:
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


def _conditions(wanted: Wanted) -> list[ColumnElement[bool]]:
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
    return tuple(job_of(row) for row in connection.execute(wanted).mappings())


def _older(connection: Connection, seq: int) -> bool:
    return connection.execute(select(job.c.seq).where(job.c.seq < seq).limit(1)).first() is not None
