"""Every metric of the farm: the list that tests compare with the collector, docs/alerts.md, rules and dashboards.

Names and units follow prometheus.io/docs/practices/naming. Label values are bounded: names of adopted devices, enums of
farm's own, and users (the first `MAX_USERS`, then "other"). Never job ids, strangers' serial numbers or model paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Kind(StrEnum):
    """Prometheus's types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


# The end of a name -> its unit in words.
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "seconds": "seconds", "bytes": "bytes", "celsius": "°C", "ratio": "0 to 1", "hertz": "hertz",
        "volts": "volts", "amperes": "amperes",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str  # without what the type adds (_total, _info)
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name to query; a histogram's has _bucket, _sum and _count behind it."""
        return self.name + {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")

    @property
    def unit(self) -> str:
        """In words; "" for a plain number."""
        return UNITS.get(self.name.rpartition("_")[2], "")

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its time series."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{end}" for end in ("bucket", "sum", "count"))
        return (self.shown,)


_G, _C, _H, _I = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM, Kind.INFO
_D = ("device",)

_DAEMON = (
    Metric("farm_build", _I, "The daemon's release; always 1.", ("version",)),
    Metric("farm_daemon_start_time_seconds", _G, "When the daemon started, in seconds since 1970."),
    Metric("farm_daemon_epoch", _G, "Starts of a daemon with this store."),
    Metric("farm_heap_bytes", _G, "Memory in use by malloc."),
    Metric("farm_event_loop_delay_seconds", _H, "Delay of the event loop's timers."),
    Metric("farm_watchdog_silence_seconds", _G, "Time since a component reported to the watchdog.", ("component",)),
    Metric("farm_watchdog_limit_seconds", _G, "The silence of a component that ends the daemon.", ("component",)),
    Metric("farm_events", _C, "Published events, by the first word of their kind.", ("topic",)),
    Metric("farm_clock_jumps", _C, "Changes of the host's wall clock."),
    Metric("farm_calls", _C, "Calls that change state or were refused: ok, refused, failed.",
           ("outcome",)),
    Metric("farm_auth_failures", _C, "Wrong tokens and keys."),
    Metric("farm_scrape_duration_seconds", _G, "Event loop time of the previous scrape."),
)  # fmt: skip
_STORE = (
    Metric("farm_store_writable", _G, "1 while the database can be written."),
    Metric("farm_store_commit_seconds", _H, "Time of one commit."),
    Metric("farm_store_outages", _C, "Times that the database became unwritable."),
    Metric("farm_store_round_trip_seconds", _G, "Shortest of some round trips to a database server, each minute."),
    Metric(
        "farm_results_late_seconds",
        _G,
        "Age of the last result of a series with a rhythm that stopped; of 20 series.",
        ("model", "device", "result_job"),
    ),
    Metric("farm_store_size_bytes", _G, "Size of the database with its write-ahead log; 0 with PostgreSQL."),
    Metric("farm_disk_free_bytes", _G, "Free space for the daemon on the disk of its state folder."),
    Metric("farm_disk_size_bytes", _G, "Size of that disk."),
)
_LAB = (
    Metric("farm_lab_hosts", _G, "Hosts by state (docs/troubleshooting.md); each reports all.", ("state",)),
    Metric("farm_lab_host_silence_seconds", _G, "Time since the latest beat of a host that runs; of the first 100.",
           ("host",)),
    Metric("farm_lab_host_reachable", _G, "1 while this host can connect to another host that runs; of the first 100.",
           ("host",)),
    Metric("farm_lab_head_term", _G, "Number of the head's term; it grows whenever another head takes over."),
    Metric("farm_lab_letters", _G, "Messages of hosts that the head has not taken."),
    Metric("farm_lab_requests_waiting", _G, "Requests of all hosts without a phone."),
    Metric("farm_lab_head_decides", _G, "1 while this `farm head` decides, 0 while another does; only heads have it."),
)  # fmt: skip
_ADB = (
    Metric("farm_adb_server_up", _G, "1 while an adb server answers."),
    Metric("farm_adb_server_hangs", _G, "1 while the adb server hangs and is not replaced."),
    Metric("farm_adb_server_losses", _C, "Times that the adb server was lost."),
    Metric("farm_adb_round_trip_seconds", _H,
           "Time until the adb server, or a phone's service, answers.", ("to",)),
    Metric("farm_usb_fault", _G, "1 while several phones of one hub (usb: of several hubs) are lost together.",
           ("hub",)),
)  # fmt: skip
_FLEET = (
    Metric("farm_devices", _G, "Adopted devices by state (see farm_device_state_seconds_total).", ("state",)),
    Metric("farm_devices_unadopted", _G, "Devices that adb lists and that are not adopted."),
    Metric("farm_device", _I, "An adopted device's identity; always 1.", ("device", "model", "soc", "gpu", "pool")),
    Metric("farm_device_up", _G, "1 while the device is ready, leased or not.", _D),
    Metric("farm_device_interruptions", _C, "How often the device lost its link or had a fault; not for cleaning.", _D),
    Metric("farm_device_away_seconds", _G, "Since it was ready, in quarantine or in maintenance.", _D),
    Metric("farm_device_away_limit_seconds", _G, "What its pool allows.", _D),
    Metric("farm_device_leased", _G, "1 while the device is leased.", _D),
    Metric(
        "farm_device_state_seconds",
        _C,
        "Time by state (idle, leased, cooling, closed, draining, maintenance, or its life) and cause (heat, hub, host, "
        "link, or the fault under recovery).",
        ("device", "state", "cause"),
    ),
    Metric("farm_device_quarantined", _G, "1 while the device is in quarantine, by fault.",
           ("device", "fault")),
    Metric("farm_device_finding", _G, "1 while the finding holds.", ("device", "finding")),
    Metric("farm_device_probe_age_seconds", _G, "Age of the latest probe.", _D),
    Metric("farm_device_probe_age_limit_seconds", _G, "Age from which a probe is old (`[heat] stale_s`).", _D),
    Metric("farm_device_probe_failures", _C, "Probes without a result.", _D),
)  # fmt: skip
_READINGS = (
    Metric("farm_device_temperature_celsius", _G,
           "A sensor by name and group; TEMP, the hottest of each group, then others, 12 per device.",
           ("device", "group", "sensor")),
    Metric("farm_device_shown_temperature_celsius", _G, "TEMP of `farm status`.", _D),
    Metric("farm_device_throttle_status", _G, "Android's thermal severity, 0 (none) to 6 (shutdown).", _D),
    Metric("farm_device_battery_level_ratio", _G, "Charge.", _D),
    Metric("farm_device_battery_temperature_celsius", _G, "Temperature of the battery.", _D),
    Metric("farm_device_battery_temperature_limit_celsius", _G,
           "Temperature of the battery above which nobody gets the device (`[heat.hard] battery_c`).", _D),
    Metric("farm_device_battery_volts", _G, "Voltage of the battery.", _D),
    Metric("farm_device_battery_amperes", _G, "Current into the battery; negative while it drains.", _D),
    Metric("farm_device_battery_cycles", _G, "Charge cycles so far.", _D),
    Metric("farm_device_battery_capacity_ratio", _G, "Capacity relative to the design capacity.", _D),
    Metric("farm_device_battery_healthy", _G, "1 while the phone reports a good battery.", _D),
    Metric("farm_device_gpu_clock_hertz", _G, "The GPU's clock.", _D),
    Metric("farm_device_gpu_clock_limit_hertz", _G, "The highest GPU clock allowed now.", _D),
    Metric("farm_device_cpu_clock_hertz", _G, "A cluster's clock, by its first core.", ("device", "cluster")),
    Metric("farm_device_cpu_clock_limit_hertz", _G, "The cluster's highest clock allowed now.",
           ("device", "cluster")),
    Metric("farm_device_memory_size_bytes", _G, "Memory.", _D),
    Metric("farm_device_memory_available_bytes", _G, "Available memory.", _D),
    Metric("farm_device_data_size_bytes", _G, "Size of /data.", _D),
    Metric("farm_device_data_free_bytes", _G, "Free space on /data.", _D),
    Metric("farm_device_load1", _G, "Load average of one minute.", _D),
    Metric("farm_device_uptime_seconds", _G, "Time since the device booted.", _D),
)  # fmt: skip
_RECOVERY = (
    Metric("farm_recovery_actions", _C, "Recovery actions.", ("fault", "action")),
    Metric("farm_recovery_duration_seconds", _H, "Duration of a recovery action.", ("action", "outcome")),
    Metric(
        "farm_repair_duration_seconds",
        _H,
        "Time from not ready to ready again, by the first fault (MTTR: sum by count).",
        ("fault",),
    ),
    Metric("farm_quarantines", _C, "Quarantines that began.", ("fault",)),
)
_LEASES = (
    Metric("farm_requests_waiting", _G, "Requests without a device.", ("class",)),
    Metric("farm_requests_oldest_wait_seconds", _G, "Age of the oldest waiting request.", ("class",)),
    Metric("farm_requests_servable", _G, "Requests that could have an idle device: more than 0 is a bug."),
    Metric("farm_draining", _G, "1 while the host is drained."),
    Metric("farm_gate_up", _G, "0 while the gate is lost, else 1."),
    Metric("farm_time_to_device_seconds", _H, "From request to grant.", ("class", "source")),
    Metric("farm_allocator_decision_seconds", _H, "Time of the allocator for one event."),
    Metric("farm_leases", _G, "Current leases.", ("class", "source")),
    Metric("farm_lease_duration_seconds", _H, "Duration of ended leases."),
    Metric("farm_lease_revocations", _C, "Leases that farm or an operator ended."),
    Metric("farm_user_leases", _G, "Current leases by user.", ("user",)),
    Metric("farm_user_device_seconds", _C, "Leased time by user.", ("user",)),
    Metric("farm_sessions_open", _G, "Connections at the gate."),
    Metric("farm_sessions", _C, "Ended TVM sessions.", ("outcome",)),
    Metric("farm_session_duration_seconds", _H, "Duration of sessions."),
    Metric("farm_relay_bytes", _C, "Bytes of ended sessions; up: to the phone.", ("direction",)),
)
_JOBS = (
    Metric("farm_jobs", _G, "Unfinished jobs.", ("kind", "state")),
    Metric("farm_jobs_submitted", _C, "Submitted jobs.", ("kind",)),
    Metric("farm_jobs_ended", _C, "Ended jobs: done, failed, cancelled.", ("kind", "state")),
    Metric("farm_attempts_ended", _C, "Ended attempts, with the fault of failed ones: user, model, phone, host, farm.",
           ("kind", "state", "fault")),
    Metric("farm_tuning_trials", _C, "Candidates measured by tunings."),
    Metric("farm_tuning_builds", _C, "Candidates built for tunings: local, remote (by builders).", ("where",)),
    Metric("farm_builders", _G, "Builders that are ready."),
    Metric("farm_builders_unmatched", _G, "Builders that no tuning can use: another TVM, FFI, linker or farm."),
    Metric("farm_builder_slots", _G, "Candidates that they build at once."),
    Metric("farm_bundles", _G, "Runtime bundles: candidate, rolling-out, current, refused, kept, damaged.", ("state",)),
    Metric("farm_poisons", _C, "Reports of libraries that killed their process."),
    Metric("farm_toolchain_up", _G, "1 while the toolchain's zygote can fork workers.", ("toolchain",)),
    Metric("farm_toolchain_starts", _C, "Started zygotes.", ("toolchain",)),
    Metric("farm_workers_running", _G, "Running workers.", ("toolchain",)),
    Metric("farm_workers_ended", _C, "Ended workers: done, failed, cancelled, timeout, silent, died.",
           ("toolchain", "outcome")),
)  # fmt: skip

GROUPS: Mapping[str, tuple[Metric, ...]] = MappingProxyType(
    {
        "Daemon": _DAEMON,
        "Store and disk": _STORE,
        "Lab of several hosts": _LAB,
        "adb and USB": _ADB,
        "Devices": _FLEET,
        "Readings of probes": _READINGS,
        "Recovery": _RECOVERY,
        "Requests, leases and sessions": _LEASES,
        "Jobs and workers": _JOBS,
    }
)
METRICS: Mapping[str, Metric] = MappingProxyType({each.name: each for group in GROUPS.values() for each in group})
