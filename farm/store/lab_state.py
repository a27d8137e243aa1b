"""The leases, requests and phones of hosts by their rows, for a head that takes over."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, exists, or_, select, update
from sqlalchemy.exc import DBAPIError

from farm.common.errors import Code, HostError
from farm.store.columns import StoredValueError
from farm.store.database import Database
from farm.store.leases import LeaseRecord, select_leases
from farm.store.mailbox import NEWS, NOTHING, HostRecord, Letter
from farm.store.schema import device, device_state, host, lease, metadata, request, to_head, to_host


@dataclass(frozen=True, slots=True)
class LabState:
    """The lab at one moment."""

    hosts: tuple[HostRecord, ...]
    rows: tuple[Letter, ...]  # the latest message about each phone, and each request without a lease, in order
    seen: str  # what is written later, `Mailbox.take_all` reads
    leases: tuple[LeaseRecord, ...]  # armed, and those ended whose worker slot is kept; by fence
    letters: tuple[Letter, ...]  # to hosts that have not taken them, in order


def adopt_rows(connection: Connection, name: str) -> None:
    """Give the rows of a host without a name to the first host of the database that has one."""
    others = exists().where(host.c.name != name) | exists().where(device.c.host.not_in(("", name)))
    if not name or connection.execute(select(others)).scalar_one():
        return
    for table in metadata.sorted_tables:
        if "host" in table.c and table not in (device_state, request, to_head, to_host):
            connection.execute(update(table).where(table.c.host == "").values(host=name))


def read_lab_state(database: Database) -> LabState:
    """Delete the letters to the head and read the rows that they report, as of one moment. Blocking.

    Letters that are committed later report later changes.

    Raises:
        HostError: the database cannot be read, or another head has taken over.
    """
    connection = database.engine.connect().execution_options(isolation_level="REPEATABLE READ")
    try:
        with connection, connection.begin():
            assert database.term is not None
            database.term.hold(connection)
            connection.execute(delete(to_head))
            hosts = connection.execute(select(host).order_by(host.c.name))
            rows = connection.execute(NEWS, {"most": 0, "seen": NOTHING}).all()
            held = lease.c.ended_at.is_(None) & lease.c.armed_at.is_not(None)
            leases = connection.execute(select_leases().where(or_(held, lease.c.slot == 1)).order_by(lease.c.fence))
            letters = connection.execute(select(to_host.c.host, to_host.c.body).order_by(to_host.c.id))
            return LabState(
                tuple(HostRecord(**row) for row in hosts.mappings()),
                tuple(Letter(row.host, row.body) for row in rows),
                rows[0].seen if rows else NOTHING,
                tuple(LeaseRecord(**row) for row in leases.mappings()),
                tuple(Letter(*row) for row in letters),
            )
    except StoredValueError as error:
        message = f"the state of the lab cannot be read from the database: {error}"
        raise HostError(message, Code.STORE_READ_FAILED, hint="correct or delete that row") from error
    except DBAPIError as error:
        evidence = str(error.orig).strip()
        message = "the state of the lab cannot be read from the database"
        raise HostError(
            message, Code.STORE_READ_FAILED, hint="the head tries again by itself", evidence=evidence
        ) from error
