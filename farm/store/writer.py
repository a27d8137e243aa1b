"""One thread writes; whoever waits gets its answer after the commit. Writes that arrive together share one commit.

When the database cannot be written (disk full, file gone, server away) the writer says so once, lets the reserve pay
for the ends of what was under way, refuses everything else at once, and tries by itself until it works again.
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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Connection, Engine, update
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError

from farm.core.errors import FarmError, HostError
from farm.core.histogram import QUICK_S, Histogram
from farm.store.reserve import Reserve
from farm.store.schema import meta
from farm.store.trouble import ROOM_HINT, FileGoneError, Trouble, trouble_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
Statement = Callable[[Connection], Any]

MOST_IN_ONE_COMMIT = 256  # bounds how long the first of a burst waits: 256 small rows take a few milliseconds
ROOM_BYTES = 1 << 20  # free beside the reserve before writing goes on
PROBE_S = 1.0  # between tries to write again: an operator who made room should not wait long


class StoreWriteError(HostError):
    """The database could not be written."""

    code = "store_write"


class StoreConflictError(FarmError):
    """The database refused a write that would break one of its rules. Trying again will not help."""

    code = "store_conflict"


class Settled(Protocol):
    """Hears what became of a write."""

    def __call__(self, *, committed: bool) -> None:
        """Committed or not."""


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """One write on its way."""

    statement: Callable[[Connection], T]
    last: bool
    done: Future[T]


Outcome = tuple[Any, BaseException | None]


class Writer:
    """The writer thread of one engine, which it owns."""

    def __init__(self, engine: Engine, *, file: Path | None = None, reserve: Reserve | None = None) -> None:
        """Begin to write.

        Args:
            engine: connections that may write.
            file: the database's file, which must stay what it is; None on a server.
            reserve: space for the last writes, made now.
        """
        self._engine = engine
        self._files = {} if file is None else {each: _identity(each) for each in (file, write_ahead_log(file))}
        self._reserve = reserve
        self.commits = Histogram(QUICK_S)  # written by the thread
        self._trouble: Trouble | None = None
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[bool], None]]] = []
        self._listening = threading.Lock()
        self._next_probe_s = 0.0
        self._began_s: float | None = None  # the commit under way
        self._work: queue.SimpleQueue[Work[Any] | None] = queue.SimpleQueue()
        try:
            if reserve is not None:
                reserve.make()
        except OSError as error:
            self._falter(Trouble("the disk is full", ROOM_HINT, error.strerror or ""))
        self._thread = threading.Thread(target=self._run, name="farm-store", daemon=True)
        self._thread.start()

    async def write(
        self, statement: Callable[[Connection], T], *, last: bool = False, settled: Settled | None = None
    ) -> T:
        """Run `statement` in the next commit; returns its value once that commit is durable.

        Whoever is cancelled before the commit begins has written nothing; after that the write stays, and is waited
        for: `settled` hears what became of it in every case.

        Args:
            statement: what to do with the connection; it may be run a second time after a failure.
            last: an end, which the reserve pays for when the disk is full.
            settled: told, in the caller's thread, whether it was committed.

        Raises:
            StoreConflictError: a constraint of the schema refused it; the others of the commit are not affected.
            StoreWriteError: nothing can be written (disk full, file gone).
        """
        done: Future[T] = Future()
        self._work.put(Work(statement, last, done))
        try:
            return await _outcome(done)
        finally:
            if settled is not None:
                settled(committed=done.done() and not done.cancelled() and done.exception() is None)

    @property
    def problem(self) -> str:
        """Why nothing can be written now; empty while all is well."""
        trouble = self._trouble
        return str(trouble) if trouble else ""

    def silent_s(self) -> float:
        """How long the thread has been at one commit; for ever once it has ended. 0 in a trouble that is told."""
        if not self._thread.is_alive():
            return math.inf
        began_s = self._began_s
        return 0.0 if began_s is None or self._trouble else time.monotonic() - began_s

    def on_problem(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` in this event loop: True when writing fails (at once if it does now), False when it works."""
        with self._listening:
            self._listeners.append((asyncio.get_running_loop(), callback))
            if self._trouble:
                callback(True)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._work.put(None)
        self._thread.join()
        self._engine.dispose()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                first = self._work.get(timeout=PROBE_S if self._trouble else None)
            except queue.Empty:
                self._probe()
                continue
            batch, more = self._gather(first)
            if batch:
                self._began_s = time.monotonic()
                self._commit(batch)
                self._began_s = None
            if not more:
                return
            if self._trouble and time.monotonic() >= self._next_probe_s:
                self._probe()

    def _gather(self, first: Work[Any] | None) -> tuple[list[Work[Any]], bool]:
        """What is queued now, up to one commit's worth, and whether more may come."""
        batch: list[Work[Any]] = []
        work = first
        while work is not None:
            batch.append(work)
            if len(batch) == MOST_IN_ONE_COMMIT:
                return batch, True
            try:
                work = self._work.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _commit(self, batch: Sequence[Work[Any]]) -> None:
        """Commit what is still wanted; whatever happens, everybody is answered and the thread lives on."""
        wanted = [work for work in batch if work.done.set_running_or_notify_cancel()]
        if self._trouble:
            _answer_all([work for work in wanted if not work.last], self._refusal)
            wanted = [work for work in wanted if work.last]
        try:
            if wanted and self._transaction(wanted):
                return
            if any(work.last for work in wanted) and self._reserve is not None and self._reserve.spend():
                _answer_all([work for work in wanted if not work.last], self._refusal)
                wanted = [work for work in wanted if work.last]
                if not wanted or self._transaction(wanted):
                    return
            _answer_all(wanted, self._refusal)
        except Exception as error:
            logger.exception("the database could not be written")
            said = f"{type(error).__name__}: {error}"
            _answer_all(wanted, lambda: _not_written(said))

    def _transaction(self, wanted: Sequence[Work[Any]]) -> bool:
        """Commit these and answer them; False: the database cannot be written, nobody was answered."""
        try:
            begun_s = time.monotonic()
            self._still_there()
            with self._engine.begin() as connection:
                outcomes = [_attempt(connection, work.statement) for work in wanted]
            self.commits.observe(time.monotonic() - begun_s)
        except Exception as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            self._falter(trouble)
            return False
        for work, outcome in zip(wanted, outcomes, strict=True):
            _answer(work, outcome)
        return True

    def _still_there(self) -> None:
        """On Linux a removed file can be written for ever, and all of it is lost: look before each commit.

        SQLite makes the write-ahead log anew in a moment of its own: it is known from when it is first seen.
        """
        for file, known in self._files.items():
            found = _identity(file)
            if known is None:
                self._files[file] = found
            elif found != known:
                raise FileGoneError(f"{file} is not the file that was opened")

    def _room(self) -> None:
        """The one page of a probe always fits into the log's old blocks: look at the disk, or the news alternate."""
        for file in self._files:
            disk = os.statvfs(file.parent)
            if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _falter(self, trouble: Trouble) -> None:
        self._next_probe_s = time.monotonic() + PROBE_S
        if self._trouble is None or self._trouble.reason != trouble.reason:
            logger.error("%s; said: %s", trouble, trouble.evidence)
        with self._listening:
            news = self._trouble is None
            self._trouble = trouble
            if news:
                self._tell()

    def _probe(self) -> None:
        """Try to write, with the reserve in its place; all is well when that works."""
        try:
            self._still_there()
            if self._reserve is not None:
                self._reserve.make()
            self._room()
            with self._engine.begin() as connection:
                connection.execute(update(meta).where(meta.c.name == "epoch").values(value=meta.c.value))
        except Exception:  # whatever it is, the thread lives on: everybody would wait for ever
            self._next_probe_s = time.monotonic() + PROBE_S
            logger.debug("the database can still not be written", exc_info=True)
            return
        logger.info("the database can be written again")
        with self._listening:
            self._trouble = None
            self._tell()

    def _tell(self) -> None:
        for loop, callback in self._listeners:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody is left to hear it
                loop.call_soon_threadsafe(callback, self._trouble is not None)

    def _refusal(self) -> StoreWriteError:
        trouble = self._trouble
        assert trouble is not None
        return StoreWriteError(
            f"the database cannot be written: {trouble.reason}; nothing of this change was kept",
            hint=trouble.hint,
            evidence=trouble.evidence,
        )


async def _outcome(done: Future[T]) -> T:
    """Wait for a write. Cancelling withdraws it while its commit has not begun, else waits for the commit's end."""
    waited = asyncio.wrap_future(done)
    try:
        return await asyncio.shield(waited)
    except asyncio.CancelledError:
        if not done.cancel():
            while not done.done():
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await asyncio.shield(waited)
        raise
    finally:
        waited.add_done_callback(_looked_at)


def _looked_at(waited: asyncio.Future[T]) -> None:
    """An outcome that nobody waits for any more is no news."""
    if not waited.cancelled():
        waited.exception()


def _attempt(connection: Connection, statement: Statement) -> Outcome:
    """Run one statement in its own savepoint, so that its refusal spares the others of the commit."""
    try:
        with connection.begin_nested():
            return statement(connection), None
    except (IntegrityError, DataError) as error:  # DataError: a value that is too large or of no form it knows
        return None, StoreConflictError(f"the database refused a write: {error.orig}")
    except Exception as error:
        if trouble_of(error) is not None:
            raise  # the disk or the file: the others of the commit would fail too
        return None, _not_written(str(error.orig)) if isinstance(error, DatabaseError) else error


def _answer(work: Work[Any], outcome: Outcome) -> None:
    value, problem = outcome
    if problem is None:
        work.done.set_result(value)
    else:
        work.done.set_exception(problem)


def _answer_all(works: Sequence[Work[Any]], problem: Callable[[], StoreWriteError]) -> None:
    for work in works:
        _answer(work, (None, problem()))  # each its own: an exception carries the trace of whoever raises it


def _not_written(evidence: str) -> StoreWriteError:
    return StoreWriteError(
        "the database could not be written; nothing of this change was kept",
        hint="the daemon's log has more; see `farm doctor`",
        evidence=evidence,
    )


def write_ahead_log(file: Path) -> Path:
    """Where SQLite keeps what is not in the database's file yet."""
    return file.with_name(f"{file.name}-wal")


def _identity(file: Path) -> tuple[int, int] | None:
    """Which file stands at that path; None when there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
