"""The leases, requests and phones of hosts by their rows, for a head that takes over."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, exists, or_, select, update
from sqlalchemy.exc import DBAPIError

from farm.common.errors import Code, HostError
from farm.store.columns import StoredValueError
from farm.store.database import Database
from farm.store.leases import LeaseRecord, select_leases
from farm.store.mailbox import HostRecord, Letter
from farm.store.schema import device, device_state, host, lease, metadata, request, to_head, to_host


@dataclass(frozen=True, slots=True)
class LabState:
    """The lab at one moment; each letter is the latest message about its phone or request."""

    hosts: tuple[HostRecord, ...]
    devices: tuple[Letter, ...]
    requests: tuple[Letter, ...]  # that have no lease, in order
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
            devices = connection.execute(select(device_state.c.host, device_state.c.body))
            requests = connection.execute(select(request.c.host, request.c.body).order_by(request.c.seq))
            held = lease.c.ended_at.is_(None) & lease.c.armed_at.is_not(None)
            leases = connection.execute(select_leases().where(or_(held, lease.c.slot == 1)).order_by(lease.c.fence))
            letters = connection.execute(select(to_host.c.host, to_host.c.body).order_by(to_host.c.id))
            return LabState(
                tuple(HostRecord(**row) for row in hosts.mappings()),
                tuple(Letter(*row) for row in devices),
                tuple(Letter(*row) for row in requests),
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
