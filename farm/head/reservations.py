"""Reservations as people make them: by the wall clock in the store, by the monotonic one in the allocator.

`ClockWatch` notices that the wall clock was set, after which people's times are read again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from farm.common.errors import Code, UserError
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head.allocator.reservations import Reservation
from farm.store.database import run_to_completion
from farm.store.leases import ReservationRecord, ReservationTable

ID_BYTES = 4  # a farm has dozens of reservations, not millions
MAX_USER_LENGTH = 64
MAX_NOTE_LENGTH = 200
MAX_DAYS = 366  # a window lies within so many days of now: further away is a mistake in the date, or no date at all
POLL_S = 1.0  # how late a jump may be noticed
JUMP_S = 2.0  # NTP slews by 0.5 ms a second; a clock that was set, or a host that slept, is off by more than this


def new_reservation(
    selector: str, user: str, starts_at: datetime, ends_at: datetime, note: str, now: datetime
) -> ReservationRecord:
    """A reservation with an id of its own.

    Raises:
        UserError: the selector, the user, the note or the window is refused.
    """
    parsed = Selector.parse(selector)
    if not user.strip() or len(user) > MAX_USER_LENGTH:
        raise UserError("a reservation is for one user", hint="--user NAME, as `farm lease list` shows users")
    if len(note) > MAX_NOTE_LENGTH:
        raise UserError(f"the note is longer than {MAX_NOTE_LENGTH} characters", hint="a few words are enough")
    if ends_at <= starts_at:
        raise UserError("the reservation ends before it begins", hint="--from TIME --for DURATION")
    if ends_at <= now:
        raise UserError("the reservation is over already", hint="name a time in the future: +30m, 14:00")
    reach = timedelta(days=MAX_DAYS)
    if not (now - reach <= starts_at and ends_at <= now + reach):
        raise UserError(
            f"the reservation reaches further than {MAX_DAYS} days from now", hint="a shorter or nearer window"
        )
    return ReservationRecord(secrets.token_hex(ID_BYTES), str(parsed), user.strip(), starts_at, ends_at, note.strip())


class ReservationRegistry:
    """Every reservation."""

    def __init__(
        self,
        table: ReservationTable,
        events: EventLog,
        use: Callable[[tuple[Reservation, ...]], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Publish the stored reservations to the allocator.

        Args:
            table: the store's reservations.
            events: gets reservation.added and reservation.removed.
            use: passes all windows to the allocator.
            clock: monotonic seconds.
            wall: what people's times mean.
        """
        self._table = table
        self._events = events
        self._use = use
        self._clock = clock
        self._wall = wall
        self._records = {record.id: record for record in table.all()}
        self.publish()

    def all(self) -> tuple[ReservationRecord, ...]:
        """Those that are not over, by start."""
        now = self._wall()
        current = (record for record in self._records.values() if record.ends_at > now)
        return tuple(sorted(current, key=lambda record: (record.starts_at, record.id)))

    @run_to_completion
    async def add(
        self, selector: str, user: str, starts_at: datetime, ends_at: datetime, note: str = ""
    ) -> ReservationRecord:
        """Keep the devices of `selector` for `user` during a window.

        Raises:
            UserError: the selector, the user, the note or the window is refused.
            StoreWriteError: nothing can be written now.
        """
        record = new_reservation(selector, user, starts_at, ends_at, note, self._wall())
        with self._events.drafted(("reservation.added", record.id, _facts(record))) as drafts:
            await self._table.add(record, drafts)
        self._records[record.id] = record
        self.publish()
        return record

    @run_to_completion
    async def remove(self, reservation_id: str) -> ReservationRecord:
        """Take a reservation back; the beginning of its id will do.

        Raises:
            UserError: there is none of that id, or several begin so.
            StoreWriteError: nothing can be written now.
        """
        record = self._records.get(reservation_id) or self._begins(reservation_id)
        if record is not None:
            with self._events.drafted(("reservation.removed", record.id, _facts(record))) as drafts:
                removed = await self._table.remove(record.id, drafts)
            self._records.pop(record.id, None)
            self.publish()
            if removed:
                return record
        raise UserError(
            f"there is no reservation {reservation_id!r}",
            Code.NO_SUCH_RESERVATION,
            hint="`farm reservation list` shows those there are",
        )

    def _begins(self, prefix: str) -> ReservationRecord | None:
        found = [record for name, record in self._records.items() if prefix and name.startswith(prefix)]
        if len(found) > 1:
            raise UserError(
                f"{len(found)} reservations begin with {prefix!r}",
                Code.NO_SUCH_RESERVATION,
                hint="`farm reservation list` shows those there are",
            )
        return found[0] if found else None

    def publish(self) -> None:
        """Publish every window to the allocator; again when the wall clock was set."""
        now, wall = self._clock(), self._wall()

        def at(moment: datetime) -> float:
            return now + (moment - wall).total_seconds()

        windows = tuple(
            Reservation(
                each.id, Selector.parse(each.selector), frozenset({each.user}), at(each.starts_at), at(each.ends_at)
            )
            for each in self.all()
        )
        self._use(windows)


def _facts(record: ReservationRecord) -> dict[str, object]:
    return {
        "selector": record.selector,
        "user": record.user,
        "starts_at": record.starts_at.isoformat(),
        "ends_at": record.ends_at.isoformat(),
        "note": record.note,
    }


class ClockWatch:
    """Compares the wall clock with the monotonic one."""

    def __init__(
        self,
        events: EventLog,
        jumped: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`jumped` is called after each jump, `events` gets clock.jumped."""
        self._events = events
        self._jumped = jumped
        self._clock = clock
        self._wall = wall
        self._offset_s = self._offset()

    async def run(self) -> None:
        """Compare the clocks forever."""
        while True:
            await asyncio.sleep(POLL_S)
            self.check()

    def check(self) -> None:
        """Compare the clocks once. Slewing adds up to a jump too, in its time."""
        offset_s = self._offset()
        by_s = offset_s - self._offset_s
        if abs(by_s) < JUMP_S:
            return
        self._offset_s = offset_s
        self._events.publish("clock.jumped", "clock", seconds=round(by_s, 3))
        self._jumped()

    def _offset(self) -> float:
        return self._wall().timestamp() - self._clock()
