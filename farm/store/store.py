"""What must survive `kill -9`: named statements over the schema, grouped by table. SQLite with WAL by default.

Reads are short and run where they are called; writes go through the one writer thread and return after the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError

from farm.store.artifact_use import ArtifactUse
from farm.store.database import Database
from farm.store.devices import AliasTable, DeviceTable
from farm.store.engine import server_engine, sqlite_engine
from farm.store.event_table import EventTable
from farm.store.jobs import JobTable
from farm.store.leases import LeaseTable
from farm.store.opening import DatabaseUnusableError, begin_epoch, check_file, unusable
from farm.store.settings import ReservationTable, ToolchainTable
from farm.store.writer import Writer


class Store:
    """The open database of one daemon. `epoch` is this start's number."""

    def __init__(self, reading: Engine, writing: Engine, epoch: int) -> None:
        self.epoch = epoch
        self._engine = reading
        self._writer = Writer(writing)
        database = Database(reading, self._writer)
        self.devices = DeviceTable(database)
        self.aliases = AliasTable(database)
        self.jobs = JobTable(database)
        self.leases = LeaseTable(database)
        self.events = EventTable(database)
        self.reservations = ReservationTable(database)
        self.toolchains = ToolchainTable(database)
        self.artifact_use = ArtifactUse(database)

    @classmethod
    def open(cls, where: Path | str) -> Store:
        """Open or create the database and begin a new epoch, durably.

        Args:
            where: the path of a SQLite file, or the URL of a PostgreSQL database (postgresql+psycopg://...).

        Raises:
            DatabaseUnusableError: it is damaged, of a newer farm, or cannot be opened.
        """
        if isinstance(where, str):
            engine = server_engine(where)
            return cls(engine, engine, begin_epoch(engine))
        return _open_file(where)

    def close(self) -> None:
        """Finish what is queued and close the database."""
        self._writer.close()
        self._engine.dispose()

    @property
    def problem(self) -> str:
        """Why nothing can be written now, for a person; empty while all is well."""
        return self._writer.problem

    def on_problem(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` in this event loop: True when writing fails, False when it works again."""
        self._writer.on_problem(callback)


def _open_file(path: Path) -> Store:
    reading = sqlite_engine(path)
    # Fences must never repeat: the commit that counts this start waits for the disk.
    counting = sqlite_engine(path, begin="BEGIN IMMEDIATE", synchronous="FULL")
    try:
        with reading.connect() as connection:
            check_file(connection, path)
        epoch = begin_epoch(counting)
    except DatabaseError as error:
        reading.dispose()
        raise unusable(path, str(error.orig)) from error
    except DatabaseUnusableError:
        reading.dispose()
        raise
    finally:
        counting.dispose()
    return Store(reading, sqlite_engine(path, begin="BEGIN IMMEDIATE"), epoch)
