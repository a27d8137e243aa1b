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
from farm.store import database
from farm.store.store import Store
from farm.store.writer import StoreWriteError
from tests.support.waiting import until

READY = LifecycleState(Life.READY, adopted=True, identified=True, generation=5, follow=5, bundle="b1", proven="b1")
START = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Desk:
    """A phone's life over a store, at times of the test's own."""

    def __init__(self, store):
        self.store = store
        self.at = START
        self.events = EventLog(clock=self.clock)
        self.log = RecoveryLog(self.events, store.recoveries, clock=self.clock, monotonic=self.now_s)
        self.life = Lifecycle(READY)

    def clock(self):
        return self.at

    def now_s(self):
        return (self.at - START).total_seconds()

    def on_event(self, event):
        before = self.life.state
        self.life.handle(event, self.now_s())
        self.log.recovery_changed("S1", "pixel", before, self.life.state)
        self.at += timedelta(seconds=1)

    def stuck(self):
        self.on_event(m.SessionBroke("cut"))
        self.on_event(m.PlainEvent.PHONE_AT_FAULT)
        self.on_event(m.WorkFailed(self.life.state.generation, "pid 7 survives SIGKILL", fault=DeviceFault.STUCK))

    def told(self):
        return [
            (each.kind, each.data["outcome" if "outcome" in each.data else "action"]) for each in self.events.since()
        ]


@pytest.fixture
async def desk(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    yield lambda: Desk(store)
    store.close()


async def test_each_action_is_told_and_kept_with_its_end(desk):
    first = desk()
    first.stuck()
    await first.log.close()
    assert first.told() == [
        ("recovery.action", "reap"),
        ("recovery.ended", "failed"),
        ("recovery.action", "reboot"),
    ]
    reap, reboot = first.log.actions("S1")
    assert (reap.action, reap.outcome, reap.took_s, reap.detail) == ("reap", "failed", 1.0, "pid 7 survives SIGKILL")
    assert (reboot.action, reboot.fault, reboot.outcome) == ("reboot", "stuck", None)


async def test_a_restart_refills_no_budget_and_ends_what_was_under_way(desk):
    first = desk()
    first.stuck()
    await first.log.close()
    second = desk()
    second.log.begin()
    await second.log.close()
    remembered = second.log.remembered("S1", LifecycleState(adopted=True))
    assert budgets_left(remembered.progress, 0.0, RecoveryContext())[RecoveryAction.REBOOT] == 2
    assert [each.outcome for each in second.log.actions("S1")] == ["failed", ActionOutcome.CUT]
    assert (
        budgets_left(second.log.remembered("S2", LifecycleState()).progress, 0.0, RecoveryContext())[
            RecoveryAction.REBOOT
        ]
        == 3
    )


def fail(desk, monkeypatch):
    """The state's disk is full until the first that is returned is called; the other grows with each try."""
    tries = []

    async def full(*_, **__):
        tries.append(None)
        raise StoreWriteError("the disk is full")

    patched = pytest.MonkeyPatch()
    patched.setattr(desk.store.database, "write", full)
    monkeypatch.setattr(database, "RETRY_S", 0.001)
    return patched.undo, tries


async def test_what_a_full_disk_did_not_take_is_written_when_it_is_back(desk, monkeypatch, caplog):
    first = desk()
    free, tries = fail(first, monkeypatch)
    first.stuck()
    first.on_event(m.QuarantineOrdered("it smokes"))
    await until(lambda: len(tries) >= 3)
    said = [record for record in caplog.records if record.name == database.__name__ and record.levelname != "DEBUG"]
    assert [(each.levelname, each.exc_info) for each in said] == [("WARNING", None)]
    free()
    await first.log.close()
    remembered = desk().log.remembered("S1", LifecycleState(adopted=True))
    assert first.life.state.quarantine is not None
    assert remembered.quarantine == replace(first.life.state.quarantine, at=first.log.quarantined_at("S1"))
    assert budgets_left(remembered.progress, 0.0, RecoveryContext())[RecoveryAction.REBOOT] == 2


async def test_a_disk_that_stays_full_does_not_keep_the_daemon_from_ending(desk, monkeypatch):
    monkeypatch.setattr(database, "FLUSH_LIMIT_S", 0.01)
    first = desk()
    free, _ = fail(first, monkeypatch)
    first.stuck()
    await first.log.close()
    free()


async def test_a_promised_quarantine_is_refused_where_it_cannot_be_kept(desk, monkeypatch):
    first = desk()
    free, _ = fail(first, monkeypatch)
    with pytest.raises(StoreWriteError):
        await first.log.store_quarantine("S1", "it smokes")
    free()
    await first.log.store_quarantine("S1", "it smokes")
    kept = desk().log.remembered("S1", LifecycleState(adopted=True)).quarantine
    assert kept is not None
    first.log.restore_quarantine("S1")
    await first.log.close()
    assert desk().log.remembered("S1", LifecycleState(adopted=True)).quarantine is None


async def test_a_clock_that_stood_in_the_future_uses_a_budget_up_for_a_day_not_until_then(desk):
    first = desk()
    first.at = START + timedelta(days=300)
    first.stuck()
    await first.log.close()

    async def left(at):
        later = desk()
        later.at = at
        later.log = RecoveryLog(later.events, later.store.recoveries, clock=later.clock, monotonic=later.now_s)
        later.log.begin()
        await later.log.close()
        return budgets_left(later.log.remembered("S1", READY).progress, later.now_s(), RecoveryContext())[
            RecoveryAction.REBOOT
        ]

    assert [await left(START + timedelta(days=days)) for days in (0, 0.5, 2)] == [2, 2, 3]


async def test_wrong_numbers_of_before_a_restart_count(desk):
    first = desk()

    def wrong(of):
        of.on_event(m.PlainEvent.PROVISIONING_DUE)
        of.on_event(m.Provisioned(of.life.state.generation, "b"))
        of.on_event(m.ServerStarted(of.life.state.generation))
        of.on_event(m.WorkFailed(of.life.state.generation, "wrong numbers", fault=DeviceFault.WRONG))

    wrong(first)
    assert first.life.state.life is Life.STARTING
    await first.log.close()
    second = desk()
    second.at = START + timedelta(hours=23)
    second.log = RecoveryLog(second.events, second.store.recoveries, clock=second.clock, monotonic=second.now_s)
    second.life = Lifecycle(second.log.remembered("S1", replace(READY, ready_at=second.now_s())))
    wrong(second)
    assert second.life.state.life is Life.QUARANTINED
    await second.log.close()


async def test_a_quarantine_outlives_the_daemon_until_it_is_released(desk):
    first = desk()
    first.on_event(m.QuarantineOrdered("screen cracked"))
    await first.log.close()
    second = desk()
    kept = second.log.remembered("S1", LifecycleState(adopted=True))
    assert first.life.state.quarantine is not None
    assert kept.quarantine == replace(first.life.state.quarantine, at=START)
    assert second.log.quarantined_at("S1") == START
    second.life = Lifecycle(kept)
    second.at = START + timedelta(hours=2)
    second.on_event(m.PlainEvent.RELEASED)
    await second.log.close()
    assert desk().log.remembered("S1", LifecycleState(adopted=True)).quarantine is None
    (row,) = second.log.actions("S1")
    assert (row.action, row.outcome, row.took_s) == ("quarantine", "repaired", 7200.0)


async def test_who_waits_for_a_bundle_tries_again_after_a_restart(desk):
    first = desk()
    first.life = Lifecycle(LifecycleState(Life.PROVISIONING, adopted=True, identified=True, generation=2))
    first.on_event(m.WorkFailed(2, "no bundle for arm64-v8a", "farm bundle add", DeviceFault.BUNDLE))
    await first.log.close()
    assert first.life.state.life is Life.QUARANTINED
    second = desk()
    assert second.log.remembered("S1", LifecycleState(adopted=True)).quarantine is None
    assert first.store.recoveries.quarantined() != {}
    second.log.begin()
    await second.log.close()
    assert first.store.recoveries.quarantined() == {}
    assert [each.outcome for each in second.log.actions("S1")] == [ActionOutcome.CUT]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_quarantine_ends_its_row_though_the_phone_has_another_serial(desk, restarted):
    first = desk()
    first.on_event(m.QuarantineOrdered("screen cracked"))
    first.log.change_serial("S1", "10.0.0.7:5555")
    await first.log.close()
    second = desk() if restarted else first
    kept = first.life.state
    second.log.begin()
    second.log.recovery_changed("10.0.0.7:5555", "pixel", kept, replace(kept, quarantine=None))
    await second.log.close()
    (row,) = second.log.actions("10.0.0.7:5555")
    assert (row.action, row.outcome, row.detail) == ("quarantine", "repaired", "released")
    assert second.store.recoveries.open_quarantines() == ()


async def test_which_bundle_worked_is_remembered_and_all_of_it_moves_with_the_phone(desk):
    first = desk()
    first.life = Lifecycle(LifecycleState(Life.CHECKING, adopted=True, identified=True, generation=4, bundle="b2"))
    first.on_event(m.CheckPassed(4))
    first.on_event(m.QuarantineOrdered("screen cracked"))
    first.log.change_serial("S1", "10.0.0.7:5555")
    await first.log.close()
    second = desk()
    moved = second.log.remembered("10.0.0.7:5555", LifecycleState(adopted=True))
    assert (moved.proven, moved.quarantine is None) == ("b2", False)
    assert second.log.remembered("S1", LifecycleState()) == LifecycleState()
