"""One thread writes; whoever waits gets its answer after the commit. Writes that arrive together share one commit."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError, IntegrityError

from farm.core.errors import FarmError, HostError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Statement = Callable[[Connection], Any]

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
        self._work: queue.SimpleQueue[tuple[Statement, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="farm-store", daemon=True)
        self._thread.start()

    async def write(self, statement: Callable[[Connection], T]) -> T:
        """Run `statement` in the next commit; returns its value once that commit is durable.

        Whoever is cancelled before the commit begins has written nothing; after that the write stays.

        Raises:
            StoreConflictError: a constraint of the schema refused it; the others of the commit are not affected.
            StoreWriteError: nothing could be written (disk full, file gone).
        """
        done: Future[T] = Future()
        self._work.put((statement, done))
        return await asyncio.wrap_future(done)

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
