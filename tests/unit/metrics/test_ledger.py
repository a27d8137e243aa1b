"""Counts that only events know: a fold over them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from farm.common.events import EventLog
from farm.metrics.ledger import MOST_USERS, OTHER, Ledger


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 22, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Told:
    """A ledger that hears what is published."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.log = EventLog(clock=self.clock)
        self.ledger = Ledger()
        self.log.subscribe(self.ledger.take)

    def later(self, seconds: float) -> None:
        self.clock.now += timedelta(seconds=seconds)

    def device(self, *lives: str, name: str = "a") -> None:
        for life in lives:
            self.log.publish(f"device.{life}", name)

    def action(self, action: str, fault: str, name: str = "a") -> None:
        self.log.publish("recovery.action", name, action=action, fault=fault)


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_repair_lasts_from_ready_to_ready_and_is_named_by_what_was_wrong_first(told: Told) -> None:
    told.device("ready", "recovering")
    told.action("restart-server", "server")
    told.later(40)
    told.action("reboot", "start")
    told.device("gone", "identifying", "checking")
    told.later(30)
    told.device("ready")
    assert {fault: each.total for fault, each in told.ledger.repairs.items()} == {"server": 70.0}
    assert told.ledger.actions == {("server", "restart-server"): 1, ("start", "reboot"): 1}


def test_a_device_that_was_never_ready_is_not_repaired(told: Told) -> None:
    told.device("offline", "identifying")
    told.action("re-push", "start")
    told.device("ready")
    assert not told.ledger.repairs


def test_a_fresh_server_is_a_repair_only_when_recovery_asked_for_it(told: Told) -> None:
    told.device("ready", "starting", "checking", "ready")  # another bundle
    assert not told.ledger.repairs
    told.device("starting")
    told.action("restart-server", "server")
    told.later(2)
    told.device("checking", "ready")
    assert told.ledger.repairs["server"].total == 2.0


def test_a_link_and_a_cleaning_are_no_faults_but_are_told_apart(told: Told) -> None:
    told.device("ready", "gone", "identifying", "ready")
    told.device("ready", "recovering", "checking", "ready", name="b")
    assert {fault: each.cumulative()[-1][1] for fault, each in told.ledger.repairs.items()} == {
        "link": 1,
        "cleaning": 1,
    }


def test_a_fault_is_over_when_the_device_is_ready(told: Told) -> None:
    told.device("ready", "recovering")
    told.action("quarantine", "wrong")
    assert told.ledger.faults == {"a": "wrong"}
    assert told.ledger.quarantines == {"wrong": 1}
    told.device("identifying", "ready")
    assert told.ledger.faults == {}


def test_recoveries_are_timed_by_action_and_outcome(told: Told) -> None:
    told.log.publish("recovery.ended", "a", action="reap", outcome="repaired", took_s=0.5)
    told.log.publish("recovery.ended", "b", action="reap", outcome="repaired", took_s=1.5)
    assert told.ledger.recoveries["reap", "repaired"].total == 2.0


def granted(told: Told, lease: str, **data: object) -> None:
    told.log.publish("lease.granted", lease, **{"lease_class": "bench", "source": "job", "waited_s": 2.0, **data})


def test_waits_are_by_class_and_source(told: Told) -> None:
    granted(told, "lease-1")
    granted(told, "lease-2", source="tvm", lease_class="interactive", waited_s=0.05)
    assert told.ledger.waits["bench", "job"].total == 2.0
    assert told.ledger.waits["interactive", "tvm"].total == 0.05


def test_a_lease_is_billed_once_however_often_it_is_looked_at(told: Told) -> None:
    granted(told, "lease-1")
    for held_s in (10.0, 25.0, 25.0):
        told.ledger.bill("lease-1", "ann", held_s)
    told.log.publish("lease.released", "lease-1", user="ann", held_s=30.0)
    assert told.ledger.user_s == {"ann": 30.0}


def test_a_lease_of_before_the_start_is_billed_from_now_on(told: Told) -> None:
    told.ledger.bill("lease-0", "ann", 5000.0)
    told.ledger.bill("lease-0", "ann", 5010.0)
    assert told.ledger.user_s == {"ann": 10.0}


def test_only_so_many_users_have_names() -> None:
    ledger = Ledger()
    first = [ledger.user_label(f"user-{number}") for number in range(MOST_USERS)]
    assert first == [f"user-{number}" for number in range(MOST_USERS)]
    assert ledger.user_label("one-more") == OTHER
    assert ledger.user_label("user-0") == "user-0"


def test_sessions_and_their_bytes(told: Told) -> None:
    for outcome in ("closed", "phone-closed"):
        told.log.publish("session.ended", "lease-1", outcome=outcome, seconds=2.0, bytes_up=10, bytes_down=3)
    assert told.ledger.sessions == {"closed": 1, "phone-closed": 1}
    assert told.ledger.relayed == {"up": 20, "down": 6}


def test_jobs_attempts_and_trials(told: Told) -> None:
    told.log.publish("job.submitted", "tune-0a", kind="tune")
    for trials in (8, 8, 20):
        told.log.publish("job.progress", "tune-0a", step="search", tuning={"trials": trials})
    told.log.publish("attempt.ended", "tune-0a.1", kind="tune", state="failed", error={"fault": "phone"})
    told.log.publish("job.progress", "tune-0a", step="compile")
    told.log.publish("job.progress", "tune-0a", step="search", tuning={"trials": 24})
    told.log.publish("job.done", "tune-0a", kind="tune", state="done")
    assert told.ledger.trials == 24
    assert told.ledger.attempts == {("tune", "failed", "phone"): 1}
    assert told.ledger.jobs == {("tune", "done"): 1}


def test_the_gate_is_lost_until_it_is_back(told: Told) -> None:
    told.log.publish("gate.lost", "gate", reason="it closed its end")
    assert told.ledger.gate_lost
    told.log.publish("gate.back", "gate")
    assert not told.ledger.gate_lost


def test_a_lease_that_a_scrape_saw_once_more_after_its_end_is_forgotten(told: Told) -> None:
    ledger = told.ledger
    ledger.bill("lease-1", "anna", 5.0)
    told.log.publish("lease.released", "lease-1", user="anna", held_s=7.0)
    ledger.bill("lease-1", "anna", 7.0)  # its end was told before its holder had gone
    ledger.billed_are({"lease-1"})
    ledger.billed_are(set())
    assert ledger._billed == {"lease-1": 7.0}  # a lease of which the grant was told already may come yet
    ledger.billed_are(set())
    assert ledger._billed == {}
    assert ledger.user_s == {"anna": 2.0}


def test_trials_of_before_the_start_do_not_count_again(told: Told) -> None:
    told.log.publish("job.progress", "tune-0a", tuning={"trials": 500})
    told.log.publish("job.progress", "tune-0a", tuning={"trials": 504})
    assert told.ledger.trials == 4


def test_lost_hubs_hold_until_they_are_back(told: Told) -> None:
    told.log.publish("hub.lost", "1-4", devices=("a", "b"))
    told.log.publish("host.usb_lost", "usb", devices=("c",))
    assert [told.ledger.lost_with(name) for name in "acd"] == ["hub", "host", ""]
    told.log.publish("hub.back", "1-4", devices=("a",))
    told.log.publish("host.usb_back", "usb", devices=())
    assert told.ledger.usb_faults == {}
    for kind in ("host.lost", "host.back", "host.removed"):  # of a lab's head: no fault of USB
        told.log.publish(kind, "lab2", reason="it has not been heard of")
    assert told.ledger.usb_faults == {}
    assert told.ledger.events["host"] == 5


def test_adb_hangs_until_it_is_lost_or_back(told: Told) -> None:
    told.log.publish("adb.hangs", "adb")
    assert told.ledger.adb_hangs
    told.log.publish("adb.back", "adb")
    assert not told.ledger.adb_hangs
    told.log.publish("adb.lost", "adb")
    assert told.ledger.adb_losses == 1


def test_builds_count_by_where_and_each_attempt_begins_anew(told: Told) -> None:
    told.log.publish("job.progress", "tune-0a", tuning={"trials": 1, "builds": {"local": 5, "remote": 7}})  # before us
    told.log.publish("job.submitted", "tune-0b", kind="tune")
    for local, remote in ((2, 0), (2, 3), (0, 1)):  # the last one: another attempt
        told.log.publish("job.progress", "tune-0b", tuning={"trials": 1, "builds": {"local": local, "remote": remote}})
    assert told.ledger.builds == {"local": 2, "remote": 4}


def test_a_lost_host_of_a_lab_is_no_fault_of_usb(told: Told) -> None:
    for kind in ("host.lost", "host.back", "host.removed"):
        told.log.publish(kind, "lab2", reason="silent")
    assert (told.ledger.events["host"], told.ledger.usb_faults) == (3, {})
