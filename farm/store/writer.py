"""One thread writes; every caller gets its answer after the commit. Writes that arrive together share one commit.

When the database cannot be written (disk full, file gone, server away) the writer reports it once, lets the reserve
pay for the ends of work under way, refuses everything else at once, and tries by itself until it works again.

A commit whose answer a server's connection lost may have happened. Each transaction writes its number as the last
thing, so that the callers of such a commit can be answered once the server is back: the row of the number is locked
until that transaction has ended, and shows whether it was committed. A number below the latest confirmed one shows that
the database has gone back in time, by a backup or by a standby that lagged; one above its own, that another process has
taken this one's place. Then nothing is written any more (`lost`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import BindParameter, ColumnElement, Connection, Engine, Table, and_, bindparam, select, update
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from farm.common.errors import Code, FarmError, HostError
from farm.common.events import UncommittedEvents
from farm.common.histogram import QUICK_S, Histogram
from farm.store.appended_rows import AppendedRows, append_rows, close_transaction
from farm.store.engine import ROOM_HINT, DatabaseOutage, FileGoneError, outage_of
from farm.store.event_numbers import MAX_OF_ONE_WRITE
from farm.store.reserve import ReserveFile
from farm.store.schema import meta

if TYPE_CHECKING:
    from farm.store.term import Term

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_IN_ONE_COMMIT = 256  # bounds how long the first of a burst waits: 256 small rows take a few milliseconds
ROOM_BYTES = 1 << 20  # free beside the reserve before writing continues
NUMBER = "written"  # in `meta`: of the latest transaction on a server
PROBE_S = 1.0  # between tries to write again: an operator who made room should not wait long
DATATYPE_MISMATCH = "42804"  # of PostgreSQL's error codes


Outcomes = list[tuple[Any, BaseException | None]]


class StoreWriteError(HostError):
    """The database could not be written."""

    code = "store_write_failed"
    reason = ""  # of the outage; "": it is not known


class DatabaseLostError(StoreWriteError):
    """This process may not write to the database any more."""


@dataclass(frozen=True, slots=True)
class QueuedWrite(Generic[T]):
    """One write on its way."""

    statement: Callable[[Connection], T]
    rows: AppendedRows
    last: bool
    done: Future[T]

    def run(self, connection: Connection) -> tuple[Any, BaseException | None]:
        """Value and error of the statement, in its own savepoint, so that its refusal spares the rest of the commit."""
        try:
            with connection.begin_nested():
                value = self.statement(connection)
                append_rows(connection, self.rows)
                return value, None
        except Exception as error:  # noqa: BLE001 - each caller gets its own
            return None, _error_of(error)

    def answer(self, value: Any, error: BaseException | None) -> None:
        """Hand the caller the outcome."""
        if error is None:
            self.done.set_result(value)
        else:
            self.done.set_exception(error)


@dataclass(frozen=True, slots=True)
class UncertainCommit:
    """A transaction whose commit was begun and not confirmed."""

    number: int
    works: Sequence[QueuedWrite[Any]]
    outcomes: Outcomes


class Writer:
    """The writer thread of one engine, which it owns."""

    def __init__(
        self,
        engine: Engine,
        *,
        file: Path | None = None,
        reserve: ReserveFile | None = None,
        epoch: int = 0,
        mark: str = NUMBER,
        term: Term | None = None,
    ) -> None:
        """Begin to write.

        Args:
            engine: connections that may write.
            file: the database's file, which must stay what it is; None on a server.
            reserve: space for the last writes, made now.
            epoch: the number of the start on a server, where transactions are numbered; 0: they are not.
            mark: the row of `meta` with the number of this writer's latest transaction.
            term: each transaction holds it, or writes nothing.
        """
        self._engine = engine
        self._files = {} if file is None else {each: _identity(each) for each in (file, write_ahead_log(file))}
        self._reserve = reserve
        self.commits = Histogram(QUICK_S)  # written by the thread
        self._outage: DatabaseOutage | None = None
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[bool], None]]] = []
        self._listening = threading.Lock()
        self._next_probe_s = 0.0
        self._name, self._next_epoch = mark, (epoch + 1) << 32
        self._number = epoch << 32
        self._confirmed = 0  # the number of the latest transaction that is known to be committed
        self._lost: Future[None] = Future()
        self._term = term
        number: BindParameter[int] = bindparam("number")
        expected = meta.c.name == mark, meta.c.value < number, meta.c.value >= bindparam("confirmed")
        held = () if term is None else (term.condition(),)
        self._mark_row = update(meta).where(*expected, *held).values(value=number)
        self._marked = select(meta.c.value).where(meta.c.name == mark).with_for_update()
        self._read_letters: dict[tuple[Table, str], Sequence[int]] = {}  # ids by mailbox and reader, to be deleted
        self._uncertain: UncertainCommit | None = None
        self._began_s: float | None = None  # the commit under way
        self._work: queue.SimpleQueue[QueuedWrite[Any] | None] = queue.SimpleQueue()
        try:
            if reserve is not None:
                reserve.allocate()
        except OSError as error:
            self._report_outage(DatabaseOutage("the disk is full", ROOM_HINT, evidence=error.strerror or ""))
        self._thread = threading.Thread(target=self._run, name="farm-store", daemon=True)
        self._thread.start()

    async def write(
        self,
        statement: Callable[[Connection], T],
        rows: AppendedRows = (),
        *,
        last: bool = False,
        drafts: UncommittedEvents | None = None,
    ) -> T:
        """Run `statement` in the next commit; returns its value once that commit is durable.

        A caller that is cancelled before the commit begins has written nothing; after that the write stays, and the
        caller waits for it.

        Args:
            statement: what to do with the connection; it may be run a second time after a failure.
            rows: added with it, behind the statements of all writes of the commit.
            last: an end, which the reserve pays for when the disk is full.
            drafts: events of this write, which are settled in every case.

        Raises:
            FarmError: a constraint of the schema refused it; the others of the commit are not affected.
            StoreWriteError: nothing can be written (disk full, file gone).
        """
        done: Future[T] = Future()
        self._work.put(QueuedWrite(statement, rows, last, done))
        try:
            return await _outcome(done)
        finally:
            if drafts is not None:
                drafts.settle(committed=done.done() and not done.cancelled() and done.exception() is None)

    def delete_letters(self, box: Table, reader: str, ids: Sequence[int]) -> None:
        """Have the next commit delete these letters of a reader, in place of those of its earlier call.

        A commit that fails does not delete them, nor does a later one: call again.
        """
        self._read_letters[box, reader] = ids

    def own_mark(self) -> ColumnElement[bool]:
        """On a server: which row of `meta` there is as long as no later start writes under this writer's `mark`."""
        return and_(meta.c.name == self._name, meta.c.value < self._next_epoch)

    @property
    def problem(self) -> str:
        """Why nothing can be written now; empty while all is well."""
        outage = self._outage
        return str(outage) if outage else ""

    def silent_s(self) -> float:
        """How long the thread has been at one commit; forever once it has ended. 0 in a reported outage."""
        if not self._thread.is_alive():
            return math.inf
        began_s = self._began_s
        return 0.0 if began_s is None or self._outage else time.monotonic() - began_s

    def on_problem(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` in this event loop: True when writing fails (at once if it does now), False when it works."""
        with self._listening:
            self._listeners.append((asyncio.get_running_loop(), callback))
            if self._outage:
                callback(True)

    async def lost(self) -> None:
        """Wait until this process may not write any more.

        Raises:
            DatabaseLostError: it may not.
        """
        await asyncio.wrap_future(self._lost)

    def close(self) -> None:
        """Finish queued writes and end the thread."""
        self._work.put(None)
        self._thread.join()
        self._engine.dispose()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                first = self._work.get(timeout=PROBE_S if self._outage else None)
            except queue.Empty:
                self._probe()
                continue
            batch, more = self._gather(first)
            if batch:
                self._began_s = time.monotonic()
                self._commit(batch)
                self._began_s = None
            if not more:
                if self._uncertain:
                    self._probe()
                if self._uncertain:
                    self._answer_uncertain(committed=False)
                return
            if self._outage and time.monotonic() >= self._next_probe_s:
                self._probe()

    def _gather(self, first: QueuedWrite[Any] | None) -> tuple[list[QueuedWrite[Any]], bool]:
        """The writes queued now, up to one commit's worth, and whether more may come."""
        batch: list[QueuedWrite[Any]] = []
        work, rows = first, 0
        while work is not None:
            batch.append(work)
            rows += len(work.rows)
            if len(batch) == MAX_IN_ONE_COMMIT or rows >= MAX_OF_ONE_WRITE:  # events need numbers
                return batch, True
            try:
                work = self._work.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _commit(self, batch: Sequence[QueuedWrite[Any]]) -> None:
        """Commit the writes that no caller has withdrawn; all callers are answered and the thread continues, always."""
        wanted = [work for work in batch if work.done.set_running_or_notify_cancel()]
        if self._outage:
            wanted = self._refuse_all_but_last(wanted)
        try:
            if self._uncertain:
                for work in wanted:
                    work.answer(None, self._refusal())
                return
            if wanted and self._transaction(wanted):
                return
            if any(work.last for work in wanted) and self._reserve is not None and self._reserve.release():
                wanted = self._refuse_all_but_last(wanted)
                if self._transaction(wanted):
                    return
            for work in wanted:
                work.answer(None, self._refusal())
        except Exception as error:
            logger.exception("the database could not be written")
            for work in wanted:  # each gets an error of its own: an exception carries the trace of its raiser
                work.answer(None, _not_written(f"{type(error).__name__}: {error}"))

    def _refuse_all_but_last(self, works: Sequence[QueuedWrite[Any]]) -> list[QueuedWrite[Any]]:
        for work in works:
            if not work.last:
                work.answer(None, self._refusal())
        return [work for work in works if work.last]

    def _transaction(self, wanted: Sequence[QueuedWrite[Any]]) -> bool:
        """Commit these and answer them, now or when it is known; False: nothing is written, no caller was answered."""
        committing: Outcomes = []  # once only the commit is left
        try:
            begun_s = time.monotonic()
            self._check_files()
            with self._engine.connect() as connection:
                outcomes = self._run_together(connection, wanted, committing)
            self.commits.observe(time.monotonic() - begun_s)
        except DatabaseLostError as error:
            if not self._lost.done() and self._lost.set_running_or_notify_cancel():
                self._lost.set_exception(copy(error))
            outcomes = [(None, copy(error)) for _ in wanted]
        except Exception as error:
            outage = outage_of(error)
            if outage is None:
                raise
            if not committing:
                self._report_outage(outage)
                return False
            self._uncertain = UncertainCommit(self._number, wanted, committing)
            self._report_outage(outage)
            return True
        for work, outcome in zip(wanted, outcomes, strict=True):
            work.answer(*outcome)
        return True

    def _run_together(
        self, connection: Connection, works: Sequence[QueuedWrite[Any]], committing: Outcomes
    ) -> Outcomes:
        """One transaction of these, without savepoints, which cost two statements each; with them if one is refused."""
        rows = [row for work in works for row in work.rows]
        read = self._take_read_letters()
        try:
            with connection.begin():
                outcomes: Outcomes = [(work.statement(connection), None) for work in works]
                self._close(connection, committing, outcomes, rows, read)
            self._confirmed = self._number
            return outcomes
        except Exception as error:
            if committing or isinstance(error, DatabaseLostError):
                raise
            refused = _error_of(error)
            if len(works) == 1 and not read:
                if self._term is not None:  # if it is over, rows of the next term may be what the database refused
                    with connection.begin():
                        self._term.check(connection)
                return [(None, copy(refused)) for _ in works]  # an exception carries the trace of its raiser
        with connection.begin():
            outcomes = [work.run(connection) for work in works]
            self._close(connection, committing, outcomes)
        self._confirmed = self._number
        return outcomes

    def _take_read_letters(self) -> Mapping[Table, Sequence[int]]:
        """The ids of letters that the next commit deletes, by mailbox."""
        read: defaultdict[Table, list[int]] = defaultdict(list)
        while self._read_letters:
            (box, _), ids = self._read_letters.popitem()
            read[box] += ids
        return read

    def _close(
        self,
        connection: Connection,
        committing: Outcomes,
        outcomes: Outcomes,
        rows: AppendedRows = (),
        read: Mapping[Table, Sequence[int]] = {},
    ) -> None:
        """Append rows; on a server also delete letters and number the transaction, of which only the commit is left.

        Raises:
            DatabaseLostError: the latest confirmed one is missing, the term is over, or a later start has written.
        """
        if not self._number:
            append_rows(connection, rows)
            return
        self._number += 1
        known = {"number": self._number, "confirmed": self._confirmed}
        if not close_transaction(connection, self._mark_row, known, rows, read):
            raise self._why_lost(connection)
        committing += outcomes

    def _why_lost(self, connection: Connection) -> DatabaseLostError:
        number = connection.execute(self._marked).scalar_one_or_none()
        if number is None or number < self._confirmed:
            return DatabaseLostError(
                "The database has gone back in time: it lacks changes that it had confirmed.",
                hint="it was restored, or a standby promoted that lagged; start farm again",
            )
        if self._term is not None:
            try:
                self._term.check(connection)
            except DatabaseLostError as error:
                return error
        return DatabaseLostError(
            "Another daemon has begun under this one's name, while this one was cut off.",
            Code.NAME_TAKEN,
            hint='stop one of the two, or give it a name of its own: [lab] host = "..."',
        )

    def _answer_uncertain(self, *, committed: bool) -> None:
        """Answer the callers of an unconfirmed commit."""
        assert self._uncertain is not None
        if committed:
            self._confirmed = self._uncertain.number
        for work, outcome in zip(self._uncertain.works, self._uncertain.outcomes, strict=True):
            work.answer(*outcome if committed else (None, self._refusal()))
        self._uncertain = None

    def _check_files(self) -> None:
        """Look before each commit: on Linux a removed file can be written forever, and all of it is lost.

        SQLite creates the write-ahead log when it first needs it: its identity is taken when it is first seen.
        """
        for file, known in self._files.items():
            found = _identity(file)
            if known is None:
                self._files[file] = found
            elif found != known:
                raise FileGoneError(f"{file} is not the file that was opened")

    def _check_room(self) -> None:
        """The one page of a probe always fits into the log's old blocks: look at the disk too, or outages alternate."""
        for file in self._files:
            disk = os.statvfs(file.parent)
            if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _report_outage(self, outage: DatabaseOutage) -> None:
        self._next_probe_s = time.monotonic() + PROBE_S
        if self._outage is None or self._outage.reason != outage.reason:
            logger.error("%s; evidence: %s", outage, outage.evidence)
        with self._listening:
            new = self._outage is None
            self._outage = outage
            if new:
                self._notify()

    def _probe(self) -> None:
        """Try to write, with the reserve in its place; all is well when that works."""
        try:
            self._check_files()
            if self._reserve is not None:
                self._reserve.allocate()
            self._check_room()
            with self._engine.begin() as connection:
                connection.execute(update(meta).where(meta.c.name == "serving").values(value=meta.c.value))
                written = connection.execute(self._marked).scalar_one_or_none() if self._uncertain else None
            if self._uncertain:
                self._answer_uncertain(committed=written == self._uncertain.number)
        except Exception:  # in every case the thread lives on: all callers would wait forever
            self._next_probe_s = time.monotonic() + PROBE_S
            logger.debug("the database can still not be written", exc_info=True)
            return
        logger.info("the database can be written again")
        with self._listening:
            self._outage = None
            self._notify()

    def _notify(self) -> None:
        for loop, callback in self._listeners:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(callback, self._outage is not None)

    def _refusal(self) -> StoreWriteError:
        outage = self._outage
        assert outage is not None
        error = StoreWriteError(
            f"the database cannot be written: {outage.reason}; nothing of this change was kept",
            hint=outage.hint,
            evidence=outage.evidence,
        )
        error.reason = outage.reason
        return error


async def _outcome(done: Future[T]) -> T:
    """Wait for a write. Cancelling withdraws it while its commit has not begun, else waits for the commit's end."""
    loop = asyncio.get_running_loop()
    settled = asyncio.Event()  # of this loop; a wrapped and shielded future takes two turns of it more

    def settle(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # that loop is closed
            loop.call_soon_threadsafe(settled.set)

    done.add_done_callback(settle)
    try:
        await settled.wait()
    except asyncio.CancelledError:
        if not done.cancel():
            while not done.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await settled.wait()
        raise
    return done.result()


def _error_of(error: Exception) -> Exception:
    """The error for the caller of one write; raises an error of the disk, the file or the server."""
    if not isinstance(error, StatementError):
        if outage_of(error) is not None:
            raise error
        return error
    if _is_unfit(error) or isinstance(error, IntegrityError | DataError):  # DataError: too large, or of another form
        return FarmError(f"the database refused a write: {error.orig}", Code.STORE_CONFLICT)
    if outage_of(error) is not None:
        raise error
    return _not_written(str(error.orig))


def _is_unfit(error: StatementError) -> bool:
    """Whether a value is of a type that its column does not take, as SQLAlchemy, SQLite or PostgreSQL tells it."""
    if not isinstance(error, DBAPIError):
        return True
    return "binding parameter" in str(error.orig) or getattr(error.orig, "sqlstate", "") == DATATYPE_MISMATCH


def _not_written(evidence: str) -> StoreWriteError:
    return StoreWriteError(
        "the database could not be written; nothing of this change was kept",
        hint="the daemon's log has more; see `farm doctor`",
        evidence=evidence,
    )


def write_ahead_log(file: Path) -> Path:
    """SQLite's file of changes that are not in the database's file yet."""
    return file.with_name(f"{file.name}-wal")


def _identity(file: Path) -> tuple[int, int] | None:
    """Which file stands at that path; None when there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
