"""Every kind of event that a daemon publishes, in words: the one list that documents and tests are made of.

A test reads the sources and fails when one of them publishes a kind that is not here; an acceptance test compares the
events of a running farm with `DATA`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from farm.core.device import Life
from farm.core.job import JobState
from farm.core.lifecycle_state import MEANING


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind: what has happened, what the event is about, and which data it always carries."""

    kind: str
    meaning: str
    subject: str
    data: tuple[str, ...] = ()
    kept: bool = True  # in the store; else it is told to who listens, and forgotten


_LEASE = ("device", "user", "key", "fence")
_SESSION = ("device", "user", "session", "fence")
_JOB_MEANING = {
    JobState.HELD: "its owner holds it back",
    JobState.BLOCKED: "it waits for the jobs of `after`",
    JobState.QUEUED: "it waits for a phone (again)",
    JobState.RUNNING: "an attempt has a phone",
    JobState.DONE: "it is over: an attempt succeeded",
    JobState.FAILED: "it is over: `error` says why",
    JobState.CANCELLED: "it is over: `error` says on whose word",
}

_LIFE = tuple(EventKind(f"device.{life.value}", MEANING[life], "device", ("serial", "reason", "hint")) for life in Life)
_JOBS = tuple(
    EventKind(f"job.{state.value}", _JOB_MEANING[state], "job", ("state", "user", "array")) for state in JobState
)
_OTHERS = (
    EventKind(
        "device.pushing", "how far the runtime is on its way", "device", ("sent_bytes", "total_bytes"), kept=False
    ),
    EventKind("device.cooling", "heat closed classes of leases", "device", ("classes", "reason", "opens_in_s")),
    EventKind("device.cool", "classes of leases are open again", "device", ("classes", "reason")),
    EventKind("device.finding", "probes find something wrong", "device", ("finding", "what", "hint", "act")),
    EventKind("device.finding_over", "probes no longer find it", "device", ("finding", "what", "hint", "act")),
    EventKind(
        "device.service",
        "an operator drains it, maintains it or takes it back",
        "device",
        ("serial", "service", "before", "by", "reason"),
    ),
    EventKind("device.tidied", "what a person left was removed", "device", ("killed", "removed", "left")),
    EventKind("device.repaired", "the farm's files on it had been changed and were pushed again", "device", ("files",)),
    EventKind(
        "recovery.rung",
        "a rung of the recovery ladder is taken",
        "device",
        ("rung", "ailment", "cause", "radius", "what"),
    ),
    EventKind("recovery.ended", "a rung is over", "device", ("rung", "cause", "outcome", "detail", "took_s")),
    EventKind("battery.held", "charging is held back", "device", ("percent", "node")),
    EventKind("battery.charges", "the phone charges again", "device", ("percent", "node")),
    EventKind("battery.refused", "the phone does not let charging be held back", "device", ("reason",)),
    EventKind("hub.lost", "several phones of one hub vanished together", "hub", ("devices", "reason")),
    EventKind("hub.back", "they are there again", "hub", ("devices",)),
    EventKind("host.usb_lost", "phones of several hubs vanished together", "usb", ("devices", "reason")),
    EventKind("host.usb_back", "they are there again", "usb", ("devices",)),
    EventKind("gate.lost", "the gate's process is gone: its sessions have ended", "gate", ("reason",)),
    EventKind("gate.back", "the gate's process is there again", "gate", ()),
    EventKind("adb.lost", "the adb server is gone, and is replaced", "adb", ("message",)),
    EventKind("adb.hangs", "the adb server hangs, and is left alone for now", "adb", ("message",)),
    EventKind("adb.clash", "another adb server holds the phones", "adb", ("message",)),
    EventKind("adb.back", "the adb server answers again", "adb", ("message",)),
    EventKind(
        "lease.granted", "somebody has got a phone", "lease", (*_LEASE, "job", "lease_class", "door", "waited_s")
    ),
    EventKind("lease.extended", "a lease ends later", "lease", (*_LEASE, "expires_at")),
    EventKind(
        "lease.expiring", "a person's lease is about to end", "lease", ("device", "user", "job", "expires_at", "left_s")
    ),
    EventKind("lease.hot", "the phone in somebody's hands is above a hard limit", "lease", (*_LEASE, "job", "reason")),
    EventKind("lease.revoked", "a lease is taken from its holder", "lease", (*_LEASE, "reason")),
    EventKind("lease.released", "a lease has ended; every lease ends with it", "lease", (*_LEASE, "reason", "held_s")),
    EventKind("session.opened", "a TVM session begins", "lease", (*_SESSION, "peer")),
    EventKind("session.cut", "the gate ended a session", "lease", (*_SESSION, "reason")),
    EventKind(
        "session.ended",
        "a TVM session is over",
        "lease",
        (*_SESSION, "outcome", "bytes_up", "bytes_down", "seconds", "detail"),
    ),
    EventKind("job.submitted", "a job was added", "job", ("kind", "user", "array", "state")),
    EventKind("job.resumed", "a held job goes on", "job", ("state", "user", "array")),
    EventKind("job.progress", "a step of an attempt", "job", (), kept=False),
    EventKind("attempt.started", "an attempt begins", "attempt", ("job", "device", "fence", "lease")),
    EventKind("attempt.ended", "an attempt is over", "attempt", ("job", "device", "fence", "lease", "state", "error")),
    EventKind(
        "reservation.added",
        "phones are kept for somebody",
        "reservation",
        ("selector", "user", "starts_at", "ends_at", "note"),
    ),
    EventKind(
        "reservation.removed", "they no longer are", "reservation", ("selector", "user", "starts_at", "ends_at", "note")
    ),
    EventKind("toolchain.added", "a toolchain was added", "toolchain"),
    EventKind("toolchain.removed", "a toolchain was removed", "toolchain"),
    EventKind("poison.told", "a library killed what ran it", "artifact", ("device", "what", "kills", "user", "job")),
    EventKind("poison.forgotten", "an operator lets it be run again", "artifact", ("user",)),
    EventKind("clock.jumped", "the host's wall clock was set", "clock", ("seconds",)),
    EventKind("store.full", "the database cannot be written", "store", ("reason",)),
    EventKind("store.back", "it can be written again", "store", ("reason",)),
    EventKind(
        "config.reloaded",
        "the configuration was read again: keys in force, keys that wait",
        "daemon",
        ("by", "applied", "restart"),
    ),
    EventKind("host.draining", "an operator wants no phone to be handed out", "host", ("by",)),
    EventKind("host.in_service", "phones are handed out again", "host", ("by",)),
    EventKind("config.refused", "it was to be read again and is wrong: the old one holds", "daemon", ("by", "reason")),
    EventKind("daemon.started", "a daemon began to serve", "daemon", ("epoch", "version")),
)

KINDS: Mapping[str, EventKind] = MappingProxyType({each.kind: each for each in (*_LIFE, *_JOBS, *_OTHERS)})
