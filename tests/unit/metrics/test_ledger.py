"""Counts that only events know: a fold over them."""

from datetime import UTC, datetime, timedelta

import pytest

from farm.common.events import EventLog
from farm.common.histogram import Histogram
from farm.metrics.ledger import MAX_USERS, OTHER, Ledger


def device(*lives, name="a"):
    return [(f"device.{life}", name, {}) for life in lives]


def action(action, fault):
    return ("recovery.action", "a", {"action": action, "fault": fault})


def ended(name, took_s):
    return ("recovery.ended", name, {"action": "reap", "outcome": "repaired", "took_s": took_s})


def granted(lease, **data):
    return ("lease.granted", lease, {"lease_class": "bench", "source": "job", "waited_s": 2.0, **data})


def released(lease, held_s):
    return ("lease.released", lease, {"user": "ann", "held_s": held_s})


def billed(lease, *times_s):
    return [lambda ledger, held_s=held_s: ledger.bill(lease, "ann", held_s) for held_s in times_s]


def searched(job, trials, local=0, remote=0):
    return ("job.progress", job, {"tuning": {"trials": trials, "builds": {"local": local, "remote": remote}}})


def session(outcome):
    return ("session.ended", "lease-1", {"outcome": outcome, "seconds": 2.0, "bytes_up": 10, "bytes_down": 3})


ATTEMPT = {"kind": "tune", "state": "failed", "error": {"fault": "phone"}}
LOST_HOST = [(kind, "lab2", {"reason": "silent"}) for kind in ("host.lost", "host.back", "host.removed")]
HUB_LOST = [("hub.lost", "1-4", {"devices": ("a", "b")}), ("host.usb_lost", "usb", {"devices": ("c",)})]
HUB_BACK = [("hub.back", "1-4", {"devices": ("a",)}), ("host.usb_back", "usb", {"devices": ()})]
SERVER_DIED = [*device("ready", "recovering"), action("restart-server", "server")]
STORIES = {  # events, a number where seconds pass; and what the ledger has then
    "a repair lasts from ready to ready and is named by what was wrong first": (
        [*SERVER_DIED, 40, action("reboot", "start"), *device("gone", "identifying", "checking"), 30, *device("ready")],
        {"repairs": {"server": 70.0}, "actions": {("server", "restart-server"): 1, ("start", "reboot"): 1}},
    ),
    "a device that was never ready is not repaired": (
        [*device("offline", "identifying"), action("re-push", "start"), *device("ready")], {"repairs": {}},
    ),
    "a server of another bundle is no repair": (device("ready", "starting", "checking", "ready"), {"repairs": {}}),
    "a fresh server is a repair when recovery asked for it": (
        [*device("ready", "starting"), action("restart-server", "server"), 2, *device("checking", "ready")],
        {"repairs": {"server": 2.0}},
    ),
    "a link and a cleaning are no faults but are told apart": (
        [*device("ready", "gone", "identifying"), 1, *device("ready"), *device("ready", "recovering", name="b"), 2,
         *device("checking", "ready", name="b")],
        {"repairs": {"link": 1.0, "cleaning": 2.0}},
    ),
    "a fault holds": (
        [*device("ready", "recovering"), action("quarantine", "wrong")],
        {"faults": {"a": "wrong"}, "quarantines": {"wrong": 1}},
    ),
    "a fault is over when the device is ready": (
        [*device("ready", "recovering"), action("quarantine", "wrong"), *device("identifying", "ready")],
        {"faults": {}},
    ),
    "recoveries are timed by action and outcome":
        ([ended("a", 0.5), ended("b", 1.5)], {"recoveries": {("reap", "repaired"): 2.0}}),
    "waits are by class and source": (
        [granted("lease-1"), granted("lease-2", source="tvm", lease_class="interactive", waited_s=0.05)],
        {"waits": {("bench", "job"): 2.0, ("interactive", "tvm"): 0.05}},
    ),
    "a lease is billed once however often it is looked at": (
        [granted("lease-1"), *billed("lease-1", 10.0, 25.0, 25.0), released("lease-1", 30.0)],
        {"user_s": {"ann": 30.0}},
    ),
    "a lease of before the start is billed from now on":
        (billed("lease-0", 5000.0, 5010.0), {"user_s": {"ann": 10.0}}),
    "sessions and their bytes": (
        [session("closed"), session("phone-closed")],
        {"sessions": {"closed": 1, "phone-closed": 1}, "relayed": {"up": 20, "down": 6}},
    ),
    "jobs, attempts and trials": (
        [("job.submitted", "tune-0a", {"kind": "tune"}), *(searched("tune-0a", trials) for trials in (8, 8, 20)),
         ("attempt.ended", "tune-0a.1", ATTEMPT), ("job.progress", "tune-0a", {"step": "compile"}),
         searched("tune-0a", 24), ("job.done", "tune-0a", {"kind": "tune", "state": "done"})],
        {"trials": 24, "attempts": {("tune", "failed", "phone"): 1}, "jobs": {("tune", "done"): 1}},
    ),
    "trials of before the start do not count again":
        ([searched("tune-0a", 500), searched("tune-0a", 504)], {"trials": 4}),
    "builds count by where, and each attempt begins again": (
        [searched("tune-0a", 1, 5, 7), ("job.submitted", "tune-0b", {"kind": "tune"}),  # the first: before us
         *(searched("tune-0b", 1, *built) for built in ((2, 0), (2, 3), (0, 1)))],
        {"builds": {"local": 2, "remote": 4}},
    ),
    "the gate is lost": ([("gate.lost", "gate", {"reason": "it closed its end"})], {"gate_lost": True}),
    "the gate is back": ([("gate.lost", "gate", {}), ("gate.back", "gate", {})], {"gate_lost": False}),
    "adb hangs": ([("adb.hangs", "adb", {})], {"adb_hangs": True}),
    "adb is back": ([("adb.hangs", "adb", {}), ("adb.back", "adb", {})], {"adb_hangs": False}),
    "adb is lost": ([("adb.hangs", "adb", {}), ("adb.lost", "adb", {})], {"adb_hangs": False, "adb_losses": 1}),
    "lost hubs hold until they are back": ([*HUB_LOST, *HUB_BACK], {"usb_faults": {}}),
    "a lost host of a lab is no fault of USB": (LOST_HOST, {"usb_faults": {}}),
}  # fmt: skip


def shown(value):
    """Of a histogram, what it adds up to."""
    if isinstance(value, Histogram):
        return value.total
    return {key: shown(each) for key, each in value.items()} if isinstance(value, dict) else value


def told(events):
    """A ledger that heard this."""
    now = [datetime(2026, 11, 22, tzinfo=UTC)]
    log, ledger = EventLog(clock=lambda: now[0]), Ledger()
    log.subscribe(ledger.take)
    for event in events:
        if isinstance(event, int):
            now[0] += timedelta(seconds=event)
        elif callable(event):
            event(ledger)
        else:
            kind, subject, data = event
            log.publish(kind, subject, **data)
    return ledger


@pytest.mark.parametrize("name", STORIES)
def test_story(name):
    events, expected = STORIES[name]
    ledger = told(events)
    assert {field: shown(getattr(ledger, field)) for field in expected} == expected


def test_a_device_is_lost_with_its_hub_or_its_host():
    assert [told(HUB_LOST).lost_with(name) for name in "acd"] == ["hub", "host", ""]
    assert told([*HUB_LOST, *HUB_BACK, *LOST_HOST]).events["host"] == 5


def test_only_so_many_users_have_names():
    ledger, names = Ledger(), [f"user-{number}" for number in range(MAX_USERS)]
    assert [ledger.user_label(name) for name in names] == names
    assert [ledger.user_label(name) for name in ("one-more", "user-0")] == [OTHER, "user-0"]


def test_a_lease_that_a_scrape_saw_once_more_after_its_end_is_forgotten():
    # Its end was told before its holder had gone.
    ledger = told([*billed("lease-1", 5.0), released("lease-1", 7.0), *billed("lease-1", 7.0)])
    ledger.billed_are({"lease-1"})
    ledger.billed_are(set())
    assert ledger._billed == {"lease-1": 7.0}  # a lease of which the grant was told already may come yet
    ledger.billed_are(set())
    assert (ledger._billed, ledger.user_s) == ({}, {"ann": 2.0})
