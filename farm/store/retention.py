"""How long data stays: ended jobs with attempts, results and logs, ended leases, past reservations, events.

Measurements of benches stay far longer than their jobs: a history is worth its years, and a row is about 1 kB.

The oldest go first, in small batches through the one writer, so that nothing else waits long for its commit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Double, Table, Text, delete, exists, func, or_, select, type_coerce

from farm.common.errors import FarmError
from farm.store.accounts import AuditTable
from farm.store.database import Database, size_of
from farm.store.schema import attempt, event, job, lease, measurement, recovery, reservation, submission

BATCH = 200  # rows of a kind in one commit: a few milliseconds of the writer
PAGES_AT_ONCE = 512  # given back to the file system in one commit: 2 MiB
EVERY_S = 24 * 3600.0
AUDIT_EVERY_S = 600.0  # between looks whether the audit log has too many rows: every user may write many
HISTORY = timedelta(days=10 * 365)  # of measurements
AUDIT_DAYS = 365.0
FIRST_AFTER_S = 300.0  # not while all clients reconnect after a start
MB = 1_000_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How much was (or would be) removed."""

    jobs: int = 0
    leases: int = 0
    events: int = 0
    freed_bytes: int = 0

    def to_wire(self) -> dict[str, int]:
        """As JSON."""
        return asdict(self)


class Retention:
    """Prunes one database, daily and when asked."""

    def __init__(
        self,
        database: Database,
        *,
        keep_days: float,
        max_mb: float,
        audit_days: float = AUDIT_DAYS,
        remove_logs: Callable[[Sequence[str]], None] = lambda _: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create without starting anything.

        Args:
            database: the store's.
            keep_days: since a job, a lease or an event ended.
            max_mb: size from which the oldest ended jobs go before their time.
            audit_days: age of audit records.
            remove_logs: removes the files of jobs; called in a thread, after their rows are gone.
            clock: the current time.
        """
        self._database = database
        self._keep = timedelta(days=keep_days)
        self._max_bytes = max_mb * MB
        self._audit = AuditTable(database)
        self._keep_audit = timedelta(days=audit_days)
        self._remove_logs = remove_logs
        self._clock = clock
        self._pruning = asyncio.Lock()

    def use(self, keep_days: float, max_mb: float, audit_days: float = AUDIT_DAYS) -> None:
        """Change the limits from the next pruning on."""
        self._keep, self._max_bytes = timedelta(days=keep_days), max_mb * MB
        self._keep_audit = timedelta(days=audit_days)

    async def run(self) -> None:
        """Prune daily, the audit log's excess more often, until cancelled."""
        await asyncio.sleep(FIRST_AFTER_S)
        for turn in itertools.count():
            try:
                if turn % int(EVERY_S / AUDIT_EVERY_S):
                    await self._audit.prune()
                elif (pruned := await self.prune()) != Pruned():
                    logger.info("pruned the store: %s", pruned)
            except FarmError as error:
                logger.warning("pruning the store failed: %s", error)
            await asyncio.sleep(AUDIT_EVERY_S)

    def would_prune(self, keep_days: float | None = None) -> Pruned:
        """How much `prune` would remove for its age."""
        ended = self._ended_before(keep_days)
        with self._database.reading() as connection:

            def count(condition: ColumnElement[bool]) -> int:
                return int(connection.execute(select(func.count()).where(condition)).scalar_one())

            waited_for = _ask(connection, _Progress()).waited_for
            names = connection.execute(select(job.c.id, job.c.array).where(job.c.ended_at < ended))
            jobs = sum(waited_for.isdisjoint(row) for row in names)
            return Pruned(jobs, count(lease.c.ended_at < ended), count(event.c.at < ended))

    async def prune(self, keep_days: float | None = None) -> Pruned:
        """Remove rows that are too old, then the oldest until the size is right, and give the space back.

        Raises:
            StoreWriteError: the database cannot be written now; what was removed so far stays removed.
        """
        async with self._pruning:
            before = await self._database.in_thread(self._size)
            jobs, leases, events = await self._remove_until(self._ended_before(keep_days))
            while await self._database.in_thread(self._size) > self._max_bytes:
                oldest = await self._database.in_thread(self._some_oldest)
                if oldest is None:
                    break
                more = await self._remove_until(oldest)
                jobs, leases, events = jobs + more[0], leases + more[1], events + more[2]
                if not any(more):
                    break
            await self._in_batches(partial(_remove_oldest, table=measurement, before=self._clock() - HISTORY))
            await self._audit.prune(self._clock() - self._keep_audit)
            freed = before - await self._database.in_thread(self._size)
            await self._shrink()
        return Pruned(jobs, leases, events, max(0, freed))

    def _ended_before(self, keep_days: float | None) -> datetime:
        return self._clock() - (self._keep if keep_days is None else timedelta(days=keep_days))

    async def _remove_until(self, ended: datetime) -> tuple[int, int, int]:
        """Everything that ended before a time; counts of jobs, leases, events."""
        jobs = 0
        step = _Progress()
        while not step.over:
            step = await self._database.write(partial(_remove_jobs, ended=ended, so_far=step))
            if step.removed:
                jobs += len(step.removed)
                await asyncio.to_thread(self._remove_logs, step.removed)
        leases = await self._in_batches(partial(_remove_leases, ended=ended))
        events = await self._in_batches(partial(_remove_oldest, table=event, before=ended))
        past = delete(reservation).where(reservation.c.ends_at < ended)  # an operator makes a few: no batches
        await self._database.execute(past)
        actions = delete(recovery).where(recovery.c.began_at < ended, recovery.c.outcome.is_not(None))
        await self._database.execute(actions)
        return jobs, leases, events

    async def _in_batches(self, remove: Callable[[Connection], int]) -> int:
        """Commit `remove`, which removes some rows, until there are none left; returns how many went."""
        removed = 0
        while count := await self._database.write(remove):
            removed += count
        return removed

    def _some_oldest(self) -> datetime | None:
        """A time before which about a batch of ended jobs (or, when there are none, of other things) lies."""
        with self._database.reading() as connection:
            for column, order in ((job.c.ended_at, job.c.ended_at), (event.c.at, event.c.seq), (lease.c.ended_at,) * 2):
                some = select(column).where(column.is_not(None)).order_by(order).limit(BATCH).subquery()
                newest: datetime | None = connection.execute(select(func.max(some.c[column.name]))).scalar_one()
                if newest is not None:
                    return newest + timedelta(microseconds=1)
        return None

    def _size(self) -> int:
        with self._database.reading() as connection:
            return size_of(connection)

    async def _shrink(self) -> None:
        """Give free pages of a SQLite file back to its disk."""
        if self._database.engine.dialect.name != "sqlite":
            return
        while await self._database.write(_give_back_some):
            pass
        await asyncio.to_thread(self._checkpoint)

    def _checkpoint(self) -> None:
        """The file is cut when its write-ahead log has been taken in; without waiting for readers."""
        connection = self._database.engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the old jobs have been looked through, oldest end first. A value: a step may be undone and repeated."""

    removed: tuple[str, ...] = ()  # removed by the latest step
    over: bool = False
    place: tuple[float, int] = (-math.inf, 0)  # end and number of the last job looked at
    waited_for: frozenset[str] = frozenset()  # jobs and arrays that live jobs name in `after`
    asked_to: int = 0  # the number of the last live job that was asked what it waits for


def _ask(connection: Connection, so_far: _Progress) -> _Progress:
    """Add the jobs and artifacts that newer jobs wait for: each is asked once, however many batches there are."""
    newest = connection.execute(select(func.max(job.c.seq))).scalar_one() or 0
    some = type_coerce(job.c.after, Text) != "[]"
    new = select(job.c.after).where(job.c.ended_at.is_(None), job.c.seq > so_far.asked_to, some)
    named = so_far.waited_for.union(*connection.execute(new).scalars())
    return replace(so_far, waited_for=named, asked_to=newest)


def _remove_jobs(connection: Connection, ended: datetime, so_far: _Progress) -> _Progress:
    """Look at a batch of jobs; remove those that no job waits for, with all that belongs to them."""
    so_far = _ask(connection, so_far)
    end, (at, seq) = type_coerce(job.c.ended_at, Double), so_far.place
    beyond = (end >= at, or_(end > at, job.c.seq > seq))
    old = select(job.c.id, job.c.array, job.c.submission, job.c.seq, end.label("end"))
    batch = connection.execute(old.where(job.c.ended_at < ended, *beyond).order_by(end, job.c.seq).limit(BATCH)).all()
    if not batch:
        return replace(so_far, removed=(), over=True)
    rows = [row for row in batch if so_far.waited_for.isdisjoint((row.id, row.array))]
    names = tuple(row.id for row in rows)
    if names:
        connection.execute(delete(event).where(event.c.subject.in_(names)))
        connection.execute(delete(job).where(job.c.id.in_(names)))  # attempts and results go with it
        keys = {row.submission for row in rows} - {None}
        unused = ~exists().where(job.c.submission == submission.c.id)
        connection.execute(delete(submission).where(submission.c.id.in_(keys), unused))
    return replace(so_far, removed=names, place=(batch[-1].end, batch[-1].seq))


def _remove_leases(connection: Connection, ended: datetime) -> int:
    """A batch of ended leases without an attempt."""
    unused = ~exists().where(attempt.c.lease == lease.c.id)
    old = select(lease.c.id).where(lease.c.ended_at < ended, unused).order_by(lease.c.ended_at).limit(BATCH)
    return _delete_some(connection, lease.c.id, connection.execute(old).scalars().all())


def _remove_oldest(connection: Connection, table: Table, before: datetime) -> int:
    """A batch of the rows with the lowest numbers, as far as they are older than a time."""
    oldest = select(table.c.seq, table.c.at).order_by(table.c.seq).limit(BATCH)
    old = [row.seq for row in connection.execute(oldest) if row.at < before]
    return _delete_some(connection, table.c.seq, old)


def _delete_some(connection: Connection, key: Any, values: Any) -> int:
    if values:
        connection.execute(delete(key.table).where(key.in_(values)))
    return len(values)


def _give_back_some(connection: Connection) -> bool:
    """Whether there may be more to give back."""
    free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    if not free:
        return False
    # It gives one page back per row fetched, and rows without columns are none to SQLAlchemy.
    driver: Any = connection.connection.driver_connection
    driver.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})").fetchall()
    return bool(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one() < free)
