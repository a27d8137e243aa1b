"""The store: everything that must survive `kill -9`, as named statements grouped by table. SQLite with WAL by default.

Reads are short and run where they are called, the event loop's through `read` or `in_thread`; writes go through the one
writer thread and return after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from farm.store.accounts import AccountTable, AuditTable
from farm.store.artifact_copies import ArtifactCopies
from farm.store.artifacts import ArtifactReferences, PoisonTable, RecordSets
from farm.store.builders import BuilderRecords
from farm.store.database import Database
from farm.store.devices import AliasTable, BatteryTable, DeviceTable, RecoveryTable, RolloutTable
from farm.store.event_history import EventTable
from farm.store.jobs import JobSearch, JobTable, ToolchainTable
from farm.store.lab_table import LabTable
from farm.store.leases import LeaseTable, ReservationTable
from farm.store.mailbox import Mailbox
from farm.store.measurements import MeasurementTable
from farm.store.opening import OpenDatabase, open_file
from farm.store.reserve import ReserveFile
from farm.store.server_facts import ServerWatch
from farm.store.server_opening import StoreRole, mark_of, open_server
from farm.store.shared_bundles import SharedBundleTable
from farm.store.writer import NUMBER, Writer


class Store:
    """The open database of one daemon. `epoch` is this start's number."""

    def __init__(self, opened: OpenDatabase, writer: Writer, path: Path | None, host: str) -> None:
        self.epoch = opened.epoch
        self.path = path  # of the SQLite file; None on a server
        self.term = opened.term
        self.database = database = Database(opened.reading, writer, opened.term)
        self.read, self.in_thread = database.read, database.in_thread
        self.devices = DeviceTable(database, host)
        self.aliases = AliasTable(database)
        self.jobs = JobTable(database)
        self.job_search = JobSearch(database)
        self.leases = LeaseTable(database)
        self.measurements = MeasurementTable(database)
        self.events = EventTable(database)
        self.mailbox = Mailbox(database)
        self.lab = LabTable(database)
        self.reservations = ReservationTable(database)
        self.toolchains = ToolchainTable(database)
        self.poison = PoisonTable(database)
        self.record_sets = RecordSets(database)
        self.artifact_use = ArtifactReferences(database)
        self.artifact_copies = ArtifactCopies(database)
        self.builders = BuilderRecords(database)
        self.shared_bundles = SharedBundleTable(database)
        self.recoveries = RecoveryTable(database, host)
        self.batteries = BatteryTable(database, host)
        self.rollouts = RolloutTable(database, host)
        self.accounts = AccountTable(database)
        self.audit = AuditTable(database)
        self.server = None if opened.facts is None else ServerWatch(database, opened.notes, opened.facts)
        self._close = opened.close

    @classmethod
    def open(
        cls,
        where: Path | str,
        host: str = "",
        *,
        state_dir: Path | None = None,
        role: StoreRole = StoreRole.HEAD,
        protocols: Collection[int] | None = None,
    ) -> Store:
        """Open or create the database and begin a new epoch, durably.

        Args:
            where: the path of a SQLite file, or the URL of a PostgreSQL database (postgresql://...).
            host: whose phones it is about; "" is the only host of a database.
            state_dir: a host's state folder, which remembers the starts with a server's database.
            role: of this process, with a server's database.
            protocols: those between hosts and head that this release understands; None: any.

        Raises:
            TermHeldError: another head has the term, and this is to be the head.
            HostError: it is damaged, of another farm release, in use, or cannot be opened.
        """
        if isinstance(where, str):
            opened = open_server(where, role, host, state_dir, protocols)
            mark = mark_of(host) if role is StoreRole.HOST else NUMBER
            writer = Writer(opened.writing, epoch=opened.epoch, mark=mark, term=opened.term)
            return cls(opened, writer, None, host)
        reserve = ReserveFile(where.with_name(f"{where.name}.reserve"))
        opened = open_file(where, reserve, host)
        return cls(opened, Writer(opened.writing, file=where, reserve=reserve), where, host)

    def now(self) -> datetime:
        """The time to write down. Hosts and heads of a lab share the database's: the clock of one may be wrong."""
        return datetime.now(UTC) if self.server is None else self.server.now()

    def close(self) -> None:
        """Finish queued writes and close the database."""
        self.database.close()
        self._close()

    @property
    def problem(self) -> str:
        """Why nothing can be written now, as a message; empty while writing works."""
        return self.database.writer.problem

    def on_problem(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` in this event loop: True when writing fails, False when it works again."""
        self.database.writer.on_problem(callback)
