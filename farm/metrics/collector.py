"""The one collector: reads the farm's state at each scrape, and the counts of events until then."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from farm.common.events import Event, EventLog
from farm.common.histogram import Histogram
from farm.devices.thermal.thermal_rules import HeatPolicy
from farm.head.host_rules import HostState
from farm.leasing.lab_view import LabPicture
from farm.leasing.model import Holder
from farm.metrics.devices import DeviceTime, SensorNames, add_device, state_of
from farm.metrics.exposition import Page
from farm.metrics.ledger import Ledger
from farm.metrics.process import ProcessSources, QueueFigures, add_decisions, add_process, add_queue
from farm.model.device import DeviceView, Life, Service
from farm.model.health import DeviceFault
from farm.model.requests import LeaseClass, LeaseSource
from farm.model.sessions import SessionOutcome
from farm.store.writer import write_ahead_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources(ProcessSources):
    """The state that the collector reads, from the daemon's parts. No function of it waits or asks the store."""

    epoch: int
    state_dir: Path
    database: Path | None = None  # the SQLite file; None on a server

    views: Callable[[], tuple[DeviceView, ...]]
    quarantined: Callable[[], Mapping[str, str]] = dict  # serial -> fault
    probe_failures: Mapping[str, int] = field(default_factory=Counter)  # by device
    away_limit_s: Callable[[str], float] = lambda _: math.inf  # by pool
    heat_policy: Callable[[str], HeatPolicy | None] = lambda _: None  # by serial
    adb_up: Callable[[], bool] = lambda: True
    round_trips: Mapping[str, Histogram] = field(default_factory=dict)  # "server" or "phone"

    holders: Callable[[], Iterable[Holder]] = tuple
    queue: QueueFigures | None = None  # None: the head is another process
    draining: Callable[[], bool] = lambda: False  # an operator wants no phone to be handed out
    sessions: Callable[[], int] = lambda: 0

    bundles: Callable[[], Mapping[str, int]] = dict  # by state
    builders: Callable[[], Mapping[str, int]] = lambda: {"builders": 0, "slots": 0}
    builders_unmatched: Callable[[], int] = lambda: 0
    toolchains: Callable[[], Mapping[str, tuple[bool, int]]] = dict  # is it up, attempts under way
    zygote_starts: Mapping[str, int] = field(default_factory=Counter)
    worker_ends: Mapping[tuple[str, str], int] = field(default_factory=Counter)  # by toolchain and outcome

    results_late: Callable[[], Mapping[tuple[str, str, str], float]] = dict  # age, s, by model, device and last job

    lab: Callable[[], LabPicture] = LabPicture  # without hosts: there is one
    round_trip_s: Callable[[], float | None] = lambda: None  # to a database server
    calls: Mapping[str, int] = field(default_factory=Counter)  # by outcome
    auth_failures: Callable[[], int] = lambda: 0


MAX_HOSTS = 100  # as values of a label
# Counters that begin at 0: Prometheus does not see the first of a series that was not there before.
FAULTS = tuple(each.value for each in DeviceFault)
_AT_HAND = frozenset({Life.READY, Life.QUARANTINED})  # a quarantine has an alert of its own
OUTCOMES = tuple(each.value for each in SessionOutcome)
WORKER_ENDS = ("done", "failed", "cancelled", "timeout", "silent", "died")


class FarmCollector:
    """Used from the event loop's thread: it waits for nothing, and its cost does not grow with history."""

    def __init__(
        self,
        sources: Sources,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sources = sources
        self._monotonic = monotonic
        self._clock = clock
        self.ledger = Ledger()
        self._time = DeviceTime()
        self._leased: set[str] = set()  # devices
        self._away_since_s: dict[str, float] = {}  # by serial, monotonic
        self._sensors = SensorNames()
        self._took_s = 0.0

    def follow(self, events: EventLog, views: Callable[[Callable[[DeviceView], None]], Callable[[], None]]) -> None:
        """Count events and follow devices from now on. `views`: as `Fleet.subscribe`."""
        events.subscribe(self.on_event)
        views(self.on_view)
        for view in self._sources.views():
            self.on_view(view)

    def on_event(self, event: Event) -> None:
        """Count one event. Leased time follows the events of leases: most leases are shorter than a scrape interval."""
        self.ledger.take(event)
        device = str(event.data.get("device"))
        if event.kind == "lease.granted":
            self._leased.add(device)
        elif event.kind == "lease.released":
            self._leased.discard(device)
        else:
            return
        for view in self._sources.views():
            if view.name == device:
                self.on_view(view)

    def on_view(self, view: DeviceView) -> None:
        """Count a device's time by this view from now on."""
        self._note(view, self._sources.quarantined(), self._monotonic())

    def _note(self, view: DeviceView, quarantined: Mapping[str, str], now_s: float) -> str:
        """Count a device's time by this view from now on; returns its state, "" if it is not adopted."""
        if not view.adopted or view.service is Service.MAINTENANCE or view.life in _AT_HAND:
            self._away_since_s.pop(view.serial, None)
        else:
            self._away_since_s.setdefault(view.serial, now_s)
        if not view.adopted:
            self._time.forget(view.serial)
            return ""
        fault = quarantined.get(view.serial) or self.ledger.faults.get(view.name, "")
        state = state_of(
            view, leased=view.name in self._leased, fault=fault, lost_with=self.ledger.lost_with(view.name)
        )
        self._time.enter_state(view.serial, view.name, state, now_s)
        return state[0]

    def read(self) -> Page:
        """Everything, as it is now."""
        begun_s = time.perf_counter()
        page = Page()
        self._add_daemon(page)
        self._add_store(page)
        self._add_lab(page, self._sources.lab())
        self._add_leases(page)
        if self._sources.queue is not None:
            add_queue(page, self._sources.queue)
        self._add_devices(page)
        self._add_ledger(page)
        self._add_jobs(page)
        self._took_s = time.perf_counter() - begun_s
        return page

    def _add_daemon(self, page: Page) -> None:
        sources = self._sources
        add_process(page, sources)
        page.set("farm_daemon_epoch", sources.epoch)
        page.counted("farm_calls", {"ok": 0, "refused": 0, "failed": 0, **sources.calls})
        page.set("farm_auth_failures", sources.auth_failures())
        page.set("farm_scrape_duration_seconds", self._took_s)
        page.set("farm_adb_server_up", float(sources.adb_up()))
        page.distributed("farm_adb_round_trip_seconds", sources.round_trips)

    def _add_store(self, page: Page) -> None:
        sources = self._sources
        page.set("farm_store_round_trip_seconds", sources.round_trip_s())
        size = 0
        if sources.database is not None:
            for file in (sources.database, write_ahead_log(sources.database)):
                with suppress(OSError):
                    size += file.stat().st_size
        page.set("farm_store_size_bytes", size)
        for labels, age_s in sources.results_late().items():
            page.set("farm_results_late_seconds", age_s, *labels)
        with suppress(OSError):
            disk = os.statvfs(sources.state_dir)
            page.set("farm_disk_free_bytes", disk.f_bavail * disk.f_frsize)
            page.set("farm_disk_size_bytes", disk.f_blocks * disk.f_frsize)

    def _add_lab(self, page: Page, lab: LabPicture) -> None:
        if not lab.hosts:
            return
        states = Counter(dict.fromkeys(map(str, HostState), 0))
        states.update(str(each.state) for each in lab.hosts)
        page.counted("farm_lab_hosts", states)
        for each in lab.hosts[:MAX_HOSTS]:
            page.set("farm_lab_host_silence_seconds", each.silent_s, each.name)
            page.set(
                "farm_lab_host_reachable", None if each.unreached is None else float(not each.unreached), each.name
            )
        page.set("farm_lab_head_term", lab.term)
        page.set("farm_lab_letters", lab.letters)
        page.set("farm_lab_requests_waiting", lab.waiting)

    def _add_leases(self, page: Page) -> None:
        sources, ledger = self._sources, self.ledger
        holders = tuple(sources.holders())
        self._leased = {holder.lease.device for holder in holders}
        leases, by_user = Counter[tuple[str, ...]](), Counter[str]()
        for holder in holders:
            request = holder.lease.request
            leases[request.lease_class.value, request.source.value] += 1
            by_user[ledger.user_label(request.user)] += 1
            ledger.bill(holder.lease.id, request.user, holder.held_s)
        ledger.billed_are({holder.lease.id for holder in holders})
        for lease_class in LeaseClass:
            for source in LeaseSource:
                page.set("farm_leases", leases[lease_class.value, source.value], lease_class.value, source.value)
        page.counted("farm_user_leases", by_user)
        page.set("farm_draining", float(sources.draining()))
        page.set("farm_gate_up", float(not ledger.gate_lost))
        page.set("farm_sessions_open", sources.sessions())

    def _add_devices(self, page: Page) -> None:
        now_s, now, quarantined = self._monotonic(), self._clock(), self._sources.quarantined()
        adopted = {view.name: view for view in self._sources.views() if view.adopted}
        page.set("farm_devices_unadopted", sum(not view.adopted for view in self._sources.views()))
        states = Counter(idle=0, leased=0, quarantined=0)
        for name, view in adopted.items():
            states[self._note(view, quarantined, now_s)] += 1
            add_device(
                page,
                view,
                self._sensors,
                leased=name in self._leased,
                probe_age_s=None if view.read_at is None else max(0.0, (now - view.read_at).total_seconds()),
                fault=quarantined.get(view.serial, ""),
            )
            if (policy := self._sources.heat_policy(view.serial)) is not None:
                page.set("farm_device_battery_temperature_limit_celsius", policy.battery_c, name)
                page.set("farm_device_probe_age_limit_seconds", policy.stale_s, name)
            page.set("farm_device_probe_failures", self._sources.probe_failures.get(name, 0), name)
            page.set("farm_device_away_seconds", now_s - self._away_since_s.get(view.serial, now_s), name)
            page.set("farm_device_away_limit_seconds", self._sources.away_limit_s(view.pool), name)
        self._sensors.keep_only(adopted)
        known = {view.serial for view in adopted.values()}
        self._away_since_s = {serial: at for serial, at in self._away_since_s.items() if serial in known}
        self._time.keep_only(known)
        page.counted("farm_devices", states)
        page.counted("farm_device_state_seconds", self._time.read(now_s))
        page.counted("farm_device_interruptions", self._time.interruptions())

    def _add_ledger(self, page: Page) -> None:
        ledger = self.ledger
        add_decisions(page, ledger)
        page.set("farm_adb_server_hangs", float(ledger.adb_hangs))
        page.set("farm_adb_server_losses", ledger.adb_losses)
        page.counted("farm_usb_fault", dict.fromkeys(ledger.usb_faults, 1.0))
        page.counted("farm_recovery_actions", ledger.actions)
        page.distributed("farm_recovery_duration_seconds", ledger.recoveries)
        page.distributed("farm_repair_duration_seconds", ledger.repairs)
        page.counted("farm_quarantines", {**dict.fromkeys(FAULTS, 0), **ledger.quarantines})
        page.distributed("farm_lease_duration_seconds", {(): ledger.held})
        page.set("farm_lease_revocations", ledger.revoked)
        page.counted("farm_user_device_seconds", ledger.user_s)
        page.counted("farm_sessions", {**dict.fromkeys(OUTCOMES, 0), **ledger.sessions})
        page.distributed("farm_session_duration_seconds", {(): ledger.session_s})
        page.counted("farm_relay_bytes", ledger.relayed)
        page.set("farm_tuning_trials", ledger.trials)
        page.counted("farm_tuning_builds", ledger.builds)
        page.set("farm_poisons", ledger.poisons)

    def _add_jobs(self, page: Page) -> None:
        sources = self._sources
        page.counted("farm_bundles", sources.bundles())
        builders = sources.builders()
        page.set("farm_builders", builders["builders"])
        page.set("farm_builder_slots", builders["slots"])
        page.set("farm_builders_unmatched", sources.builders_unmatched())
        for name, (up, busy) in sources.toolchains().items():
            page.set("farm_toolchain_up", float(up), name)
            page.set("farm_workers_running", busy, name)
            for outcome in WORKER_ENDS:
                page.set("farm_workers_ended", 0, name, outcome)
        page.counted("farm_toolchain_starts", sources.zygote_starts)
        page.counted("farm_workers_ended", sources.worker_ends)
