"""What recovery did is told, kept, and counted again after a restart of the daemon."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.common.events import EventLog
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import Lifecycle
from farm.devices.lifecycle.recovery import ActionOutcome, RecoveryAction, RecoveryContext, budgets_left
from farm.devices.lifecycle.state import LifecycleState
from farm.devices.recovery_control import RecoveryLog
from farm.model.device import Life
from farm.model.health import DeviceFault
from farm.store.writer import StoreWriteError

READY = LifecycleState(Life.READY, adopted=True, identified=True, generation=5, follow=5, bundle="b1", proven="b1")
START = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Daemon:
    """A phone's life over a store, from `at` on; each event takes a second."""

    def __init__(self, store, at=START, state=READY):
        self.store, self.at = store, at
        self.events = EventLog(clock=lambda: self.at)
        self.log = RecoveryLog(self.events, store.recoveries, clock=lambda: self.at, monotonic=self.now_s)
        self.life = Lifecycle(state)

    def now_s(self):
        return (self.at - START).total_seconds()

    def on_events(self, *events):
        """Answers may be functions of the work's number."""
        for event in events:
            before = self.life.state
            self.life.handle(event(before.generation) if callable(event) else event, self.now_s())
            self.log.recovery_changed("S1", "pixel", before, self.life.state)
            self.at += timedelta(seconds=1)

    def stuck(self):
        self.on_events(
            m.SessionBroke("cut"),
            m.PlainEvent.PHONE_AT_FAULT,
            lambda number: m.WorkFailed(number, "pid 7 survives SIGKILL", fault=DeviceFault.STUCK),
        )

    def remembered(self, serial="S1", state=READY):
        return self.log.remembered(serial, state)

    def reboots_left(self, serial="S1"):
        return budgets_left(self.remembered(serial).progress, self.now_s(), RecoveryContext())[RecoveryAction.REBOOT]

    async def restarted(self, at=None, **state):
        """It ends; the next one begins."""
        await self.log.close()
        after = Daemon(self.store, at or self.at, replace(READY, **state))
        after.log.begin()
        await after.log.close()
        return after


@pytest.fixture
async def daemon(store):
    return Daemon(store)


async def test_each_action_is_told_and_kept_with_its_end(daemon):
    daemon.stuck()
    await daemon.log.close()
    told = [(each.kind, each.data.get("outcome", each.data.get("action"))) for each in daemon.events.since()]
    assert told == [("recovery.action", "reap"), ("recovery.ended", "failed"), ("recovery.action", "reboot")]
    reap, reboot = daemon.log.actions("S1")
    assert (reap.action, reap.outcome, reap.took_s, reap.detail) == ("reap", "failed", 1.0, "pid 7 survives SIGKILL")
    assert (reboot.action, reboot.fault, reboot.outcome) == ("reboot", "stuck", None)


async def test_a_restart_refills_no_budget_and_ends_what_was_under_way(daemon):
    daemon.stuck()
    after = await daemon.restarted()
    assert (after.reboots_left("S1"), after.reboots_left("S2")) == (2, 3)
    assert [each.outcome for each in after.log.actions("S1")] == ["failed", ActionOutcome.CUT]


async def test_what_a_full_disk_did_not_take_is_written_when_it_is_back(daemon, disk):
    disk.full = True
    daemon.stuck()
    daemon.on_events(m.QuarantineOrdered("it smokes"))
    disk.full = False
    after = await daemon.restarted()
    expected = replace(daemon.life.state.quarantine, at=daemon.log.quarantined_at("S1"))
    assert after.remembered().quarantine == expected
    assert after.reboots_left() == 2


async def test_a_promised_quarantine_is_refused_where_it_cannot_be_kept(daemon, disk):
    disk.full = True
    with pytest.raises(StoreWriteError):
        await daemon.log.store_quarantine("S1", "it smokes")
    disk.full = False
    await daemon.log.store_quarantine("S1", "it smokes")
    assert Daemon(daemon.store).remembered().quarantine is not None
    daemon.log.restore_quarantine("S1")
    assert (await daemon.restarted()).remembered().quarantine is None


async def test_a_clock_that_stood_in_the_future_uses_a_budget_up_for_a_day_not_until_then(store):
    daemon = Daemon(store, START + timedelta(days=300))
    daemon.stuck()
    left = [
        (await daemon.restarted(START + timedelta(days=days))).reboots_left() for days in (0, 0.5, 2)
    ]  # in this order: the first restart dates what the clock misdated
    assert left == [2, 2, 3]


async def test_wrong_numbers_of_before_a_restart_count(daemon):
    wrong = (
        m.PlainEvent.PROVISIONING_DUE,
        lambda number: m.Provisioned(number, "b"),
        m.ServerStarted,
        lambda number: m.WorkFailed(number, "wrong numbers", fault=DeviceFault.WRONG),
    )
    daemon.on_events(*wrong)
    assert daemon.life.state.life is Life.STARTING
    after = await daemon.restarted(START + timedelta(hours=23))
    after.life = Lifecycle(after.remembered(state=replace(READY, ready_at=after.now_s())))
    after.on_events(*wrong)
    assert after.life.state.life is Life.QUARANTINED
    await after.log.close()


async def test_a_quarantine_outlives_the_daemon_until_it_is_released(daemon):
    daemon.on_events(m.QuarantineOrdered("screen cracked"))
    after = await daemon.restarted(START + timedelta(hours=2))
    kept = after.remembered()
    assert kept.quarantine == replace(daemon.life.state.quarantine, at=START)
    assert after.log.quarantined_at("S1") == START
    after.life = Lifecycle(kept)
    after.on_events(m.PlainEvent.RELEASED)
    assert (await after.restarted()).remembered().quarantine is None
    (row,) = after.log.actions("S1")
    assert (row.action, row.outcome, row.took_s) == ("quarantine", "repaired", 7200.0)


async def test_who_waits_for_a_bundle_tries_again_after_a_restart(store):
    daemon = Daemon(store, state=replace(READY, life=Life.PROVISIONING))
    daemon.on_events(lambda number: m.WorkFailed(number, "no bundle", "farm bundle add", DeviceFault.BUNDLE))
    await daemon.log.close()
    assert daemon.life.state.life is Life.QUARANTINED
    assert store.recoveries.quarantined() != {}
    after = await daemon.restarted()
    assert after.remembered().quarantine is None
    assert store.recoveries.quarantined() == {}
    assert [each.outcome for each in after.log.actions("S1")] == [ActionOutcome.CUT]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_quarantine_ends_its_row_though_the_phone_has_another_serial(daemon, restarted):
    daemon.on_events(m.QuarantineOrdered("screen cracked"))
    daemon.log.change_serial("S1", "10.0.0.7:5555")
    await daemon.log.close()
    after = await daemon.restarted() if restarted else daemon
    kept = daemon.life.state
    after.log.recovery_changed("10.0.0.7:5555", "pixel", kept, replace(kept, quarantine=None))
    await after.log.close()
    (row,) = after.log.actions("10.0.0.7:5555")
    assert (row.action, row.outcome, row.detail) == ("quarantine", "repaired", "released")
    assert after.store.recoveries.open_quarantines() == ()


async def test_which_bundle_worked_is_remembered_and_all_of_it_moves_with_the_phone(store):
    daemon = Daemon(store, state=replace(READY, life=Life.CHECKING, bundle="b2"))
    daemon.on_events(m.CheckPassed, m.QuarantineOrdered("screen cracked"))
    daemon.log.change_serial("S1", "10.0.0.7:5555")
    after = await daemon.restarted()
    moved = after.remembered("10.0.0.7:5555")
    assert (moved.proven, moved.quarantine is None) == ("b2", False)
    assert after.remembered("S1", LifecycleState()) == LifecycleState()
