"""What one probe of a phone found out, as plain values: units normalised, each reading with its source.

Fields are None (or empty) where nothing is known with confidence: a figure that may be wrong is worse than none. What
was read and not believed stands in `Health.dropped` with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class SensorGroup(StrEnum):
    """What part of a phone a temperature belongs to."""

    CPU = "cpu"
    GPU = "gpu"
    SKIN = "skin"
    BATTERY = "battery"
    OTHER = "other"


class ThrottleStatus(IntEnum):
    """Android's thermal severity (android.os.PowerManager.THERMAL_STATUS_*)."""

    NONE = 0
    LIGHT = 1
    MODERATE = 2
    SEVERE = 3
    CRITICAL = 4
    EMERGENCY = 5
    SHUTDOWN = 6


@dataclass(frozen=True, slots=True)
class Temperature:
    """One believed temperature."""

    sensor: str  # as the phone calls it: "skin-therm", "cpu-1-3-usr"
    celsius: float
    group: SensorGroup
    source: str  # "thermalservice", "thermal_zone12", "battery", "kgsl"


@dataclass(frozen=True, slots=True)
class Dropped:
    """One reading that was not believed."""

    source: str
    sensor: str
    raw: str
    reason: str


@dataclass(frozen=True, slots=True)
class Battery:
    """The battery and the way it is charged."""

    percent: int | None = None
    celsius: float | None = None
    voltage_mv: int | None = None
    current_ma: float | None = None  # into the battery; negative while it drains
    health: str = ""  # good | overheat | dead | over-voltage | failure | cold | "" (BatteryManager.BATTERY_HEALTH_*)
    status: str = ""  # charging | discharging | not-charging | full | "" (BatteryManager.BATTERY_STATUS_*)
    powered_by: tuple[str, ...] = ()  # of ac, usb, wireless, dock
    cycles: int | None = None
    full_uah: int | None = None  # what it holds when full, as its gauge learned
    design_uah: int | None = None  # what it held when new


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The GPU's clock as its driver tells it (kgsl of Adreno, devfreq of Mali)."""

    clock_hz: int | None = None
    min_hz: int | None = None  # what governor and thermal driver allow now
    max_hz: int | None = None
    hardware_max_hz: int | None = None
    governor: str = ""
    busy_percent: float | None = None
    throttled: bool | None = None  # its driver lowered the highest power level for heat
    power_level: int | None = None  # kgsl: 0 is the fastest
    celsius: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterReading:
    """One cluster's clock (a cpufreq policy)."""

    cores: tuple[int, ...]
    khz: int | None = None
    min_khz: int | None = None  # what is allowed now
    max_khz: int | None = None
    hardware_max_khz: int | None = None
    governor: str = ""

    @property
    def span(self) -> str:
        """Its cores in words: "0-3"."""
        first, last = self.cores[0], self.cores[-1]
        return f"{first}" if first == last else f"{first}-{last}"


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process on the phone (`ps -A -o`)."""

    pid: int
    ppid: int
    pgid: int
    state: str  # R S D T Z ...
    cpu_percent: float | None
    rss_bytes: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Health:
    """One probe."""

    boot_id: str = ""
    uptime_s: float | None = None
    load_1min: float | None = None
    battery: Battery = field(default_factory=Battery)
    temperatures: tuple[Temperature, ...] = ()
    throttle: ThrottleStatus | None = None  # the worst that the thermal service says, whatever its headline claims
    throttled_by: str = ""  # the sensor that says so
    gpu: GpuReading = field(default_factory=GpuReading)
    cpu: tuple[ClusterReading, ...] = ()
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    data_total_bytes: int | None = None
    data_free_bytes: int | None = None
    busiest: tuple[ProcessReading, ...] = ()  # at most ten, the busiest first
    server: tuple[ProcessReading, ...] = ()  # farm's supervisor, tvm_rpc and its sessions
    gpu_faults: tuple[str, ...] = ()  # lines of the kernel log that tell of a GPU fault, newest last
    # Sections of the probe that told nothing, or not all: not there, not readable, or the phone got stuck in them.
    missing: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
