"""The term of the head of a lab: who may grant, in whatever state the other heads are.

The term is the number of the start (`meta.epoch`), above every one before, and the upper part of every fence. It holds
until a time by the server's clock (`meta.until`), which a thread moves on. A waiting head takes the next term when that
time is over: the one before was stopped, lost its network or died. Each writing transaction locks the row of its own
term: a head that wakes up later finds another term there, and writes nothing. No session lock: one whose holder was
cut off or stopped is held on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import Future

from sqlalchemy import ColumnElement, Connection, Engine, exists, select
from sqlalchemy import text as sql
from sqlalchemy.exc import SQLAlchemyError

from farm.common.errors import Code
from farm.store.schema import meta
from farm.store.writer import DatabaseLostError

TERM_S = 5.0  # how long a term holds without its head
RENEWED_EVERY_S = 1.5
IDLE_LIMIT_MS = "2000"  # of a transaction that holds the term, if its process was stopped: it holds up the next term

_REST = sql(
    "SELECT value, value - extract(epoch FROM clock_timestamp()) * 1000 FROM meta WHERE name = 'until' AND value > 0"
)
_TAKE = sql(
    "INSERT INTO meta (name, value) "
    "VALUES ('until', (extract(epoch FROM clock_timestamp()) * 1000)::bigint + :lasts_ms) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_RENEW = sql(
    "WITH mine AS (SELECT 1 FROM meta WHERE name = 'epoch' AND value = :term FOR SHARE) UPDATE meta "
    "SET value = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + :lasts_ms "
    "WHERE name = 'until' AND EXISTS (SELECT 1 FROM mine)"
)
_NUMBER = sql("SELECT value FROM meta WHERE name = 'epoch'")
_HOLD = sql(
    "SELECT set_config('idle_in_transaction_session_timeout', :idle_ms, true) FROM meta "
    "WHERE name = 'epoch' AND value = :term FOR SHARE"
)

logger = logging.getLogger(__name__)


def rest_of_term(connection: Connection) -> tuple[int, float]:
    """Until when the present term holds, ms since 1970, and how long that is from now, seconds; zeros without one."""
    row = connection.execute(_REST).first()
    return (0, 0.0) if row is None else (int(row[0]), float(row[1]) / 1000)


def take_term(connection: Connection) -> None:
    """The term that this transaction has counted begins."""
    connection.execute(_TAKE, {"lasts_ms": int(TERM_S * 1000)})


class Term:
    """A head's own term, which a thread renews."""

    def __init__(self, engine: Engine, number: int) -> None:
        self.number = number
        self._engine = engine
        self._lost: Future[None] = Future()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farm-term", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The next head need not wait."""
        self._stop.set()
        self._thread.join()
        try:
            self._renew(0.0)
        except SQLAlchemyError as error:
            logger.info("the term of the database was not ended: %s", error)

    def condition(self) -> ColumnElement[bool]:
        """The condition of a statement that writes only in this term, and keeps the term until its transaction ends."""
        mine = select(meta.c.value).where(meta.c.name == "epoch", meta.c.value == self.number)
        return exists(select(mine.with_for_update(read=True).cte("term")))

    def check(self, connection: Connection) -> None:
        """Raises DatabaseLostError if the term is over."""
        if connection.execute(_NUMBER).scalar_one_or_none() != self.number:
            raise _over()

    def hold(self, connection: Connection) -> None:
        """Keep the term until this transaction ends.

        Raises:
            HostError: it is over; another head has the next one.
        """
        if connection.execute(_HOLD, {"term": self.number, "idle_ms": IDLE_LIMIT_MS}).first() is None:
            raise _over()

    async def lost(self) -> None:
        """Wait until another head has taken the next term.

        Raises:
            HostError: it has.
        """
        await asyncio.wrap_future(self._lost)

    def _renew(self, lasts_s: float) -> bool:
        # One statement and no transaction that a stopped process would leave open.
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            renewed = connection.execute(_RENEW, {"term": self.number, "lasts_ms": int(lasts_s * 1000)})
            return renewed.rowcount == 1

    def _run(self) -> None:
        while not self._stop.wait(RENEWED_EVERY_S):
            try:
                kept = self._renew(TERM_S)
            except SQLAlchemyError as error:  # the server is away: the writer says so, and `hold` what holds after that
                logger.debug("the term of the database was not renewed: %s", error)
                continue
            if not kept:
                over = self._why()
                logger.error("%s", over.message)
                if self._lost.set_running_or_notify_cancel():
                    self._lost.set_exception(over)
                return

    def _why(self) -> DatabaseLostError:
        with contextlib.suppress(SQLAlchemyError), self._engine.connect() as connection:
            stored = connection.execute(_NUMBER).scalar_one_or_none()
            if stored is None or stored < self.number:
                return DatabaseLostError(
                    f"the database has gone back in time: its latest start is number {stored or 0}, this one "
                    f"{self.number}",
                    Code.DATABASE_UNUSABLE,
                    hint="was it restored, or a standby promoted that lagged? start farm again: as a higher number",
                )
        return _over()


def _over() -> DatabaseLostError:
    return DatabaseLostError(
        "another head has taken over the database",
        Code.DATABASE_UNUSABLE,
        hint="this one was stopped or cut off for some seconds; end one of the two, or give it a database of its own",
    )
