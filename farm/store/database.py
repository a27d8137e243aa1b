"""The access to the database that all tables share: short reads where they are called, writes through one thread.

The event loop reads through `read` and `in_thread`: a server that does not answer must not hold it.

`run_to_completion` and `WriteRetrier` are for changes that are stored first and then made in memory: both happen or
neither does. `BackgroundWrites` are for changes that hold in memory already and must be stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache, partial, wraps
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    RowMapping,
    Select,
    Table,
    UpdateBase,
    bindparam,
    select,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from farm.common.errors import Code, HostError, log_error
from farm.common.events import Event, UncommittedEvents
from farm.common.tasks import BackgroundTasks, at_most
from farm.store.appended_rows import AppendedRows, event_rows
from farm.store.columns import StoredValueError
from farm.store.engine import outage_of
from farm.store.event_numbers import MAX_OF_ONE_WRITE
from farm.store.schema import selector
from farm.store.term import Term
from farm.store.writer import StoreWriteError, Writer

ANSWER_LIMIT_S = 5.0  # of a read while the writer has no answer either: people wait for it
SERVER_READERS = 4  # threads that wait for a server: with the writer and the term six connections a daemon
MAX_NAMED = 1000  # names in one statement: databases bound its parameters (PostgreSQL by 65,535)

T = TypeVar("T")
CANCEL_LIMIT_S = 5.0  # how long a cancelled caller waits: a commit takes milliseconds, or the disk is full for long
FLUSH_LIMIT_S = 5.0  # a stopping daemon's last writes: a commit takes milliseconds, or the disk is full for long
RETRY_S = 1.0  # a store that reports when it can write again is asked at once; this is for one that does not
P = ParamSpec("P")
logger = logging.getLogger(__name__)

SELECTOR = select(selector.c.id).where(selector.c.text == bindparam("of"))
_running: set[asyncio.Task[Any]] = set()  # the event loop itself only has weak references


class ConditionFailedError(Exception):
    """Raised inside a write whose condition does not hold: its changes so far are undone. Never leaves the store."""


class Database:
    """One engine to read with and one writer."""

    def __init__(self, engine: Engine, writer: Writer, term: Term | None = None) -> None:
        """`term`: of a daemon or a head over a database on a server, which the writer's transactions hold."""
        self.engine = engine
        self.writer = writer
        self.term = term
        self.selectors: dict[str, int] = {}  # the numbers of some that are committed, which stay
        # Each select is a transaction of its own on a server: to begin and to end one takes two round trips.
        on_file = engine.dialect.name == "sqlite"
        self._reader = engine if on_file else engine.execution_options(isolation_level="AUTOCOMMIT")
        # Of their own: reads that a server does not answer would take all threads that everything else waits for.
        self._readers = None if on_file else ThreadPoolExecutor(SERVER_READERS, "farm-read")

    def close(self) -> None:
        """Finish queued writes; no reads follow."""
        if self._readers is not None:
            self._readers.shutdown(wait=False, cancel_futures=True)
        self.writer.close()

    async def read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a short read of the event loop: here with SQLite, which takes some 50 µs; a server's in a thread.

        Raises:
            HostError: as `reading`.
        """
        return read(*args, **kwargs) if self._readers is None else await self.in_thread(read, *args, **kwargs)

    async def in_thread(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a read of many rows in a thread.

        Raises:
            HostError: as `reading`.
        """
        if self._readers is None:
            return await asyncio.to_thread(read, *args, **kwargs)
        reading = asyncio.get_running_loop().run_in_executor(self._readers, partial(read, *args, **kwargs))
        try:
            while not (await asyncio.wait((reading,), timeout=ANSWER_LIMIT_S))[0]:
                if self.writer.problem or self.writer.silent_s() > ANSWER_LIMIT_S:
                    hint = "is its server stopped, cut off or overloaded? farm continues by itself: farm doctor"
                    message = f"the database cannot be read: it has not answered for {ANSWER_LIMIT_S:g} s"
                    raise HostError(message, Code.STORE_READ_FAILED, hint=hint)
            return reading.result()
        finally:
            reading.cancel()  # its thread waits on, until its connection is given up

    @contextmanager
    def reading(self, *, in_parts: bool = False) -> Iterator[Connection]:
        """A connection for a few selects; those in a file see one state of it.

        `in_parts`: rows are fetched in parts, which a server does within a transaction.

        Raises:
            HostError: the database as a whole cannot be read now: its server is away, its disk failed; or what was
                selected has a value that farm did not write.
        """
        try:
            with (self.engine if in_parts else self._reader).connect() as connection:
                yield connection
        except StoredValueError as error:
            with self.engine.connect() as connection:
                message = f"the database was changed by something else: {error.with_row(connection)}"
            hint = "stop farm, then correct or delete that row, or restore a backup"
            raise HostError(message, Code.STORE_READ_FAILED, hint=hint) from error
        except DBAPIError as error:
            outage = outage_of(error)
            if outage is None:
                raise
            message = f"the database cannot be read: {outage.reason}"
            raise HostError(message, Code.STORE_READ_FAILED, hint=outage.hint, evidence=outage.evidence) from error

    def rows(self, wanted: Select[Any], values: Mapping[str, Any] | None = None) -> Sequence[RowMapping]:
        """Every row of one select with these values of its parameters.

        Raises:
            HostError: as `reading`.
        """
        with self.reading() as connection:
            return connection.execute(wanted, values).mappings().all()

    async def write(
        self,
        statement: Callable[[Connection], T],
        events: Sequence[Event] = (),
        appended: AppendedRows = (),
        *,
        last: bool = False,
    ) -> T:
        """Commit `statement`, its events and its appended rows together; drafts among the events are settled.

        Args:
            statement: what to do; anything it raises undoes it, and only it.
            events: stored with it.
            appended: rows that go with it: letters (`farm.store.mailbox.post`), a lease.
            last: an end that must be stored when the disk is full: the reserve pays for it.

        Raises:
            FarmError: a rule of the schema refused it.
            StoreWriteError: nothing can be written now.
        """
        if self._readers is not None and len(events) > MAX_OF_ONE_WRITE:
            raise ValueError(f"{len(events):,} events of one write: at most {MAX_OF_ONE_WRITE:,} get numbers")
        drafts = events if isinstance(events, UncommittedEvents) else None
        return await self.writer.write(statement, [*appended, *event_rows(events)], last=last, drafts=drafts)

    async def write_if(
        self,
        statement: Callable[[Connection], object],
        events: Sequence[Event] = (),
        appended: AppendedRows = (),
        *,
        last: bool = False,
    ) -> bool:
        """`write` with a condition; False when `statement` raised ConditionFailedError."""
        try:
            await self.write(statement, events, appended, last=last)
        except ConditionFailedError:
            return False
        return True

    async def execute(
        self, statement: Executable, events: Sequence[Event] = (), appended: AppendedRows = (), *, last: bool = False
    ) -> None:
        """`write` of one statement."""
        await self.write(lambda connection: connection.execute(statement) and None, events, appended, last=last)

    async def put(
        self, table: Table, values: Mapping[str, Any], events: Sequence[Event] = (), appended: AppendedRows = ()
    ) -> None:
        """`write` of one row: insert it, or replace the one with its primary key."""
        await self.write(lambda connection: put(connection, table, values), events, appended)

    async def change(
        self,
        statement: UpdateBase,
        events: Sequence[Event] = (),
        values: Mapping[str, Any] | None = None,
        appended: AppendedRows = (),
        *,
        last: bool = False,
    ) -> bool:
        """`write_if` of one statement with these values of its parameters; False when it finds no row."""
        return await self.write_if(
            lambda connection: must_change(connection, statement, values), events, appended, last=last
        )


class TableAccess:
    """Base of the named statements over one or a few tables."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.read, self.in_thread = database.read, database.in_thread


def must_change(connection: Connection, statement: UpdateBase, values: Mapping[str, Any] | None = None) -> None:
    """Execute a conditional UPDATE or DELETE with these values of its parameters.

    Raises:
        ConditionFailedError: it found no row.
    """
    if connection.execute(statement, values).rowcount == 0:
        raise ConditionFailedError


def values_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name; unlike `asdict` not copied in depth."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def in_parts(names: Iterable[str]) -> Iterator[list[str]]:
    """Names in lists short enough for one statement."""
    rest = iter(names)
    while part := list(islice(rest, MAX_NAMED)):
        yield part


def put(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Insert a row, or replace the one with its primary key."""
    connection.execute(_putting(connection.dialect.name, table, tuple(values)), values)


def insert_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> Any:
    """Insert a row unless a unique index has one like it, maybe of another writer; its primary key, or None."""
    wanted = upsert(connection.dialect.name, table).on_conflict_do_nothing().returning(*table.primary_key)
    return connection.execute(wanted, values).first()


def upsert(dialect: str, table: Table) -> Any:
    """An INSERT that knows `on_conflict_do_...`: SQLAlchemy has one for each engine."""
    if dialect == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # only where there is a server: 30 ms

    return postgresql.insert(table)


@lru_cache(maxsize=64)
def _putting(dialect: str, table: Table, names: Sequence[str]) -> Any:
    wanted, key = upsert(dialect, table), [column.name for column in table.primary_key]
    changes = {name: wanted.excluded[name] for name in names if name not in key}
    return wanted.on_conflict_do_update(index_elements=key, set_=changes)


def selector_number(connection: Connection, text: str) -> int:
    """The number of a selector; a new one gets its number now."""
    known = connection.execute(SELECTOR, {"of": text}).scalar_one_or_none()
    if known is None:
        insert_new(connection, selector, {"text": text})
        known = connection.execute(SELECTOR, {"of": text}).scalar_one()
    return int(known)


def size_of(connection: Connection) -> int:
    """Bytes in use, without pages that wait to be given back."""
    if connection.dialect.name != "sqlite":
        return int(connection.execute(sql("SELECT pg_database_size(current_database())")).scalar_one())
    pages, free, size = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def run_to_completion(change: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a change that has begun complete, even if its caller is cancelled.

    The router cancels the call of a client that left. A cancellation between the commit and its consequences would
    leave the store knowing what the daemon does not. So the change runs in a task of its own; a cancelled caller waits
    for its end, CANCEL_LIMIT_S at most, and is cancelled then.

    The change begins in a later turn of the loop: it must check its own conditions.
    """

    @wraps(change)
    async def begin(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.create_task(change(*args, **kwargs), name=change.__qualname__)
        _running.add(task)
        task.add_done_callback(_ended)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            await asyncio.wait((task,), timeout=CANCEL_LIMIT_S)
            raise
        return task.result()

    return begin


def _ended(task: asyncio.Task[Any]) -> None:
    """Read the task's exception: asyncio would log it as never retrieved when the caller has left."""
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("%s: %r", task.get_name(), error)


class WriteRetrier:
    """Repeats writes until the store can write: for changes that are decided already and must be stored.

    A store that cannot write (StoreWriteError: disk full, file gone, server away) only delays such a change. Any other
    exception is about that one change: a retry would not help, and the caller decides what follows.

    A plain loop: every lease passes here twice, and tenacity took 0.15 ms of each session for a write that succeeds.
    """

    def __init__(self) -> None:
        self._writable = asyncio.Event()

    def on_store_problem(self, failing: bool) -> None:
        """The store cannot write, or can again (`Store.on_problem`)."""
        if not failing:
            self._writable.set()

    async def write(self, write: Callable[[], Awaitable[T]], subject: str) -> T:
        """Call `write` until it does not raise StoreWriteError; returns its value.

        Args:
            write: drafts its own events: while the store cannot write, no event is held back.
            subject: names the change in the log, which gets the first failure as a warning and repeats as debug.
        """
        repeated = False
        while True:
            self._writable.clear()
            try:
                written = await write()
            except StoreWriteError as error:
                level = logging.DEBUG if repeated else logging.WARNING
                logger.log(level, "%s: kept in memory until it can be written: %s", subject, error)
                repeated = True
            else:
                if repeated:
                    logger.info("%s: written", subject)
                return written
            async with at_most(RETRY_S):
                await self._writable.wait()


@dataclass(slots=True, eq=False)
class _BackgroundWrite:
    write: Callable[[], Awaitable[Any]]
    done: Callable[[Any], None]
    refused: Callable[[Exception], None]


class BackgroundWrites:
    """Writes that no caller waits for: one after the other per subject, each repeated until the store can write.

    A subject names the change in the log. One task for each subject that has any.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[_BackgroundWrite]] = {}  # by subject; the first is being written
        self._tasks = BackgroundTasks()
        self._retrier = WriteRetrier()
        self.on_store_problem = self._retrier.on_store_problem

    def add(
        self,
        subject: str,
        write: Callable[[], Awaitable[T]],
        done: Callable[[T], None] = lambda _: None,
        refused: Callable[[Exception], None] | None = None,
    ) -> None:
        """Call `write` after the earlier writes of this subject, then `done` with its value.

        `refused` is called with the error of a write that the store will never take; without it the error is logged.
        """
        entry = _BackgroundWrite(write, done, refused or partial(_log_refused, subject))
        if (queue := self._queues.get(subject)) is not None:
            queue.append(entry)
            return
        queue = self._queues[subject] = deque((entry,))
        self._tasks.spawn(self._write(subject, queue), f"store {subject}")

    def replace(self, subject: str, write: Callable[[], Awaitable[object]]) -> None:
        """`add` in place of the subject's writes that wait: for a `write` that stores the newest state."""
        queue = self._queues.get(subject)
        while queue is not None and len(queue) > 1:
            queue.pop()
        self.add(subject, write)

    async def close(self) -> None:
        """Wait until everything is written, FLUSH_LIMIT_S at most; the rest is given up."""
        if unwritten := await self._tasks.end(FLUSH_LIMIT_S):
            logger.error("not done before the end: %s", ", ".join(sorted(unwritten)))

    async def _write(self, subject: str, queue: deque[_BackgroundWrite]) -> None:
        while queue:
            entry = queue[0]
            try:
                try:
                    value = await self._retrier.write(entry.write, subject)
                except Exception as error:  # noqa: BLE001 - its owner decides
                    entry.refused(error)
                else:
                    entry.done(value)
            except Exception:
                logger.exception("%s: what follows the write failed", subject)
            queue.popleft()
        del self._queues[subject]


def _log_refused(subject: str, error: Exception) -> None:
    log_error(logger, error, "%s: not stored", subject)
