"""Recovery of devices: the facts that a decision needs from outside the phone, operators' orders, and the log.

The log publishes recovery actions as events, stores them, and counts them against budgets over restarts of the daemon.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from farm.common.errors import Code, FarmError, HostError, PhoneError, UserError
from farm.common.events import EventLog
from farm.devices.admin import require_adopted
from farm.devices.agent import Agent
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.recovery import (
    DAY_S,
    RULE_OF,
    ActionOutcome,
    ActionUnderWay,
    EndedAction,
    RecoveryAction,
    RecoveryConfig,
    RecoveryContext,
    RecoveryProgress,
)
from farm.devices.lifecycle.state import LifecycleState
from farm.devices.power.switchboard import Switchboard
from farm.model.device import DeviceView
from farm.model.health import DeviceFault, Quarantine, ReleaseRule
from farm.store.database import BackgroundWrites
from farm.store.devices import RecoveryRecord

if TYPE_CHECKING:
    from farm.devices.fleet import Fleet
    from farm.store.devices import RecoveryTable

log = logging.getLogger(__name__)


class RecoveryLog:
    """One per fleet. Used from the event loop's thread."""

    def __init__(
        self,
        events: EventLog,
        table: RecoveryTable,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the actions of the last day and the devices in quarantine.

        Raises:
            HostError: the database cannot be read.
        """
        self._events = events
        self._table = table
        self.in_thread = table.in_thread
        self._clock = clock
        self._open: dict[tuple[str, bool], tuple[str, datetime]] = {}  # (serial, is it a quarantine) -> row, begun at
        self._writes = BackgroundWrites()
        self.close = self._writes.close
        self._spent: dict[str, list[tuple[RecoveryAction, float]]] = {}
        self._wrong: dict[str, list[float]] = {}
        self._ended_unseen: list[tuple[str, float]] = []  # rows of quarantines that ended unseen, and their duration
        self._proven: Mapping[str, str] = table.proven()
        now, now_s = clock(), monotonic()
        for row in table.since(now - timedelta(seconds=DAY_S)):
            if (
                row.fault == DeviceFault.ORDER
                or row.action not in set(RecoveryAction)
                or RULE_OF[RecoveryAction(row.action)].per_day is None
            ):
                continue
            # A clock that stood in the future when it was taken must neither refill a budget nor use it up until then.
            at_s = now_s - max(0.0, (now - row.began_at).total_seconds())
            self._spent.setdefault(row.serial, []).append((RecoveryAction(row.action), at_s))
            if row.fault == DeviceFault.WRONG:
                self._wrong.setdefault(row.serial, []).append(at_s)
        # This daemon may have other bundles: a phone that waits for one tries again.
        self._quarantines = table.quarantined()
        # Those that ended with the daemon before.
        self._released = [serial for serial, kept in self._quarantines.items() if kept.rule is ReleaseRule.BUNDLES]
        for serial in self._released:
            del self._quarantines[serial]
        for row in table.open_quarantines():
            kept = self._quarantines.get(row.serial)
            if kept is not None and kept.at == row.began_at:
                self._open[row.serial, True] = (row.id, row.began_at)
            else:
                self._ended_unseen.append((row.id, max(0.0, (now - row.began_at).total_seconds())))

    def begin(self) -> None:
        """The daemon serves: actions that were under way when the one before ended are over."""
        self._write(partial(self._table.redate, self._clock()))
        self._write(partial(self._table.end_interrupted, ActionOutcome.CUT, "the daemon ended"))
        for serial in self._released:
            self._write(partial(self._table.remove_quarantine, serial))
        for row, took_s in self._ended_unseen:
            self._write(partial(self._table.end, row, took_s, ActionOutcome.CUT, "the daemon ended"))

    async def store_quarantine(self, serial: str, reason: str) -> None:
        """Store an operator's quarantine before the life cycle takes it and adds its evidence.

        Raises:
            StoreWriteError: it would be gone after a restart.
        """
        await self._table.add_quarantine(serial, Quarantine(reason, at=self._clock()))

    def restore_quarantine(self, serial: str) -> None:
        """Storing a quarantine failed: store the present one again."""
        row = self._quarantines.get(serial)
        remove = partial(self._table.remove_quarantine, serial)
        self._write(remove if row is None else partial(self._table.add_quarantine, serial, row))

    def remembered(self, serial: str, state: LifecycleState) -> LifecycleState:
        """A device's first state with its stored recoveries."""
        kept = self._quarantines.get(serial) if state.adopted else None
        progress = RecoveryProgress(spent=tuple(self._spent.get(serial, ())), wrong=tuple(self._wrong.get(serial, ())))
        proven = self._proven.get(serial, "")
        return replace(state, progress=progress, quarantine=kept, proven=proven, bundle=proven)

    @property
    def quarantined(self) -> Mapping[str, Quarantine]:
        """Every quarantine, by serial."""
        return self._quarantines

    def quarantined_at(self, serial: str) -> datetime | None:
        """Since when a device is in quarantine."""
        row = self._quarantines.get(serial)
        return None if row is None else row.at

    def actions(self, serial: str) -> Sequence[RecoveryRecord]:
        """Actions of the last 24 hours, oldest first. Reads the store."""
        return self._table.since(self._clock() - timedelta(seconds=DAY_S), serial)

    def change_serial(self, serial: str, to: str) -> None:
        """Adb lists a phone under another serial from now on."""
        if (row := self._quarantines.pop(serial, None)) is not None:
            self._quarantines[to] = row
        for is_quarantine in (False, True):
            if (open_row := self._open.pop((serial, is_quarantine), None)) is not None:
                self._open[to, is_quarantine] = open_row
        self._write(partial(self._table.change_serial, serial, to))

    def recovery_changed(self, serial: str, name: str, before: LifecycleState, after: LifecycleState) -> None:
        """Publish and store the changes of recovery between two states of a device."""
        if after.progress.last is not None and after.progress.last is not before.progress.last:
            self._ended(serial, name, after.progress.last)
        if after.progress.under_way is not None and after.progress.under_way is not before.progress.under_way:
            self._began(serial, name, after.progress.under_way)
        if after.quarantine is not before.quarantine:
            self._quarantine_changed(serial, name, after.quarantine)
        if after.proven and after.proven != before.proven:
            self._write(partial(self._table.set_proven, serial, after.proven))

    def _began(self, serial: str, name: str, taken: ActionUnderWay, *, quarantine: bool = False) -> None:
        at, rule = self._clock(), RULE_OF[taken.action]
        row = f"{serial} {at.timestamp():.6f} {taken.action}"
        self._open[serial, quarantine] = (row, at)
        self._events.publish(
            "recovery.action",
            name,
            action=taken.action.value,
            fault=taken.fault.value,
            cause=taken.cause,
            impact=rule.impact.value,
            what=rule.what,
        )
        record = RecoveryRecord(row, serial, name, taken.action.value, taken.fault.value, taken.cause, at)
        self._write(partial(self._table.begin, record))

    def _ended(self, serial: str, name: str, ended: EndedAction, *, quarantine: bool = False) -> None:
        row, _ = self._open.pop((serial, quarantine), ("", None))
        self._events.publish(
            "recovery.ended",
            name,
            action=ended.taken.action.value,
            cause=ended.taken.cause,
            outcome=ended.outcome.value,
            detail=ended.detail,
            took_s=round(ended.took_s, 3),
        )
        if row:
            self._write(partial(self._table.end, row, ended.took_s, ended.outcome.value, ended.detail))

    def _quarantine_changed(self, serial: str, name: str, kept: Quarantine | None) -> None:
        former = self._quarantines.pop(serial, None)
        if former is not None:
            now = self._clock()
            took_s = max(0.0, (now - (former.at or now)).total_seconds())
            over = ActionUnderWay(RecoveryAction.QUARANTINE, former.fault, former.cause, 0.0)
            outcome, detail = (
                (ActionOutcome.REPAIRED, "released") if kept is None else (ActionOutcome.CUT, "another reason")
            )
            self._ended(serial, name, EndedAction(over, outcome, detail, took_s), quarantine=True)
        if kept is not None:
            self._began(
                serial, name, ActionUnderWay(RecoveryAction.QUARANTINE, kept.fault, kept.cause, 0.0), quarantine=True
            )
            _, at = self._open[serial, True]
            self._quarantines[serial] = replace(kept, at=at)
        remove = partial(self._table.remove_quarantine, serial)
        self._write(remove if kept is None else partial(self._table.add_quarantine, serial, self._quarantines[serial]))

    def _write(self, write: Callable[[], Awaitable[None]]) -> None:
        self._writes.add("steps of recovery", write)


REBOOT_ASKED_S = 15.0  # a phone takes the request in well below a second; adb's own patience is 10 s


class RecoveryController:
    """One per fleet. Used from the event loop's thread."""

    def __init__(self, fleet: Fleet, log: RecoveryLog, config: RecoveryConfig, power: Switchboard | None) -> None:
        self._fleet = fleet
        self.use(config)
        self._power = power
        self.log = log
        self.holder: Callable[[str], str] = lambda _: ""  # the holder of the device of that name; "": not leased

    def context_of(self, agent: Agent) -> RecoveryContext:
        """The facts about the rest of the farm that its recovery needs."""
        no_power = self._no_power(agent)
        # Asked at every event: no look at a hundred phones that lose nothing.
        affected = [] if no_power else self._leased_neighbours(agent)
        return RecoveryContext(
            holder=self.holder(agent.name),
            in_hands=self._fleet.in_hands(agent),
            no_power=no_power,
            neighbours=", ".join(f"{holder}'s lease on {name}" for name, holder in affected),
            wired=agent.place is not None,
            external_cause=agent.external_cause or self._fleet.watcher.failure,
            per_day=self._per_day,
            fallback=self._fleet.rollouts.fallback(agent),
            on_trial=self._fleet.rollouts.is_on_trial(agent),
        )

    def use(self, config: RecoveryConfig) -> None:
        """Recover within these budgets from now on; today's actions stay counted."""
        self._config, self._per_day = config, config.per_day()

    def away_limit_s(self, pool: str) -> float:
        """How long a phone of this pool may be away before people are notified, in seconds."""
        return self._config.pool_away_s.get(pool, self._config.away_s)

    def recovery_changed(self, agent: Agent, before: LifecycleState) -> None:
        """Publish and store an action of recovery."""
        self.log.recovery_changed(agent.serial, agent.name, before, agent.state)

    def state(self, name: str) -> LifecycleState:
        """The state of a device: life cycle, recovery, quarantine.

        Raises:
            NoSuchDeviceError: there is none; the hint names the nearest.
        """
        return self._fleet.find(name).state

    # -- orders --

    async def reboot(self, name: str, by: str, *, force: bool = False) -> None:
        """Reboot a device by order of `by`; returns when the phone has taken the request. It comes back by itself.

        Raises:
            UserError: it is not adopted, so it is not farm's to touch, or it is leased and `force` is not given.
            PhoneError: it cannot be talked to, or did not take the request.
        """
        agent = require_adopted(self._fleet.find(name))
        try:
            async with agent.orders, asyncio.timeout(REBOOT_ASKED_S):
                self._still_free(agent, force=force)
                await agent.reboot(f"{by or 'an operator'} wants it rebooted")
        except TimeoutError:
            message = f"{agent.name} did not take the request in {REBOOT_ASKED_S:g} s"
            raise PhoneError(message, hint="restart it by hand, or: farm device power-cycle NAME") from None

    async def power_cycle(self, name: str, by: str, *, force: bool) -> tuple[str, ...]:
        """Cut the power of its USB port for a moment; returns the other devices on that hub.

        Raises:
            UserError: it is not adopted; or `force` is not given and it is leased, or other phones would be disturbed.
            HostError: nothing can switch the power of its port.
        """
        agent = require_adopted(self._fleet.find(name))
        if why := self._no_power(agent, ordered=True):
            raise HostError(
                f"the power of {agent.name}'s port cannot be cut: {why}", hint="docs/configuration.md: [power]"
            )
        async with agent.orders:
            self._still_free(agent, force=force)
            affected = self._leased_neighbours(agent)
            if affected and not force:
                message = ", ".join(f"{other} ({holder} has it)" for other, holder in affected)
                raise UserError(
                    f"{message} may lose power with {agent.name}: it is on the same hub",
                    Code.DEVICE_HELD,
                    hint=f"wait, or: farm device power-cycle {agent.name} --force",
                )
            agent.on_event(m.ActionOrdered(RecoveryAction.POWER_CYCLE, f"{by or 'an operator'} wants its power cycled"))
        return tuple(view.name for view in self.neighbours(agent))

    async def quarantine(self, name: str, reason: str, *, force: bool = False) -> None:
        """Keep a device away from users until it is released; its holder loses it. Waits for no other order.

        Raises:
            UserError: it is not adopted, or it is leased and `force` is not given.
            StoreWriteError: it cannot be kept: a restart would bring the device back into service.
        """
        agent = require_adopted(self._fleet.find(name))
        self._still_free(agent, force=force)
        await self.log.store_quarantine(agent.serial, reason)
        try:
            self._still_free(require_adopted(self._fleet.find(agent.serial)), force=force)
        except FarmError:
            self.log.restore_quarantine(agent.serial)
            raise
        agent.on_event(m.QuarantineOrdered(reason))

    # -- below --

    def _still_free(self, agent: Agent, *, force: bool) -> None:
        holder = self.holder(agent.name)  # it may have been leased while an order waited
        if holder and not force:
            hint = "wait for the end of the lease, or add --force"
            raise UserError(f"{holder} holds {agent.name}", Code.DEVICE_HELD, hint=hint)

    def _no_power(self, agent: Agent, *, ordered: bool = False) -> str:
        """Why the power of its port cannot be cut; "" when it can, or an order should try."""
        if self._power is None:
            return "no power switch is configured"
        return self._power.why_not(agent.place, ordered=ordered)

    def neighbours(self, agent: Agent) -> list[DeviceView]:
        """Others that may lose power with it."""
        if self._power is None or agent.place is None:
            return []
        views = [view for view in self._fleet.views() if view.serial != agent.serial]
        losing = self._power.losing_power(agent.place, {view.serial: view.place for view in views if view.place})
        return [view for view in views if view.serial in losing]

    def _leased_neighbours(self, agent: Agent) -> list[tuple[str, str]]:
        """(name, holder) of neighbours that are leased."""
        return [(view.name, holder) for view in self.neighbours(agent) if (holder := self.holder(view.name))]
