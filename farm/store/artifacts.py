"""Artifacts: sets of tuning records, references from jobs and results, and poison (artifacts that kill their process).

A model has versions of its tuning records for each target, each an artifact.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Text, delete, func, select, type_coerce

from farm.common.errors import UserError
from farm.common.events import Event
from farm.model.identity import target_key
from farm.store.database import TableAccess, in_parts, insert_new, upsert, values_of
from farm.store.schema import attempt, job, poison, record_set, result, shared_bundle

_SHA256 = re.compile(r'"([0-9a-f]{64})"')
_ROWS_AT_ONCE = 1000
KEPT_VERSIONS = 5  # of one user, model and target, in every case
MAX_VERSIONS = 20  # of one user, model and target: with older ones whose content no newer one has
MAX_TARGET_BYTES = 16 << 10  # as JSON; LLVM's longest list of features has 3 kB
MAX_BEST_BYTES = 1 << 20  # as JSON: the rows of some 4000 tasks
MAX_TASKS = 4096  # rows of `best`
Tasks = Mapping[str, tuple[float, float]]  # trials and seconds of each task
LISTED = [column for column in record_set.c if column is not record_set.c.best]  # which has up to a megabyte


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """An artifact whose runs of one user killed their processes; all but the counts is of the latest time."""

    artifact: str  # SHA-256 of the library
    user: str
    what: str  # what happened, one line
    device: str
    kills: int
    seen: int  # of these, reported by an operator
    first_at: datetime
    last_at: datetime
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSet:
    """One version of the records of a model for a target."""

    id: int
    model: str  # key of the imported model: its file, shapes, types and TVM's version
    name: str  # the model's name for people
    target_key: str
    target: object  # a TVM tag or target dict
    version: int  # from 1, of its model and target
    artifact: str  # SHA-256 of the records
    records: int
    user: str  # its owner; "": unknown
    job: str  # the job that made it; "": made by hand
    at: datetime
    # {tasks: [{name weight trials failed seconds gflops device}], ...}; empty in lists
    best: Mapping[str, Any] = field(default_factory=dict)


class ArtifactReferences(TableAccess):
    """Reads over all jobs or results: for a thread, before artifacts are deleted."""

    def live(self) -> frozenset[str]:
        """Named by jobs that have not ended or by their attempts, tuning records, and bundles for other hosts.

        Records cost hours of phones' work, and are small.
        """
        with self._database.reading() as connection:
            records = frozenset(connection.execute(select(record_set.c.artifact)).scalars())
            records |= frozenset(connection.execute(select(shared_bundle.c.artifact)).scalars())
        living = job.c.ended_at.is_(None)
        kept = select(type_coerce(attempt.c.facts, Text)).join(job, attempt.c.job == job.c.id).where(living)
        return records | self._named(select(type_coerce(job.c.spec, Text)).where(living)) | self._named(kept)

    def results(self) -> frozenset[str]:
        """Named by stored results."""
        return self._named(select(type_coerce(result.c.body, Text)))

    def _named(self, texts: Select[Any]) -> frozenset[str]:
        """Every SHA-256 in these JSON texts."""
        named: set[str] = set()
        with self._database.reading(in_parts=True) as connection:
            for text in connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(texts).scalars():
                named.update(_SHA256.findall(text))
        return frozenset(named)


class PoisonTable(TableAccess):
    """Statements over poisoned artifacts."""

    def all(self, limit: int) -> tuple[tuple[PoisonRecord, ...], int]:
        """The `limit` that killed last, the latest first, and how many there are."""
        wanted = select(poison).order_by(poison.c.last_at.desc(), poison.c.artifact, poison.c.user).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(wanted).mappings().all()
            count = connection.execute(select(func.count()).select_from(poison)).scalar_one()
        return tuple(PoisonRecord(**row) for row in rows), int(count)

    def kills(self, artifacts: Collection[str], user: str) -> dict[str, int]:
        """How often each of these has killed, for `user`; those without a kill are left out.

        All reports of `user` count. Of another user, an operator's count, and all other reports as one.
        "" is no user: the count that holds for all users.
        """
        own: dict[str, int] = {}
        found: dict[str, int] = {}
        with self._database.reading() as connection:
            for some in in_parts(artifacts):
                for row in connection.execute(select(poison).where(poison.c.artifact.in_(some))):
                    found[row.artifact] = found.get(row.artifact, 0) + row.seen + (row.kills > row.seen)
                    if row.user == user:
                        own[row.artifact] = row.kills
        return {name: max(count, own.get(name, 0)) for name, count in found.items()}

    async def add(self, record: PoisonRecord, events: Sequence[Event] = ()) -> None:
        """Add the record's kills to the stored ones."""
        changes = {"what": record.what, "device": record.device, "last_at": record.last_at, "job": record.job}

        def add(connection: Connection) -> None:
            counts = {"kills": poison.c.kills + record.kills, "seen": poison.c.seen + record.seen}
            add = upsert(connection.dialect.name, poison).values(values_of(record))
            connection.execute(add.on_conflict_do_update(index_elements=["artifact", "user"], set_=changes | counts))

        await self._database.write(add, events)

    async def forget(self, artifact: str, events: Sequence[Event] = ()) -> bool:
        """Remove an artifact's rows; whether there were any."""
        return await self._database.change(delete(poison).where(poison.c.artifact == artifact), events)


class BadSetError(UserError):
    """This is no set of tuning records."""

    code = "bad_record_set"


def check_set(target: object, best: object) -> None:
    """Check the facts stored beside a set.

    Raises:
        BadSetError: a fact is no JSON or too large, or the target is no tag and no table.
    """
    if not isinstance(target, str | Mapping) or not target:
        raise BadSetError("the target is neither a TVM tag nor a target's table")
    for what, value, most_bytes in (("target", target, MAX_TARGET_BYTES), ("best of each task", best, MAX_BEST_BYTES)):
        try:
            size = len(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadSetError(f"the {what} is no JSON: {error}") from error
        if size > most_bytes:
            raise BadSetError(f"the {what} has {size:,} bytes as JSON; at most {most_bytes:,} are kept")
    rows = best.get("tasks") if isinstance(best, Mapping) else None
    if isinstance(rows, list) and len(rows) > MAX_TASKS:
        raise BadSetError(f"the best of each task has {len(rows):,} rows; at most {MAX_TASKS:,} are kept")


def superseded(sets: Iterable[KeptSet]) -> list[int]:
    """Ids of one user's sets for a model and target, the newest first, that can go."""
    obsolete: list[int] = []
    older: list[tuple[int, int]] = []
    newer: list[Tasks] = []
    for place, each in enumerate(sets):
        tasks = _tasks(each.best)
        if place >= KEPT_VERSIONS:
            if any(_holds(there, tasks) for there in newer):
                obsolete.append(each.id)
                continue
            older.append((each.records, each.id))
        newer.append(tasks)
    too_many = max(0, KEPT_VERSIONS + len(older) - MAX_VERSIONS)
    return obsolete + [number for _, number in sorted(older, key=lambda each: each[0])[:too_many]]


def _holds(newer: Tasks, older: Tasks) -> bool:
    """Whether each task of `older` had as many trials in `newer`, and a best as fast: a merge or a longer search."""
    return all(
        name in newer and newer[name][0] >= trials and newer[name][1] <= seconds
        for name, (trials, seconds) in older.items()
        if trials
    )


def _tasks(best: Mapping[str, Any]) -> Tasks:
    """Trials and seconds of each task; malformed rows, which clients may send, are left out."""
    rows = best.get("tasks")
    return {
        str(row.get("name")): (_number(row.get("trials"), 0), _number(row.get("seconds"), math.inf))
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, Mapping)
    }


def _number(value: object, otherwise: float) -> float:
    return value if isinstance(value, int | float) else otherwise


class RecordSets(TableAccess):
    """Statements over sets of tuning records."""

    def page(self, *, name: str = "", job: str = "", limit: int) -> tuple[KeptSet, ...]:
        """The newest first, no `best`; those of one model's name, or of one job, if that is given."""
        wanted = select(*LISTED).order_by(record_set.c.id.desc()).limit(limit)
        for column, value in ((record_set.c.name, name), (record_set.c.job, job)):
            wanted = wanted.where(column == value) if value else wanted
        return self._rows(wanted)

    def get(self, number: int) -> KeptSet | None:
        """The set of that id."""
        found = self._rows(select(record_set).where(record_set.c.id == number))
        return found[0] if found else None

    def newest(self, name: str) -> tuple[KeptSet, ...]:
        """Each user's newest version for each model of that name and target, the newest first; no `best`."""
        wanted = select(func.max(record_set.c.id)).where(record_set.c.name == name)
        newest = wanted.group_by(record_set.c.model, record_set.c.target_key, record_set.c.user)
        return self._rows(select(*LISTED).where(record_set.c.id.in_(newest)).order_by(record_set.c.id.desc()))

    async def save(
        self,
        *,
        model: str,
        name: str,
        target: object,
        artifact: str,
        records: int,
        best: Mapping[str, Any],
        user: str,
        job: str,
        events: Sequence[Event] = (),
    ) -> int:
        """Store a set as the next version of its model and target; returns the version.

        Of each user the newest `KEPT_VERSIONS` stay, this one included, and older ones until a newer one has all their
        tasks at least as good; of more than `MAX_VERSIONS` the smallest goes. No user pushes out sets of others.

        A set that a job has stored already is not stored again: an attempt may be killed between this and its result.
        """
        key = target_key(target)
        same = (record_set.c.model == model, record_set.c.target_key == key)
        own = (*same, record_set.c.user == user)

        def save(connection: Connection) -> int:
            kept = select(record_set.c.version).where(*own, record_set.c.artifact == artifact, record_set.c.job == job)
            row = {
                "model": model, "name": name, "target_key": key, "target": target, "artifact": artifact,
                "records": records, "best": dict(best), "user": user, "job": job, "at": datetime.now(UTC),
            }  # fmt: skip
            while (there := connection.execute(kept).scalar()) is None:
                newest = connection.execute(select(func.max(record_set.c.version)).where(*same)).scalar() or 0
                insert_new(connection, record_set, {**row, "version": newest + 1})  # unless another writer has that one
            return int(there)

        version = await self._database.write(save, events)
        obsolete = await self.in_thread(self._superseded, *own)
        if obsolete:
            await self._database.execute(delete(record_set).where(record_set.c.id.in_(obsolete)))
        return version

    async def remove(self, number: int, events: Sequence[Event] = ()) -> bool:
        """Forget the set of that id; its artifact goes when nothing else needs it. False when there was none."""
        return await self._database.change(delete(record_set).where(record_set.c.id == number), events)

    def _superseded(self, *own: ColumnElement[bool]) -> list[int]:
        """Reads and compares megabytes: not in the writer's thread, for which every grant waits."""
        with self._database.reading() as connection:
            rows = connection.execute(select(record_set).where(*own).order_by(record_set.c.version.desc())).mappings()
            return superseded(KeptSet(**row) for row in rows)

    def _rows(self, wanted: Any) -> tuple[KeptSet, ...]:
        return tuple(KeptSet(**row) for row in self._database.rows(wanted))
