"""The one collector: reads the farm's state when it is asked, and what events have told until then."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from farm.core.device import DeviceView
from farm.core.events import Event, EventLog
from farm.core.health import Health
from farm.core.recovery import Ailment
from farm.core.requests import Door, LeaseClass
from farm.core.sessions import SessionOutcome
from farm.metrics.device_time import DeviceTime, word_of
from farm.metrics.devices import SensorNames, tell_device
from farm.metrics.ledger import Ledger
from farm.metrics.page import Page
from farm.metrics.sources import Sources
from farm.store.writer import write_ahead_log

# Counters that begin at 0: Prometheus does not see the first of a series that was not there before.
AILMENTS = tuple(each.value for each in Ailment)
OUTCOMES = tuple(each.value for each in SessionOutcome)
WORKER_ENDS = ("done", "failed", "cancelled", "timeout", "silent", "died")


class FarmCollector:
    """Used from the event loop's thread: it waits for nothing, and what it costs does not grow with history."""

    def __init__(self, sources: Sources, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._monotonic = monotonic
        self.ledger = Ledger()
        self._time = DeviceTime()
        self._probed: dict[str, tuple[Health, float]] = {}  # device -> its latest probe, when that came
        self._leased: set[str] = set()  # devices
        self._sensors = SensorNames()
        self._took_s = 0.0

    def follow(self, events: EventLog, views: Callable[[Callable[[DeviceView], None]], Callable[[], None]]) -> None:
        """Hear of what happens from now on. `views`: as `Fleet.subscribe`."""
        events.subscribe(self.heard)
        views(self.seen)
        for view in self._sources.views():
            self.seen(view)

    def heard(self, event: Event) -> None:
        """Count one event; what leases take of a device's time is told by it, most are shorter than a scrape's wait."""
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
                self.seen(view)

    def seen(self, view: DeviceView) -> None:
        """A device is like this from now on."""
        self._note(view, self._sources.quarantined(), self._monotonic())

    def _note(self, view: DeviceView, quarantined: Mapping[str, str], now_s: float) -> str:
        """The same; returns its state."""
        if not view.adopted:
            self._time.forget(view.serial)
            self._probed.pop(view.name, None)
            return ""
        ailment = quarantined.get(view.serial) or self.ledger.ailments.get(view.name, "")
        word = word_of(
            view, leased=view.name in self._leased, ailment=ailment, lost_with=self.ledger.lost_with(view.name)
        )
        self._time.is_now(view.serial, view.name, word, now_s)
        known = self._probed.get(view.name)
        if view.health is not None and (known is None or known[0] is not view.health):
            self._probed[view.name] = (view.health, now_s)
        return word[0]

    def read(self) -> Page:
        """Everything, as it is now."""
        begun_s = time.perf_counter()
        page = Page()
        self._tell_daemon(page)
        self._tell_store(page)
        self._tell_leases(page)
        self._tell_devices(page)
        self._tell_ledger(page)
        self._tell_jobs(page)
        self._took_s = time.perf_counter() - begun_s
        return page

    def _tell_daemon(self, page: Page) -> None:
        sources = self._sources
        page.set("farm_build", 1.0, sources.version)
        page.set("farm_daemon_start_time_seconds", sources.started_at)
        page.set("farm_daemon_epoch", sources.epoch)
        page.distributed("farm_event_loop_delay_seconds", {(): sources.loop_delay})
        for part, silent_s, limit_s in sources.pulses():
            page.set("farm_watchdog_silence_seconds", silent_s, part)
            page.set("farm_watchdog_limit_seconds", limit_s, part)
        page.counted("farm_calls", {"ok": 0, "refused": 0, "failed": 0, **sources.calls})
        page.set("farm_auth_failures", sources.auth_failures())
        page.set("farm_scrape_duration_seconds", self._took_s)
        page.set("farm_adb_server_up", float(sources.adb_up()))
        page.distributed("farm_adb_round_trip_seconds", sources.round_trips)

    def _tell_store(self, page: Page) -> None:
        sources = self._sources
        page.set("farm_store_writable", float(not sources.store_problem()))
        page.distributed("farm_store_commit_seconds", {(): sources.commits})
        size = 0
        if sources.database is not None:
            for file in (sources.database, write_ahead_log(sources.database)):
                with suppress(OSError):
                    size += file.stat().st_size
        page.set("farm_store_size_bytes", size)
        with suppress(OSError):
            disk = os.statvfs(sources.state_dir)
            page.set("farm_disk_free_bytes", disk.f_bavail * disk.f_frsize)
            page.set("farm_disk_size_bytes", disk.f_blocks * disk.f_frsize)

    def _tell_leases(self, page: Page) -> None:
        sources, ledger = self._sources, self.ledger
        holders = tuple(sources.holders())
        self._leased = {holder.lease.device for holder in holders}
        leases, by_user = Counter[tuple[str, ...]](), Counter[str]()
        for holder in holders:
            request = holder.lease.request
            leases[request.lease_class.value, request.door.value] += 1
            by_user[ledger.user_label(request.user)] += 1
            ledger.bill(holder.lease.id, request.user, holder.held_s)
        ledger.billed_are({holder.lease.id for holder in holders})
        waiting, longest_s = sources.depth(), sources.longest_s()
        for lease_class in LeaseClass:
            page.set("farm_requests_waiting", waiting.get(lease_class, 0), lease_class.value)
            page.set("farm_requests_oldest_wait_seconds", longest_s.get(lease_class, 0.0), lease_class.value)
            for door in Door:
                page.set("farm_leases", leases[lease_class.value, door.value], lease_class.value, door.value)
        page.counted("farm_user_leases", by_user)
        page.distributed("farm_allocator_decision_seconds", {(): sources.decisions})
        page.set("farm_requests_servable", sources.servable())
        page.set("farm_draining", float(sources.draining()))
        page.set("farm_gate_up", float(not ledger.gate_lost))
        page.set("farm_sessions_open", sources.sessions())

    def _tell_devices(self, page: Page) -> None:
        now_s, quarantined = self._monotonic(), self._sources.quarantined()
        adopted = {view.name: view for view in self._sources.views() if view.adopted}
        page.set("farm_devices_unadopted", sum(not view.adopted for view in self._sources.views()))
        states = Counter(idle=0, leased=0, quarantined=0)
        for name, view in adopted.items():
            states[self._note(view, quarantined, now_s)] += 1
            probed = self._probed.get(name)
            tell_device(
                page,
                view,
                self._sensors,
                leased=name in self._leased,
                probe_age_s=None if probed is None else now_s - probed[1],
                ailment=quarantined.get(view.serial, ""),
            )
            page.set("farm_device_probe_failures", self._sources.probe_failures.get(name, 0), name)
        self._sensors.keep_only(adopted)
        self._time.keep_only({view.serial for view in adopted.values()})
        page.counted("farm_devices", states)
        page.counted("farm_device_state_seconds", self._time.read(now_s))

    def _tell_ledger(self, page: Page) -> None:
        ledger = self.ledger
        page.counted("farm_events", ledger.events)
        page.set("farm_clock_jumps", ledger.clock_jumps)
        page.set("farm_store_outages", ledger.outages)
        page.set("farm_adb_server_hangs", float(ledger.adb_hangs))
        page.set("farm_adb_server_losses", ledger.adb_losses)
        page.counted("farm_usb_fault", dict.fromkeys(ledger.usb_faults, 1.0))
        page.counted("farm_recovery_rungs", ledger.rungs)
        page.distributed("farm_recovery_duration_seconds", ledger.recoveries)
        page.distributed("farm_repair_duration_seconds", ledger.repairs)
        page.counted("farm_quarantines", {**dict.fromkeys(AILMENTS, 0), **ledger.quarantines})
        page.distributed("farm_time_to_device_seconds", ledger.waits)
        page.distributed("farm_lease_duration_seconds", {(): ledger.held})
        page.set("farm_lease_revocations", ledger.revoked)
        page.counted("farm_user_device_seconds", ledger.user_s)
        page.counted("farm_sessions", {**dict.fromkeys(OUTCOMES, 0), **ledger.sessions})
        page.distributed("farm_session_duration_seconds", {(): ledger.session_s})
        page.counted("farm_relay_bytes", ledger.relayed)
        page.counted("farm_jobs_submitted", ledger.submitted)
        page.counted("farm_jobs_ended", ledger.jobs)
        page.counted("farm_attempts_ended", ledger.attempts)
        page.set("farm_tuning_trials", ledger.trials)
        page.set("farm_poisons", ledger.poisons)

    def _tell_jobs(self, page: Page) -> None:
        sources = self._sources
        page.counted("farm_jobs", sources.jobs())
        for name, (up, busy) in sources.toolchains().items():
            page.set("farm_toolchain_up", float(up), name)
            page.set("farm_workers_running", busy, name)
            for outcome in WORKER_ENDS:
                page.set("farm_workers_ended", 0, name, outcome)
        page.counted("farm_toolchain_starts", sources.zygote_starts)
        page.counted("farm_workers_ended", sources.worker_ends)
