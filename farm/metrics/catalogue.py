"""Every metric of the farm: the one list that the collector, docs/metrics.md, the rules and the dashboards are held to.

Names and units follow prometheus.io/docs/practices/naming. Label values are bounded: names of adopted devices, enums of
farm's own, and users (the first `MOST_USERS`, then "other"). Never job ids, strangers' serial numbers or model paths.
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
    Metric("farm_daemon_epoch", _G, "How often a daemon has started over this store."),
    Metric("farm_event_loop_delay_seconds", _H, "How late the daemon's event loop wakes a task that sleeps."),
    Metric("farm_watchdog_silence_seconds", _G, "For how long a part owes the watchdog a sign of life.", ("part",)),
    Metric("farm_watchdog_limit_seconds", _G, "The silence of a part that ends the daemon.", ("part",)),
    Metric("farm_events", _C, "Events that were published, by the word before the dot of their kind.", ("room",)),
    Metric("farm_clock_jumps", _C, "Times that the host's wall clock was set."),
    Metric("farm_calls", _C, "Calls that change something or were refused, by outcome: ok, refused, failed.",
           ("outcome",)),
    Metric("farm_auth_failures", _C, "Wrong tokens and keys that were offered."),
    Metric("farm_scrape_duration_seconds", _G, "What the scrape before this one cost the event loop."),
)  # fmt: skip
_STORE = (
    Metric("farm_store_writable", _G, "1 while the database can be written."),
    Metric("farm_store_commit_seconds", _H, "Time of one commit."),
    Metric("farm_store_outages", _C, "Times that the database could not be written any more."),
    Metric("farm_store_size_bytes", _G, "Size of the database with its write-ahead log; 0 on a database server."),
    Metric("farm_disk_free_bytes", _G, "Room for the daemon's user on the disk of its state folder."),
    Metric("farm_disk_size_bytes", _G, "Size of that disk."),
)
_ADB = (
    Metric("farm_adb_server_up", _G, "1 while an adb server answers."),
    Metric("farm_adb_server_hangs", _G, "1 while the adb server hangs and is left alone."),
    Metric("farm_adb_server_losses", _C, "Times that the adb server was lost; farm's own is started again."),
    Metric("farm_adb_round_trip_seconds", _H,
           "Time until the adb server, or a phone that a service was opened on, has answered.", ("to",)),
    Metric("farm_usb_fault", _G, "1 while several phones of one hub (usb: of several hubs) are lost together.",
           ("hub",)),
)  # fmt: skip
_FLEET = (
    Metric("farm_devices", _G, "Adopted devices by state (see farm_device_state_seconds_total).", ("state",)),
    Metric("farm_devices_unadopted", _G, "Devices that adb lists and nobody has adopted."),
    Metric("farm_device", _I, "What an adopted device is; always 1.", ("device", "model", "soc", "gpu", "pool")),
    Metric("farm_device_up", _G, "1 while the device is ready, leased or not.", _D),
    Metric("farm_device_leased", _G, "1 while somebody has the device.", _D),
    Metric(
        "farm_device_state_seconds",
        _C,
        "Time by state (idle, leased, cooling, closed, draining, maintenance, or the life it is in) and cause (heat, "
        "hub, host, link, or what is being mended).",
        ("device", "state", "cause"),
    ),
    Metric("farm_device_quarantined", _G, "1 while the device is in quarantine, by what is wrong.",
           ("device", "ailment")),
    Metric("farm_device_finding", _G, "1 while probes find this wrong.", ("device", "finding")),
    Metric("farm_device_probe_age_seconds", _G, "Age of the latest probe.", _D),
    Metric("farm_device_probe_failures", _C, "Probes that told nothing.", _D),
)  # fmt: skip
_READINGS = (
    Metric("farm_device_temperature_celsius", _G,
           "A believed sensor, by name and group; TEMP, the hottest of each group, then others, 12 of a device.",
           ("device", "group", "sensor")),
    Metric("farm_device_shown_temperature_celsius", _G, "The one temperature: TEMP of `farm status`.", _D),
    Metric("farm_device_throttle_status", _G, "Android's thermal severity, 0 (none) to 6 (shutdown).", _D),
    Metric("farm_device_battery_level_ratio", _G, "Charge.", _D),
    Metric("farm_device_battery_temperature_celsius", _G, "Temperature of the battery.", _D),
    Metric("farm_device_battery_volts", _G, "Voltage of the battery.", _D),
    Metric("farm_device_battery_amperes", _G, "Current into the battery; negative while it drains.", _D),
    Metric("farm_device_battery_cycles", _G, "Charge cycles so far.", _D),
    Metric("farm_device_battery_capacity_ratio", _G, "What the battery holds of what it held when new.", _D),
    Metric("farm_device_battery_healthy", _G, "1 while the phone calls its battery good, else 0.", _D),
    Metric("farm_device_gpu_clock_hertz", _G, "The GPU's clock.", _D),
    Metric("farm_device_gpu_clock_limit_hertz", _G, "The highest GPU clock that is allowed now.", _D),
    Metric("farm_device_cpu_clock_hertz", _G, "A cluster's clock, by its first core.", ("device", "cluster")),
    Metric("farm_device_cpu_clock_limit_hertz", _G, "The highest clock that is allowed there now.",
           ("device", "cluster")),
    Metric("farm_device_memory_size_bytes", _G, "Memory.", _D),
    Metric("farm_device_memory_available_bytes", _G, "Memory that is available.", _D),
    Metric("farm_device_data_size_bytes", _G, "Size of /data.", _D),
    Metric("farm_device_data_free_bytes", _G, "Room on /data.", _D),
    Metric("farm_device_load1", _G, "Load average of one minute.", _D),
    Metric("farm_device_uptime_seconds", _G, "Time since the device booted.", _D),
)  # fmt: skip
_RECOVERY = (
    Metric("farm_recovery_rungs", _C, "Rungs of the recovery ladder that were taken.", ("ailment", "rung")),
    Metric("farm_recovery_duration_seconds", _H, "From a rung to its end.", ("rung", "outcome")),
    Metric(
        "farm_repair_duration_seconds",
        _H,
        "From the moment a device stopped being ready to ready again, by what was wrong first (MTTR: sum by count).",
        ("ailment",),
    ),
    Metric("farm_quarantines", _C, "Quarantines that began.", ("ailment",)),
)
_LEASES = (
    Metric("farm_requests_waiting", _G, "Requests without a device.", ("class",)),
    Metric("farm_requests_oldest_wait_seconds", _G, "How long the oldest waiting request has waited.", ("class",)),
    Metric(
        "farm_requests_servable", _G, "Waiting requests that nothing keeps from an idle device: more than 0 is a bug."
    ),
    Metric("farm_draining", _G, "1 while an operator drains the host: no phone is handed out."),
    Metric("farm_gate_up", _G, "1 while the TVM gate is there; 0 while a gate of its own process is lost."),
    Metric("farm_time_to_device_seconds", _H, "From request to grant.", ("class", "door")),
    Metric("farm_allocator_decision_seconds", _H, "Time of the allocator for one event."),
    Metric("farm_leases", _G, "Current leases.", ("class", "door")),
    Metric("farm_lease_duration_seconds", _H, "How long leases that ended were held."),
    Metric("farm_lease_revocations", _C, "Leases that were taken from their holder."),
    Metric("farm_user_leases", _G, "Current leases by user.", ("user",)),
    Metric("farm_user_device_seconds", _C, "Time for which users had devices.", ("user",)),
    Metric("farm_sessions_open", _G, "Connections at the gate."),
    Metric("farm_sessions", _C, "TVM sessions that ended, by outcome.", ("outcome",)),
    Metric("farm_session_duration_seconds", _H, "How long sessions lasted."),
    Metric("farm_relay_bytes", _C, "Bytes of sessions that ended; up is from client to phone.", ("direction",)),
)
_JOBS = (
    Metric("farm_jobs", _G, "Jobs that have not ended.", ("kind", "state")),
    Metric("farm_jobs_submitted", _C, "Jobs that were added.", ("kind",)),
    Metric("farm_jobs_ended", _C, "Jobs that ended: done, failed, cancelled.", ("kind", "state")),
    Metric("farm_attempts_ended", _C, "Attempts that ended, and whose fault it was if any: user, model, phone, host, "
           "farm.", ("kind", "state", "fault")),
    Metric("farm_tuning_trials", _C, "Candidates that tunings have measured."),
    Metric("farm_poisons", _C, "Times that a library was told to kill what runs it."),
    Metric("farm_toolchain_up", _G, "1 while the toolchain's zygote can fork workers.", ("toolchain",)),
    Metric("farm_toolchain_starts", _C, "Zygotes that came up.", ("toolchain",)),
    Metric("farm_workers_running", _G, "Attempts under way in workers.", ("toolchain",)),
    Metric("farm_workers_ended", _C, "Workers, by how they ended: done, failed, cancelled, timeout, silent, died.",
           ("toolchain", "outcome")),
)  # fmt: skip

GROUPS: Mapping[str, tuple[Metric, ...]] = MappingProxyType(
    {
        "Daemon": _DAEMON,
        "Store and disk": _STORE,
        "adb and USB": _ADB,
        "Devices": _FLEET,
        "Readings of probes": _READINGS,
        "Recovery": _RECOVERY,
        "Requests, leases and sessions": _LEASES,
        "Jobs and workers": _JOBS,
    }
)
METRICS: Mapping[str, Metric] = MappingProxyType({each.name: each for group in GROUPS.values() for each in group})
