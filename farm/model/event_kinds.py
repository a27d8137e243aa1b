"""Every kind of event that a daemon publishes, with its meaning. The reference is generated from this list.

A test compares the list with the sources; an acceptance test compares it with the events of a running farm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from farm.model.device import MEANING, Life
from farm.model.job import JobState


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind of event: its meaning, its subject, and the names of data that it always has."""

    kind: str
    meaning: str
    subject: str
    data: tuple[str, ...] = ()
    kept: bool = True  # in the store; else only current listeners get it


_BUNDLE = ("hash", "abi", "platform")
_LEASE = ("device", "user", "key", "fence")
_SESSION = ("device", "user", "session", "fence")
_JOB = ("kind", "user", "array", "state")
_ATTEMPT = ("job", "device", "fence", "lease")
_JOB_MEANING = {
    JobState.HELD: "its owner holds it",
    JobState.BLOCKED: "it waits for the jobs of `after`",
    JobState.QUEUED: "it waits for a phone (again)",
    JobState.RUNNING: "an attempt has a phone",
    JobState.DONE: "it is over: an attempt succeeded",
    JobState.FAILED: "it is over: `error` has the reason",
    JobState.CANCELLED: "it is over: `error` names the canceller",
}

_LIFE = tuple(EventKind(f"device.{life.value}", MEANING[life], "device", ("serial", "reason", "hint")) for life in Life)
_JOBS = tuple(EventKind(f"job.{state.value}", _JOB_MEANING[state], "job", _JOB) for state in JobState)
_OTHERS = (
    EventKind(
        "device.pushing", "progress of a push of the runtime", "device", ("sent_bytes", "total_bytes"), kept=False
    ),
    EventKind(
        "device.cooling", "heat closed the phone to classes of leases", "device", ("classes", "reason", "opens_in_s")
    ),
    EventKind("device.cool", "classes of leases are open again", "device", ("classes", "reason")),
    EventKind("device.finding", "probes found a problem", "device", ("finding", "act", "cause", "evidence", "hint")),
    EventKind(
        "device.finding_over",
        "probes no longer find the problem",
        "device",
        ("finding", "act", "cause", "evidence", "hint"),
    ),
    EventKind(
        "device.service",
        "an operator changed its service: draining, maintenance, in",
        "device",
        ("serial", "service", "before", "by", "reason"),
    ),
    EventKind("device.tidied", "leftovers of a person were removed", "device", ("killed", "removed", "left")),
    EventKind("device.repaired", "changed files of farm on it were pushed again", "device", ("files",)),
    EventKind(
        "recovery.action",
        "a recovery action begins",
        "device",
        ("action", "fault", "cause", "impact", "what"),
    ),
    EventKind(
        "recovery.ended", "a recovery action is over", "device", ("action", "cause", "outcome", "detail", "took_s")
    ),
    EventKind("battery.held", "charging is held back", "device", ("percent", "node")),
    EventKind("battery.charges", "the phone charges again", "device", ("percent", "node")),
    EventKind("battery.refused", "the phone refused to stop or resume charging", "device", ("reason",)),
    EventKind("hub.lost", "several phones of one hub vanished together", "hub", ("devices", "reason")),
    EventKind("hub.back", "they are there again", "hub", ("devices",)),
    EventKind(
        "host.lost", "the head has not heard of a host of the lab: its jobs continue elsewhere", "host", ("reason",)
    ),
    EventKind("host.back", "the head hears of it again", "host", ()),
    EventKind("host.removed", "a host that was removed from the lab has nothing any more", "host", ()),
    EventKind("host.usb_lost", "phones of several hubs vanished together", "usb", ("devices", "reason")),
    EventKind("host.usb_back", "they are there again", "usb", ("devices",)),
    EventKind("gate.lost", "the gate's process is gone: its sessions have ended", "gate", ("reason",)),
    EventKind("gate.back", "the gate's process is there again", "gate", ()),
    EventKind("builder.certified", "a machine joined with a token", "builder", ()),
    EventKind("builder.joined", "a builder's process is connected", "builder", ("slots", "tvm", "ffi", "farm")),
    EventKind("builder.left", "its connection has ended", "builder", ("built", "reason")),
    EventKind("builder.excluded", "it gets nothing more, for its faults", "builder", ("reason",)),
    EventKind("builder.killed", "a candidate killed builders, and has failed", "candidate", ("builders",)),
    EventKind("builder.removed", "it is a builder no more", "builder", ()),
    EventKind("adb.lost", "the adb server is gone, and is replaced", "adb", ("message",)),
    EventKind("adb.hangs", "the adb server hangs and is not replaced yet", "adb", ("message",)),
    EventKind("adb.clash", "another adb server holds the phones", "adb", ("message",)),
    EventKind("adb.back", "the adb server answers again", "adb", ("message",)),
    EventKind("lease.granted", "a request got a phone", "lease", (*_LEASE, "job", "lease_class", "source", "waited_s")),
    EventKind("lease.extended", "a lease ends later", "lease", (*_LEASE, "expires_at")),
    EventKind(
        "lease.expiring", "a person's lease is about to end", "lease", ("device", "user", "job", "expires_at", "left_s")
    ),
    EventKind("lease.hot", "a leased phone is above a hard limit", "lease", (*_LEASE, "job", "reason")),
    EventKind("lease.revoked", "farm or an operator ended a lease", "lease", (*_LEASE, "reason")),
    EventKind("lease.released", "a lease has ended; every lease ends with it", "lease", (*_LEASE, "reason", "held_s")),
    EventKind("session.opened", "a TVM session begins", "lease", (*_SESSION, "peer")),
    EventKind("session.cut", "the gate ended a session", "lease", (*_SESSION, "reason")),
    EventKind(
        "session.ended",
        "a TVM session is over",
        "lease",
        (*_SESSION, "outcome", "bytes_up", "bytes_down", "seconds", "detail"),
    ),
    EventKind("job.submitted", "a job was added", "job", _JOB),
    EventKind("job.resumed", "a held job continues", "job", _JOB),
    EventKind("job.waits", "the last phone it could have had now is away or withheld", "job", ("reason",), kept=False),
    EventKind("job.progress", "a step of an attempt", "job", (), kept=False),
    EventKind("attempt.started", "an attempt begins", "attempt", _ATTEMPT),
    EventKind("attempt.ended", "an attempt is over", "attempt", (*_ATTEMPT, "kind", "state", "error")),
    EventKind(
        "reservation.added",
        "phones are reserved for a user",
        "reservation",
        ("selector", "user", "starts_at", "ends_at", "note"),
    ),
    EventKind(
        "reservation.removed",
        "a reservation was removed",
        "reservation",
        ("selector", "user", "starts_at", "ends_at", "note"),
    ),
    EventKind("bundle.candidate", "a new runtime bundle is to be rolled out", "bundle", (*_BUNDLE, "current")),
    EventKind("bundle.canary", "the first phone gets the candidate", "bundle", (*_BUNDLE, "serial", "device")),
    EventKind("bundle.trying", "another phone gets the candidate", "bundle", (*_BUNDLE, "serial", "device")),
    EventKind(
        "bundle.failed",
        "a bundle new to a phone failed there: it gets its last proven one back",
        "bundle",
        (*_BUNDLE, "serial", "device", "reason"),
    ),
    EventKind("bundle.refused", "no phone gets the bundle any more", "bundle", (*_BUNDLE, "reason")),
    EventKind("bundle.current", "the bundle of every phone of its ABI", "bundle", (*_BUNDLE, "previous")),
    EventKind("toolchain.added", "a toolchain was added", "toolchain"),
    EventKind("toolchain.removed", "a toolchain was removed", "toolchain"),
    EventKind(
        "poison.reported", "a library killed its process", "artifact", ("device", "what", "kills", "user", "job")
    ),
    EventKind("poison.forgotten", "an operator allows the library again", "artifact", ("user",)),
    EventKind("clock.jumped", "the host's wall clock was set", "clock", ("seconds",)),
    EventKind(
        "results.stopped",
        "the next result of a series with a rhythm is late",
        "model",
        ("device", "job", "reason", "period_s"),
    ),
    EventKind("results.resumed", "it has results again, or none are due", "model", ("device", "job")),
    EventKind("store.full", "the database cannot be written", "store", ("reason",)),
    EventKind("store.back", "it can be written again", "store", ("reason",)),
    EventKind(
        "config.reloaded",
        "the configuration was reloaded: keys in force, keys that need a restart",
        "daemon",
        ("by", "applied", "restart"),
    ),
    EventKind("host.draining", "an operator drained the host", "host", ("by",)),
    EventKind("host.in_service", "phones are handed out again", "host", ("by",)),
    EventKind("config.refused", "a reload failed: the old configuration stays", "daemon", ("by", "reason")),
    EventKind("daemon.started", "a daemon began to serve", "daemon", ("epoch", "version")),
)

# Of these the log warns: an operator may have to act.
TROUBLE = frozenset({
    "adb.clash", "adb.hangs", "adb.lost", "builder.excluded", "bundle.failed", "bundle.refused", "config.refused",
    "device.quarantined", "gate.lost", "host.lost", "host.usb_lost", "hub.lost", "poison.reported", "store.full",
})  # fmt: skip

KINDS: Mapping[str, EventKind] = MappingProxyType({each.kind: each for each in (*_LIFE, *_JOBS, *_OTHERS)})
