"""Leases (which user had which phone when) and reservations."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    Double,
    Select,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    type_coerce,
    update,
)

from farm.common.errors import UserError
from farm.common.events import Event
from farm.common.selector import Selector
from farm.model.job import Attempt
from farm.model.requests import LeaseClass, LeaseSource
from farm.store.columns import UtcTime, utc_time
from farm.store.database import TableAccess, must_change, selector_number, values_of
from farm.store.jobs import CLAIM, begin, claim
from farm.store.mailbox import Letter, post
from farm.store.schema import has_no_end, lease, request, reservation, selector, to_head, to_host

HALF_LIVES = 6  # what is older weighs less than 2 %
SLICES = 2  # reads per half-life; within one, use counts as if it were in its middle: at most 19 % off
MAX_SELECTORS = 10_000  # whose numbers are remembered

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One phone in one holder's hands, from grant to end."""

    id: str
    device: str
    user: str
    source: LeaseSource
    job: str  # id; "" through the TVM server
    lease_class: LeaseClass
    selector: str
    key: str
    fence: int
    granted_at: datetime
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""
    held_s: float = 0.0
    cleaned_s: float = 0.0  # its device was cleaned and checked for so long after it
    host: str = ""  # which holds its device; "": the only one of the database
    armed_at: datetime | None = None  # its host took it; None: it has not
    slot: bool = False  # the worker slot that came with it outlasts it
    holder_host: str = ""  # the other host where it was asked for; "": there is none
    match_sha256: str = ""  # of the match key that a TVM client of that host has; "": none


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One user's use of one phone within a window."""

    user: str
    device: str
    source: LeaseSource
    lease_class: LeaseClass
    leases: int
    held_s: float  # within the window
    cleaned_s: float  # after leases that ended within it


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """The devices of a selector, kept for one user during a window."""

    id: str
    selector: str
    user: str
    starts_at: datetime
    ends_at: datetime
    note: str = ""


def select_leases() -> Select[Any]:
    """Whole leases (`LeaseRecord(**row)`), with the text of their selector."""
    columns = [column for column in lease.c if column is not lease.c.selector]
    return select(*columns, selector.c.text.label("selector")).join_from(lease, selector)


# Built once: to build a statement and its cache key takes longer than SQLite takes to execute it.
OPEN = update(lease).where(lease.c.id == bindparam("of"), has_no_end(lease))
REQUEST_OVER = delete(request).where(request.c.id == bindparam("of"))
UNARMED = OPEN.where(lease.c.armed_at.is_(None))  # until its host arms it, or it ends
# Both in one statement of a server.
_ARMED = (
    update(lease)
    .where(lease.c.id == bindparam("armed"), has_no_end(lease), lease.c.armed_at.is_(None))
    .values(armed_at=bindparam("armed_at", type_=UtcTime))
)
ARM_AND_CLAIM = CLAIM.where(select(_ARMED.returning(lease.c.id).cte("armed")).exists())


class LeaseTable(TableAccess):
    """Statements over leases."""

    def open(self) -> tuple[LeaseRecord, ...]:
        """Leases that have not ended, oldest first."""
        wanted = select_leases().where(lease.c.ended_at.is_(None)).order_by(lease.c.fence)
        return tuple(LeaseRecord(**row) for row in self._database.rows(wanted))

    def unarmed(self) -> tuple[LeaseRecord, ...]:
        """Leases that were granted to hosts which have not armed them, oldest first."""
        wanted = select_leases().where(lease.c.ended_at.is_(None), lease.c.armed_at.is_(None)).order_by(lease.c.fence)
        return tuple(LeaseRecord(**row) for row in self._database.rows(wanted))

    def get(self, lease_id: str) -> LeaseRecord | None:
        """The lease of that id."""
        rows = self._database.rows(select_leases().where(lease.c.id == lease_id))
        return LeaseRecord(**rows[0]) if rows else None

    async def is_open(self, lease_id: str) -> bool:
        """Whether the lease has not ended."""
        record = await self.read(self.get, lease_id)
        return record is not None and record.ended_at is None

    async def publish_key(self, lease_id: str, match_sha256: str) -> bool:
        """A match key of this SHA-256 opens the lease's device, at any host's port; False: the lease has ended."""
        return await self._database.change(OPEN, values={"of": lease_id, "match_sha256": match_sha256})

    def with_key(self, match_sha256: str) -> LeaseRecord | None:
        """The lease that its host holds and a match key of this SHA-256 opens."""
        held = lease.c.ended_at.is_(None), lease.c.armed_at.is_not(None), lease.c.match_sha256 == match_sha256
        rows = self._database.rows(select_leases().where(*held))
        return LeaseRecord(**rows[0]) if rows else None

    def between(self, since: datetime, until: datetime, limit: int) -> tuple[LeaseRecord, ...]:
        """The newest leases that were open at some time of `since` .. `until`, newest first."""
        wanted = (
            select_leases()
            .where(lease.c.granted_at < until, or_(lease.c.ended_at.is_(None), lease.c.ended_at > since))
            .order_by(lease.c.granted_at.desc())
            .limit(limit)
        )
        return tuple(LeaseRecord(**row) for row in self._database.rows(wanted))

    def usage(self, since: datetime, until: datetime) -> tuple[UsageRow, ...]:
        """Device-seconds within `since` .. `until` by user, device, source and class; running leases count to `until`.

        Sums over a window are made of sums over its parts, so decaying use is read in slices.
        """
        start, stop = since.timestamp(), until.timestamp()
        granted = type_coerce(lease.c.granted_at, Double)
        ended = func.coalesce(type_coerce(lease.c.ended_at, Double), literal(stop))
        held = case((ended < stop, ended), else_=stop) - case((granted > start, granted), else_=start)
        cleaned = case((lease.c.ended_at <= until, lease.c.cleaned_s), else_=0.0)
        groups = (lease.c.user, lease.c.device, lease.c.source, lease.c.lease_class)
        wanted = (
            select(
                *groups,
                func.count().label("leases"),
                func.sum(held).label("held_s"),
                func.sum(cleaned).label("cleaned_s"),
            )
            .where(lease.c.granted_at < until, or_(lease.c.ended_at.is_(None), lease.c.ended_at > since))
            .group_by(*groups)
            .order_by(*groups)
        )
        return tuple(UsageRow(**row) for row in self._database.rows(wanted))

    def decayed_use(self, now: datetime, half_life_s: float) -> dict[str, float]:
        """Device-seconds by user up to `now`, of which a half-life ago counts half: the allocator starts with them."""
        used: defaultdict[str, float] = defaultdict(float)
        slice_s = half_life_s / SLICES
        for number in range(HALF_LIVES * SLICES):
            until = now - timedelta(seconds=number * slice_s)
            weight = 0.5 ** ((number + 0.5) / SLICES)
            for row in self.usage(until - timedelta(seconds=slice_s), until):
                used[row.user] += weight * (row.held_s + row.cleaned_s)
        return dict(used)

    def jobs(self, since: datetime, until: datetime, by: str) -> dict[str, int]:
        """How many jobs had a phone within `since` .. `until`, by `by`: user, device or source."""
        column = lease.c[by]
        wanted = (
            select(column, func.count(lease.c.job.distinct()))
            .where(lease.c.granted_at < until, or_(lease.c.ended_at.is_(None), lease.c.ended_at > since))
            .where(lease.c.job != "")
            .group_by(column)
        )
        with self._database.reading() as connection:
            return {str(name): int(count) for name, count in connection.execute(wanted)}

    async def grant(self, record: LeaseRecord, events: Sequence[Event] = (), letter: Letter | None = None) -> None:
        """Store a grant before its holder gets it. With a letter to its host it is not held until that arms it.

        Raises:
            FarmError: the device has an open lease, the fence was given before, or another head has taken over.
        """
        held = {"armed_at": record.granted_at} if letter is None else {"armed_at": None, "host": letter.host}
        row = {**values_of(record), **held}

        def number_selector(connection: Connection) -> int:
            number = self._database.selectors.get(record.selector) or selector_number(connection, record.selector)
            row["selector"] = number
            return number

        number = await self._database.write(number_selector, events, [(lease, row), *post(to_host, letter)])
        if len(self._database.selectors) >= MAX_SELECTORS:
            self._database.selectors.clear()
        self._database.selectors[record.selector] = number

    async def arm(
        self,
        lease_id: str,
        at: datetime,
        request_id: str,
        letter: Letter,
        to_holder: Letter | None = None,
        *,
        begun: tuple[Attempt, int] | None = None,
        events: Sequence[Event] = (),
    ) -> bool:
        """Its host holds the device under the lease from now on, and the head gets the letter; its request is over.

        Args:
            lease_id: of the lease.
            at: from when.
            request_id: the request of a client or a host's job; one of the head's has no row.
            letter: to the head.
            to_holder: to the other host where it was asked for.
            begun: the attempt that begins with it, and how many its job has had.
            events: stored with it.

        Returns:
            False: it was armed before or has ended, or the job is not queued any more; nothing is written.
        """

        def arm(connection: Connection) -> None:
            if begun is None:
                must_change(connection, UNARMED, {"of": lease_id, "armed_at": at})
                connection.execute(REQUEST_OVER, {"of": request_id})
            else:
                must_change(connection, ARM_AND_CLAIM, {**claim(*begun), "armed": lease_id, "armed_at": at})

        attempts = [] if begun is None else [begin(begun[0])]
        appended = [*attempts, *post(to_head, letter), *post(to_host, to_holder)]
        return await self._database.write_if(arm, events, appended)

    async def end(
        self,
        lease_id: str,
        *,
        ended_at: datetime,
        reason: str,
        held_s: float,
        events: Sequence[Event] = (),
        letter: Letter | None = None,
    ) -> bool:
        """The end of a lease, of which the head gets the letter; False: it had ended before, or there is none."""
        values = {"of": lease_id, "ended_at": ended_at, "reason": reason, "held_s": held_s}
        return await self._database.change(OPEN, events, values, post(to_head, letter), last=True)

    async def end_unarmed(
        self, lease_id: str, *, ended_at: datetime, reason: str, events: Sequence[Event] = ()
    ) -> bool:
        """The end of a lease that was never held; False: its host has armed it, or it had ended before."""
        values = {"of": lease_id, "ended_at": ended_at, "reason": reason, "held_s": 0.0}
        return await self._database.change(UNARMED, events, values, last=True)

    async def add_cleaning(self, lease_id: str, seconds: float, events: Sequence[Event] = ()) -> bool:
        """How long the device was cleaned and checked after the lease; False: there is none of that id."""
        return await self._database.change(
            update(lease).where(lease.c.id == lease_id).values(cleaned_s=seconds), events
        )

    async def extend(
        self, lease_id: str, expires_at: datetime | None, events: Sequence[Event] = (), letter: Letter | None = None
    ) -> bool:
        """Another expiry for a lease, of which the head gets the letter; False: it has ended, or there is none."""
        values = {"of": lease_id, "expires_at": expires_at}
        return await self._database.change(OPEN, events, values, post(to_head, letter))

    async def keep_slot(self, lease_id: str, *, kept: bool, letter: Letter) -> None:
        """The worker slot that came with the lease outlasts it, or is needed no more; the head gets the letter."""
        change = update(lease).where(lease.c.id == lease_id).values(slot=kept)
        await self._database.execute(change, appended=post(to_head, letter))


def read_reservations(connection: Connection) -> tuple[tuple[ReservationRecord, ...], tuple[str, ...]]:
    """Every reservation by start, and a line for each that cannot be read: the others stay usable."""
    columns = [
        type_coerce(column, Double).label(column.name) if isinstance(column.type, UtcTime) else column
        for column in reservation.c
        if column is not reservation.c.selector
    ]
    wanted = (
        select(*columns, selector.c.text.label("selector"))
        .join_from(reservation, selector)
        .order_by(reservation.c.starts_at, reservation.c.id)
    )
    records, findings = [], []
    for row in connection.execute(wanted).mappings():
        try:
            Selector.parse(row["selector"])
            times = {name: utc_time(row[name]) for name in ("starts_at", "ends_at")}
            records.append(ReservationRecord(**{**row, **times}))
        except (UserError, ValueError) as error:
            findings.append(f"reservation {row['id']} cannot be read: {error}")
    return tuple(records), tuple(findings)


class ReservationTable(TableAccess):
    """Statements over reservations."""

    def all(self) -> tuple[ReservationRecord, ...]:
        """Every reservation that can be read, past ones too, by start; the log has a line for each other one."""
        with self._database.reading() as connection:
            records, findings = read_reservations(connection)
        for finding in findings:
            logger.error("%s; it is left out until its row is repaired or deleted", finding)
        return records

    async def add(self, record: ReservationRecord, events: Sequence[Event] = ()) -> None:
        """Keep a reservation.

        Raises:
            FarmError: it ends before it begins, or there is one of that id.
        """

        def add(connection: Connection) -> None:
            number = selector_number(connection, record.selector)
            connection.execute(insert(reservation).values({**values_of(record), "selector": number}))

        await self._database.write(add, events)

    async def remove(self, reservation_id: str, events: Sequence[Event] = ()) -> bool:
        """Remove a reservation; whether there was one."""
        return await self._database.change(delete(reservation).where(reservation.c.id == reservation_id), events)
