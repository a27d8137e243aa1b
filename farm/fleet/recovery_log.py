"""What recovery did: told as events, kept in the store, counted against budgets over restarts of the daemon."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from farm.core.errors import FarmError
from farm.core.events import EventLog
from farm.core.lifecycle_state import DeviceState
from farm.core.recovery import (
    DAY_S,
    STEPS,
    Ailment,
    Climb,
    Ended,
    Outcome,
    Quarantine,
    ReleaseRule,
    Rung,
    Taken,
)
from farm.store.patience import RETRY_S
from farm.store.records import QuarantineRecord, RecoveryRecord
from farm.store.writer import StoreWriteError

log = logging.getLogger(__name__)


class RecoveryBook(Protocol):
    """What is needed of farm.store.recoveries.RecoveryTable."""

    def since(self, at: datetime, serial: str = "") -> tuple[RecoveryRecord, ...]:
        """Rungs that began after `at`."""

    def quarantined(self) -> tuple[QuarantineRecord, ...]:
        """Every phone in quarantine."""

    def open_quarantines(self) -> tuple[RecoveryRecord, ...]:
        """Their rows that have not ended."""

    def proven(self) -> dict[str, str]:
        """Serial -> the bundle that last passed its check there."""

    async def begin(self, record: RecoveryRecord) -> None:
        """Keep a rung."""

    async def end(self, rung: str, took_s: float, outcome: str, detail: str) -> None:
        """Keep its end."""

    async def interrupted(self, outcome: str, detail: str) -> None:
        """End what was under way."""

    async def redate(self, now: datetime) -> None:
        """Rungs that seem to be taken later than `now` were taken now."""

    async def keep_away(self, record: QuarantineRecord) -> None:
        """Keep a quarantine."""

    async def let_go(self, serial: str) -> None:
        """End it."""

    async def prove(self, serial: str, bundle: str) -> None:
        """Keep that a bundle works."""

    async def moved(self, serial: str, to: str) -> None:
        """A phone has another serial."""


class RecoveryLog:
    """One per fleet. Used from the event loop's thread."""

    def __init__(
        self,
        events: EventLog,
        book: RecoveryBook,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read what was spent in the last day and who is in quarantine.

        Raises:
            StoreReadError: the database cannot be read.
        """
        self._events = events
        self._book = book
        self._clock = clock
        self._open: dict[tuple[str, bool], tuple[str, datetime]] = {}  # (serial, is it a quarantine) -> row, begun at
        self._unwritten: deque[tuple[str, Callable[[], Awaitable[None]]]] = deque()  # whose it is, how it is written
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._spent: dict[str, list[tuple[Rung, float]]] = {}
        self._wrong: dict[str, list[float]] = {}
        self._kept: dict[str, QuarantineRecord] = {}
        self._let_go: list[str] = []  # serials whose quarantine ended with the daemon before
        self._over: list[tuple[str, float]] = []  # rows of quarantines that nobody is in any more, how long they took
        self._proven: Mapping[str, str] = book.proven()
        now, now_s = clock(), monotonic()
        for row in book.since(now - timedelta(seconds=DAY_S)):
            if row.ailment == Ailment.ORDER or row.rung not in set(Rung) or STEPS[Rung(row.rung)].per_day is None:
                continue
            # A clock that stood in the future when it was taken must neither refill a budget nor use it up until then.
            at_s = now_s - max(0.0, (now - row.began_at).total_seconds())
            self._spent.setdefault(row.serial, []).append((Rung(row.rung), at_s))
            if row.ailment == Ailment.WRONG:
                self._wrong.setdefault(row.serial, []).append(at_s)
        # Another daemon may have other bundles: who waits for some tries again.
        quarantined = book.quarantined()
        self._kept = {row.serial: row for row in quarantined if row.rule != ReleaseRule.BUNDLES}
        self._let_go = [row.serial for row in quarantined if row.serial not in self._kept]
        for row in book.open_quarantines():
            kept = self._kept.get(row.serial)
            if kept is not None and kept.at == row.began_at:
                self._open[row.serial, True] = (row.id, row.began_at)
            else:
                self._over.append((row.id, max(0.0, (now - row.began_at).total_seconds())))

    def begin(self) -> None:
        """The daemon serves: rungs that were under way when the one before ended are over."""
        self._write("the daemon", partial(self._book.redate, self._clock()))
        self._write("the daemon", partial(self._book.interrupted, Outcome.CUT, "the daemon ended"))
        for serial in self._let_go:
            self._write(serial, partial(self._book.let_go, serial))
        for row, took_s in self._over:
            self._write("the daemon", partial(self._book.end, row, took_s, Outcome.CUT, "the daemon ended"))

    async def close(self) -> None:
        """Wait until everything is kept, or cannot be."""
        self._closing.set()
        if self._writer is not None:
            await self._writer

    async def promise(self, serial: str, reason: str) -> None:
        """Keep an operator's quarantine before it is told to the phone's life, which adds its evidence.

        Raises:
            StoreWriteError: it would be gone after a restart.
        """
        rule, ailment = ReleaseRule.PERSON.value, Ailment.ORDER.value
        await self._book.keep_away(QuarantineRecord(serial, reason, "", ailment, rule, "", self._clock()))

    def renounce(self, serial: str) -> None:
        """A promised quarantine did not come: what is believed is kept."""
        row = self._kept.get(serial)
        gone = partial(self._book.let_go, serial)
        self._write(serial, gone if row is None else partial(self._book.keep_away, row))

    def remembered(self, serial: str, state: DeviceState) -> DeviceState:
        """A device's first state with what is remembered of it."""
        row = self._kept.get(serial)
        kept = None
        if row is not None and state.adopted:
            kept = Quarantine(row.reason, row.hint, Ailment(row.ailment), ReleaseRule(row.rule), row.evidence)
        climb = Climb(spent=tuple(self._spent.get(serial, ())), wrong=tuple(self._wrong.get(serial, ())))
        return replace(state, climb=climb, quarantine=kept, proven=self._proven.get(serial, ""))

    @property
    def quarantined(self) -> Mapping[str, QuarantineRecord]:
        """Everybody in quarantine, by serial."""
        return self._kept

    def quarantined_at(self, serial: str) -> datetime | None:
        """Since when a device is in quarantine."""
        row = self._kept.get(serial)
        return None if row is None else row.at

    def taken(self, serial: str) -> Sequence[RecoveryRecord]:
        """Rungs of the last 24 hours, oldest first. Reads the store."""
        return self._book.since(self._clock() - timedelta(seconds=DAY_S), serial)

    def moved(self, serial: str, to: str) -> None:
        """Adb lists a phone under another serial from now on."""
        if (row := self._kept.pop(serial, None)) is not None:
            self._kept[to] = row
        for is_quarantine in (False, True):
            if (open_row := self._open.pop((serial, is_quarantine), None)) is not None:
                self._open[to, is_quarantine] = open_row
        self._write(to, partial(self._book.moved, serial, to))

    def climbed(self, serial: str, name: str, before: DeviceState, after: DeviceState) -> None:
        """Tell and keep what changed between two states of a device."""
        if after.climb.last is not None and after.climb.last is not before.climb.last:
            self._ended(serial, name, after.climb.last)
        if after.climb.under_way is not None and after.climb.under_way is not before.climb.under_way:
            self._began(serial, name, after.climb.under_way)
        if after.quarantine is not before.quarantine:
            self._quarantine_changed(serial, name, after.quarantine)
        if after.proven and after.proven != before.proven:
            self._write(name, partial(self._book.prove, serial, after.proven))

    def _began(self, serial: str, name: str, taken: Taken, *, quarantine: bool = False) -> None:
        at, step = self._clock(), STEPS[taken.rung]
        row = f"{serial} {at.timestamp():.6f} {taken.rung}"
        self._open[serial, quarantine] = (row, at)
        self._events.publish(
            "recovery.rung",
            name,
            rung=taken.rung.value,
            ailment=taken.ailment.value,
            cause=taken.cause,
            radius=step.radius.value,
            what=step.what,
        )
        record = RecoveryRecord(row, serial, name, taken.rung.value, taken.ailment.value, taken.cause, at)
        self._write(name, partial(self._book.begin, record))

    def _ended(self, serial: str, name: str, ended: Ended, *, quarantine: bool = False) -> None:
        row, _ = self._open.pop((serial, quarantine), ("", None))
        self._events.publish(
            "recovery.ended",
            name,
            rung=ended.taken.rung.value,
            cause=ended.taken.cause,
            outcome=ended.outcome.value,
            detail=ended.detail,
            took_s=round(ended.took_s, 3),
        )
        if row:
            self._write(name, partial(self._book.end, row, ended.took_s, ended.outcome.value, ended.detail))

    def _quarantine_changed(self, serial: str, name: str, kept: Quarantine | None) -> None:
        former = self._kept.pop(serial, None)
        if former is not None:
            took_s = max(0.0, (self._clock() - former.at).total_seconds())
            over = Taken(Rung.QUARANTINE, Ailment(former.ailment), former.reason, 0.0)
            outcome, detail = (Outcome.MENDED, "released") if kept is None else (Outcome.CUT, "another reason")
            self._ended(serial, name, Ended(over, outcome, detail, took_s), quarantine=True)
        if kept is not None:
            self._began(serial, name, Taken(Rung.QUARANTINE, kept.ailment, kept.reason, 0.0), quarantine=True)
            _, at = self._open[serial, True]
            record = QuarantineRecord(
                serial, kept.reason, kept.hint, kept.ailment.value, kept.rule.value, kept.evidence, at
            )
            self._kept[serial] = record
        gone = partial(self._book.let_go, serial)
        self._write(name, gone if kept is None else partial(self._book.keep_away, self._kept[serial]))

    def _write(self, name: str, write: Callable[[], Awaitable[None]]) -> None:
        """Keep it after what was to be kept before, as soon as the store can."""
        self._unwritten.append((name, write))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="recovery log")

    async def _write_all(self) -> None:
        waiting = False
        while self._unwritten:
            name, write = self._unwritten[0]
            try:
                await write()
            except StoreWriteError as error:
                if self._closing.is_set():
                    log.error("%d steps of recovery are lost: %s", len(self._unwritten), error)  # noqa: TRY400
                    return
                if not waiting:
                    log.warning("%s: what recovery did is kept in memory until it can be written: %s", name, error)
                waiting = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), RETRY_S)
                continue
            except FarmError as error:
                log.error("%s: what recovery did could not be kept: %s", name, error)  # noqa: TRY400 - said in full
            except Exception:  # what comes after it must be kept all the same
                log.exception("%s: what recovery did could not be kept", name)
            self._unwritten.popleft()
