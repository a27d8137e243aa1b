"""One thread writes; whoever waits gets its answer after the commit. Writes that arrive together share one commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError, IntegrityError

from farm.core.errors import FarmError, HostError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Statement = Callable[[Connection], Any]


class Settled(Protocol):
    """Hears what became of a write."""

    def __call__(self, *, committed: bool) -> None:
        """Committed or not."""


MOST_IN_ONE_COMMIT = 256  # bounds how long the first of a burst waits: 256 small rows take a few milliseconds


class StoreWriteError(HostError):
    """The database could not be written."""

    code = "store_write"


class StoreConflictError(FarmError):
    """The database refused a write that would break one of its rules."""

    code = "store_conflict"


class Writer:
    """The writer thread of one engine, which it owns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.problem = ""
        self._work: queue.SimpleQueue[tuple[Statement, Future[Any]] | None] = queue.SimpleQueue()
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
            StoreWriteError: nothing could be written (disk full, file gone).
        """
        done: Future[T] = Future()
        self._work.put((statement, done))
        try:
            value = await _outcome(done)
        finally:
            if settled is not None:
                settled(committed=done.done() and not done.cancelled() and done.exception() is None)
        return value

    def on_problem(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` in this event loop: True when writing fails, False when it works again."""

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._work.put(None)
        self._thread.join()
        self._engine.dispose()

    def _run(self) -> None:
        while (first := self._work.get()) is not None:
            batch = [first]
            last = False
            while len(batch) < MOST_IN_ONE_COMMIT and not last:
                try:
                    more = self._work.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                else:
                    batch.append(more)
            self._commit(batch)
            if last:
                return

    def _commit(self, batch: list[tuple[Statement, Future[Any]]]) -> None:
        """Commit what is still wanted; whatever happens, everybody is answered and the thread lives on."""
        wanted = [(statement, done) for statement, done in batch if done.set_running_or_notify_cancel()]
        try:
            with self._engine.begin() as connection:
                outcomes = [_attempt(connection, statement) for statement, _ in wanted]
        except DatabaseError as error:
            outcomes = [(None, _not_written(str(error.orig)))] * len(wanted)
        except Exception as error:
            logger.exception("the database could not be written")
            outcomes = [(None, _not_written(f"{type(error).__name__}: {error}"))] * len(wanted)
        for (_, done), (value, problem) in zip(wanted, outcomes, strict=True):
            if problem is None:
                done.set_result(value)
            else:
                done.set_exception(problem)


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


def _not_written(evidence: str) -> StoreWriteError:
    return StoreWriteError(
        "the database could not be written; nothing of this change was kept",
        hint="free disk space, or see `farm doctor`",
        evidence=evidence,
    )


def _attempt(connection: Connection, statement: Statement) -> tuple[Any, Exception | None]:
    """Run one statement in its own savepoint, so that its refusal spares the others of the commit."""
    try:
        with connection.begin_nested():
            return statement(connection), None
    except IntegrityError as error:
        return None, StoreConflictError(f"the database refused a write: {error.orig}")
    except DatabaseError:
        raise  # the disk or the file: the others of the commit would fail too
    except Exception as error:  # noqa: BLE001 (handed to the caller it belongs to)
        return None, error
