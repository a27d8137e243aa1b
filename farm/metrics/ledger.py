"""Counters that only events know. A pure fold: `FarmCollector` subscribes it to the event log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from farm.common.events import Event
from farm.common.histogram import REPAIR_S, WAIT_S, Histogram
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.devices.lifecycle.state import LINK_DOWN
from farm.model.job import FINAL, JobState

# The faults of devices that needed no recovery action.
LINK, CLEANING = "link", "cleaning"
# A fresh start of a ready device is a repair when a recovery action asked for it; else it brings another bundle.
_WITHOUT_ACTION = {
    **{f"device.{life}": LINK for life in LINK_DOWN},
    "device.recovering": CLEANING,
    "device.quarantined": CLEANING,
    **dict.fromkeys(("device.provisioning", "device.starting", "device.checking"), ""),
}
MAX_USERS = 20
OTHER = "other"
_ENDED = {f"job.{state}": state.value for state in JobState if state in FINAL}


class Ledger:
    """Counts of events since the daemon started."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()  # by topic, the first word of their kind
        self.outages = 0  # of the store
        self.clock_jumps = 0
        self.adb_losses = 0
        self.adb_hangs = False
        self.gate_lost = False
        self.usb_faults: dict[str, frozenset[str]] = {}  # by hub: the devices that are lost
        self.actions: Counter[tuple[str, str]] = Counter()  # by fault and action
        self.recoveries = defaultdict[tuple[str, str], Histogram](partial(Histogram, REPAIR_S))  # by action and outcome
        self.repairs = defaultdict[str, Histogram](partial(Histogram, REPAIR_S))  # by fault
        self.quarantines: Counter[str] = Counter()  # by fault
        self.faults: dict[str, str] = {}  # of devices under recovery
        self.waits = defaultdict[tuple[str, str], Histogram](partial(Histogram, WAIT_S))  # by class and source
        self.held = Histogram(WAIT_S)
        self.revoked = 0
        self.sessions: Counter[str] = Counter()  # by outcome
        self.session_s = Histogram(WAIT_S)
        self.relayed: Counter[str] = Counter({"up": 0, "down": 0})
        self.user_s: defaultdict[str, float] = defaultdict(float)
        self.submitted: Counter[str] = Counter()  # by kind
        self.jobs: Counter[tuple[str, str]] = Counter()  # by kind and how they ended
        self.attempts: Counter[tuple[str, str, str]] = Counter()  # by kind, state and fault
        self.trials = 0
        self.builds: Counter[str] = Counter({"local": 0, "remote": 0})  # of candidates, by where
        self.poisons = 0
        self._users: set[str] = set()  # with a label of their own
        self._ready: set[str] = set()
        # By device that was ready and is not: since when (seconds since 1970), and the fault if no event names one.
        self._down: dict[str, tuple[float, str]] = {}
        self._trials: dict[str, int] = {}  # by job that has not ended: counted so far
        self._builds: dict[str, Mapping[str, int]] = {}  # likewise
        self._billed: dict[str, float] = {}  # lease -> seconds in `user_s`
        self._missing: AbstractSet[str] = frozenset()  # leases of `_billed` that had ended at the latest scrape

    def take(self, event: Event) -> None:
        """Count one event."""
        topic, _, what = event.kind.partition(".")
        self.events[topic] += 1
        data: Mapping[str, Any] = event.data
        match topic:
            case "device":
                self._device(event)
            case "recovery":
                self._recovery(event, data)
            case "lease":
                self._lease(event, data)
            case "session" if what == "ended":
                self.sessions[data["outcome"]] += 1
                self.session_s.observe(data["seconds"])
                self.relayed["up"] += data["bytes_up"]
                self.relayed["down"] += data["bytes_down"]
            case "job" | "attempt":
                self._job(event, data)
            case "hub":
                self._usb(event, data)
            case "host" if what.startswith("usb_"):  # the other kinds are about hosts of a lab
                self._usb(event, data)
            case "adb":
                self._adb(what)
            case "gate":
                self.gate_lost = what == "lost"
            case "store" if what == "full":
                self.outages += 1
            case "clock":
                self.clock_jumps += 1
            case "poison" if what == "reported":
                self.poisons += 1

    def lost_with(self, device: str) -> str:
        """What is lost together with the device: "hub" or "host"; else ""."""
        for hub, devices in self.usb_faults.items():
            if device in devices:
                return "host" if hub == "usb" else "hub"
        return ""

    def bill(self, lease: str, user: str, held_s: float) -> None:
        """A lease has been held so long by now. A lease from before the daemon's start counts from now on."""
        if lease not in self._billed:
            self._billed[lease] = held_s
        elif held_s > self._billed[lease]:
            self.user_s[self.user_label(user)] += held_s - self._billed[lease]
            self._billed[lease] = held_s

    def user_label(self, user: str) -> str:
        """The first `MAX_USERS` keep their names for good, so that their counters never jump; the rest are "other"."""
        if user not in self._users and len(self._users) >= MAX_USERS:
            return OTHER
        self._users.add(user)
        return user or "farm"

    def billed_are(self, held: AbstractSet[str]) -> None:
        """These leases are held now. A lease that was missing last time, too, has ended, whatever was billed since."""
        missing = self._billed.keys() - held
        for lease in missing & self._missing:
            del self._billed[lease]
        self._missing = missing

    def _device(self, event: Event) -> None:
        name, at_s = event.subject, event.at.timestamp()
        if event.kind == "device.ready":
            self._ready.add(name)
            fault, down = self.faults.pop(name, ""), self._down.pop(name, None)
            if down is not None and (wrong := fault or down[1]):
                self.repairs[wrong].observe(max(0.0, at_s - down[0]))
        elif event.kind in _WITHOUT_ACTION and name in self._ready:
            self._ready.discard(name)
            self._down[name] = (at_s, _WITHOUT_ACTION[event.kind])

    def _recovery(self, event: Event, data: Mapping[str, Any]) -> None:
        if event.kind == "recovery.action":
            fault, action = data["fault"], data["action"]
            self.actions[fault, action] += 1
            self.faults.setdefault(event.subject, fault)
            if action == RecoveryAction.QUARANTINE:
                self.quarantines[fault] += 1
        elif event.kind == "recovery.ended":
            self.recoveries[data["action"], data["outcome"]].observe(data["took_s"])

    def _lease(self, event: Event, data: Mapping[str, Any]) -> None:
        match event.kind:
            case "lease.granted":
                self.waits[data["lease_class"], data["source"]].observe(data["waited_s"])
                self._billed[event.subject] = 0.0
            case "lease.released":
                self.held.observe(data["held_s"])
                self.bill(event.subject, data["user"], data["held_s"])
                self._billed.pop(event.subject, None)
            case "lease.revoked":
                self.revoked += 1

    def _job(self, event: Event, data: Mapping[str, Any]) -> None:
        job = event.subject
        match event.kind:
            case "job.submitted":
                self.submitted[data["kind"]] += 1
                self._trials[job] = 0
                self._builds[job] = {}
            case "job.progress":
                tuning = data.get("tuning")
                if isinstance(tuning, Mapping) and isinstance(trials := tuning.get("trials"), int):
                    self.trials += max(0, trials - self._trials.get(job, trials))
                    self._trials[job] = trials
                    self._count_builds(job, tuning.get("builds", {}))
            case "attempt.ended":
                fault = (data["error"] or {}).get("fault", "")
                self.attempts[data["kind"], str(data["state"]), fault] += 1
            case ended if ended in _ENDED:
                self.jobs[data["kind"], _ENDED[ended]] += 1
                self._trials.pop(job, None)
                self._builds.pop(job, None)

    def _count_builds(self, job: str, builds: Mapping[str, int]) -> None:
        """Count an attempt's builds; the next attempt of a job begins at 0 again."""
        before = self._builds.get(job, builds)
        for where in self.builds:
            now = builds.get(where, 0)
            self.builds[where] += now - before.get(where, 0) if now >= before.get(where, 0) else now
        self._builds[job] = builds

    def _usb(self, event: Event, data: Mapping[str, Any]) -> None:
        if event.kind.endswith("lost"):
            self.usb_faults[event.subject] = frozenset(data["devices"])
        else:
            self.usb_faults.pop(event.subject, None)

    def _adb(self, what: str) -> None:
        if what == "lost":
            self.adb_losses += 1
        self.adb_hangs = what == "hangs" or (self.adb_hangs and what == "clash")
