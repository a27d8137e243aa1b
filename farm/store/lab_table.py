"""The lab by the rows of its database: hosts, open tokens, phones, leases. For people, not for decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy import text as sql

from farm.store.columns import utc_time
from farm.store.database import TableAccess, values_of
from farm.store.leases import LeaseRecord, select_leases
from farm.store.mailbox import HostRecord, Letter
from farm.store.schema import (
    attempt,
    device_state,
    host,
    host_readings,
    host_token,
    lab_config,
    lease,
    meta,
    request,
    to_head,
)
from farm.store.term import rest_of_term

_NOW = sql("SELECT extract(epoch FROM clock_timestamp())::float8")


@dataclass(frozen=True, slots=True)
class HostTokenRecord:
    """A token that no host has used."""

    name: str  # of the new host
    role: str
    expires_at: datetime
    made_by: str


@dataclass(frozen=True, slots=True)
class SharedConfigRecord:
    """Keys that all hosts of the lab have alike."""

    text: str = ""  # TOML; see `farm.config.LAB_KEYS`
    by: str = ""  # who set it
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LabRows:
    """The rows of about one moment."""

    now: datetime  # by the server's clock, like `HostRecord.beat_at`
    hosts: tuple[HostRecord, ...]
    tokens: tuple[HostTokenRecord, ...]
    devices: tuple[Letter, ...]  # the latest message about each phone
    leases: tuple[LeaseRecord, ...]  # that hosts have armed
    letters: int  # in the head's mailbox
    term: int  # number of the head's term
    term_holds: bool  # a head decides
    requests: tuple[Letter, ...]  # requests without an armed lease
    # By host: see the table `host_readings`.
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class LabTable(TableAccess):
    """Reads hosts with their phones, leases, requests and readings. On a server only."""

    def look(self) -> LabRows:
        """The lab as it is now.

        Raises:
            HostError: the database cannot be read.
        """
        # A lost host ends its leases when it is back: the head has ended their attempts, whose jobs continue elsewhere.
        over = select(attempt.c.id).where(attempt.c.lease == lease.c.id, attempt.c.ended_at.is_not(None)).exists()
        held = lease.c.ended_at.is_(None) & lease.c.armed_at.is_not(None) & ~over
        with self._database.reading() as connection:
            hosts = connection.execute(select(host).order_by(host.c.name)).mappings()
            tokens = connection.execute(select(host_token).order_by(host_token.c.name)).mappings()
            return LabRows(
                utc_time(connection.execute(_NOW).scalar_one()),
                tuple(HostRecord(**row) for row in hosts),
                tuple(HostTokenRecord(**row) for row in tokens),
                tuple(Letter(*row) for row in connection.execute(select(device_state.c.host, device_state.c.body))),
                tuple(LeaseRecord(**row) for row in connection.execute(select_leases().where(held)).mappings()),
                letters=int(connection.execute(select(func.count()).select_from(to_head)).scalar_one()),
                term=int(connection.execute(select(meta.c.value).where(meta.c.name == "epoch")).scalar_one()),
                term_holds=rest_of_term(connection)[1] > 0,
                requests=tuple(Letter(*row) for row in connection.execute(select(request.c.host, request.c.body))),
                readings={row.host: row.body for row in connection.execute(select(host_readings))},
            )

    def config(self) -> SharedConfigRecord:
        """The lab's configuration.

        Raises:
            HostError: the database cannot be read.
        """
        rows = self._database.rows(select(lab_config.c.text, lab_config.c.by, lab_config.c.at))
        return SharedConfigRecord(**rows[0]) if rows else SharedConfigRecord()

    async def save_config(self, record: SharedConfigRecord) -> None:
        """Write the lab's configuration in place of the one before.

        Raises:
            StoreWriteError: the database cannot be written now.
        """
        await self._database.put(lab_config, {"name": "", **values_of(record)})

    async def save_readings(self, name: str, body: Mapping[str, Any]) -> None:
        """Write the readings of a host's phones in place of those before.

        Raises:
            StoreWriteError: the database cannot be written now.
        """
        await self._database.put(host_readings, {"host": name, "body": dict(body)})
