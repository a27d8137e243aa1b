"""What must survive `kill -9`: named statements over the schema, grouped by table. SQLite with WAL by default.

Reads are short and run where they are called; writes go through the one writer thread and return after the commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.exc import DatabaseError

from farm.store.accounts import AccountTable
from farm.store.artifact_use import ArtifactUse
from farm.store.audit import AuditTable
from farm.store.batteries import BatteryTable
from farm.store.database import Database
from farm.store.devices import AliasTable, DeviceTable
from farm.store.event_table import EventTable
from farm.store.job_search import JobSearch
from farm.store.jobs import JobTable
from farm.store.leases import LeaseTable
from farm.store.measurements import MeasurementTable
from farm.store.opening import note_end, open_file
from farm.store.poison import PoisonTable
from farm.store.record_sets import RecordSets
from farm.store.recoveries import RecoveryTable
from farm.store.reserve import Reserve
from farm.store.server import Server
from farm.store.settings import ReservationTable, ToolchainTable
from farm.store.writer import Writer


class Store:
    """The open database of one daemon. `epoch` is this start's number."""

    def __init__(self, database: Database, epoch: int, *, path: Path | None, close: Callable[[], None]) -> None:
        self.epoch = epoch
        self.path = path  # of the SQLite file; None on a server
        self.database = database
        self.devices = DeviceTable(database)
        self.aliases = AliasTable(database)
        self.jobs = JobTable(database)
        self.job_search = JobSearch(database)
        self.leases = LeaseTable(database)
        self.measurements = MeasurementTable(database)
        self.events = EventTable(database)
        self.reservations = ReservationTable(database)
        self.toolchains = ToolchainTable(database)
        self.poison = PoisonTable(database)
        self.record_sets = RecordSets(database)
        self.artifact_use = ArtifactUse(database)
        self.recoveries = RecoveryTable(database)
        self.batteries = BatteryTable(database)
        self.accounts = AccountTable(database)
        self.audit = AuditTable(database)
        self._close = close

    @classmethod
    def open(cls, where: Path | str) -> Store:
        """Open or create the database and begin a new epoch, durably.

        Args:
            where: the path of a SQLite file, or the URL of a PostgreSQL database (postgresql+psycopg://...).

        Raises:
            DatabaseUnusableError: it is damaged, of a newer farm, in use, or cannot be opened.
        """
        if isinstance(where, str):
            server = Server(where)
            return cls(Database(server.engine, Writer(server.engine)), server.epoch, path=None, close=server.close)
        reserve = Reserve(where.with_name(f"{where.name}.reserve"))
        opened = open_file(where, reserve)
        writer = Writer(opened.writing, file=where, reserve=reserve)

        def close() -> None:
            with contextlib.suppress(DatabaseError):  # then the next start says that this one did not end well
                note_end(opened.reading)
            opened.reading.dispose()

        return cls(Database(opened.reading, writer), opened.epoch, path=where, close=close)

    def close(self) -> None:
        """Finish what is queued and close the database."""
        self.database.writer.close()
        self._close()

    @property
    def problem(self) -> str:
        """Why nothing can be written now, for a person; empty while all is well."""
        return self.database.writer.problem

    def on_problem(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` in this event loop: True when writing fails, False when it works again."""
        self.database.writer.on_problem(callback)
