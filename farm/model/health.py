"""The results of one probe of a phone, as plain values: readings, findings, and faults that recovery acts on.

Units are normalised, each reading names its source. Fields are None (or empty) where nothing is known with confidence:
a figure that may be wrong is worse than none. What was read and not believed is in `Health.dropped` with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum

from farm.common.causes import fold_cause


class SensorGroup(StrEnum):
    """The part of a phone that a temperature belongs to."""

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
    """The GPU's clock as its driver reports it (kgsl of Adreno, devfreq of Mali)."""

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
    gpu_faults: tuple[str, ...] = ()  # lines of the kernel log about a GPU fault, newest last
    # Sections of the probe without (all of) their output: not there, not readable, or the phone hung in them.
    missing: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()


KEPT_DAYS = 730  # of samples: a battery's life in a lab


@dataclass(frozen=True, slots=True)
class BatteryDay:
    """A battery's readings of one day (UTC)."""

    day: str  # 2026-11-22
    percent_min: int | None = None
    percent_max: int | None = None
    celsius_max: float | None = None
    cycles: int | None = None
    full_uah: int | None = None  # what it holds, as its gauge learned
    design_uah: int | None = None
    health: str = ""  # the worst word of the day

    @property
    def capacity(self) -> float | None:
        """Its capacity as a part of that when new, 0 to 1."""
        return self.full_uah / self.design_uah if self.full_uah and self.design_uah else None


class DeviceFault(StrEnum):
    """The kind of fault, by which recovery chooses an action."""

    SESSION = "session"  # a session ended in a way that leaves the phone in doubt
    SERVER = "server"  # its RPC server died
    START = "start"  # its RPC server does not start
    CHECK = "check"  # golden kernels do not run
    WRONG = "wrong"  # golden kernels give wrong numbers
    STUCK = "stuck"  # a process survives SIGKILL
    GPU = "gpu"  # its GPU driver reports faults
    MUTE = "mute"  # adb lists it as usable, yet it answers no command
    OFFLINE = "offline"  # adb lists it, its transport is dead
    UNAUTHORIZED = "unauthorized"  # the farm's key is not accepted
    STORAGE = "storage"  # its /data is full
    HOT = "hot"  # its battery is too hot
    BATTERY = "battery"  # its battery is worn out, swollen or reported bad
    BUNDLE = "bundle"  # there is no sound bundle for it, or its bundle never worked on it
    ORDER = "order"  # a person asked for it
    BUG = "bug"  # farm itself failed


class ReleaseRule(StrEnum):
    """When a quarantine ends without a person."""

    PERSON = "person"  # never
    BUNDLES = "bundles"  # when the bundle library changes
    WELL = "well"  # when a probe no longer finds the fault

    def ends(self, device: str) -> str:
        """The condition that ends the quarantine of a device, for people."""
        order = f"farm device release {device}"
        match self:
            case ReleaseRule.PERSON:
                return f"until an operator releases it: {order}"
            case ReleaseRule.BUNDLES:
                return f"until the bundle library changes (farm bundle add), or {order}"
            case ReleaseRule.WELL:
                return f"until a probe finds it well, or {order}"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a phone is kept away from users; survives its unplugging and the daemon's end."""

    cause: str
    hint: str = ""
    fault: DeviceFault = DeviceFault.ORDER
    rule: ReleaseRule = ReleaseRule.PERSON
    evidence: str = ""  # details, and the last steps of its life before
    at: datetime | None = None  # since when, once it is stored

    def __post_init__(self) -> None:
        fold_cause(self)


class FindingKind(StrEnum):
    """The kind of a finding."""

    DATA_FULL = "data-full"  # /data has no room for a runtime and a model
    DATA_LOW = "data-low"  # /data is getting full
    MEMORY_LOW = "memory-low"
    STUCK_PROCESS = "stuck-process"  # one of farm's sits in a driver (state D): SIGKILL waits for the driver
    ORPHAN = "orphan"  # a session's process continues though the phone is not leased
    ZOMBIE = "zombie"  # one of farm's ended and was not reaped
    GPU_FAULT = "gpu-fault"
    REBOOTED = "rebooted"  # the phone started again, and adb did not notice
    SERVER_GONE = "server-gone"  # no RPC server on a phone that is ready
    BATTERY_HOT = "battery-hot"
    BATTERY_COLD = "battery-cold"
    BATTERY_LOW = "battery-low"  # nearly empty, and nothing charges it
    BATTERY_BAD = "battery-bad"  # dead, failed or over its voltage, says the phone
    BATTERY_SWOLLEN = "battery-swollen"  # signs of a cell that gases
    BATTERY_WORN = "battery-worn"
    GAUGE = "gauge"  # the battery's gauge says what cannot be
    CLOCK_HELD = "clock-held"  # a clock is held far below its highest, and not for heat
    FOREIGN_LOAD = "foreign-load"  # something that is not farm's keeps the phone busy


# What makes numbers measured meanwhile doubtful.
DISTURBING = frozenset(
    {
        FindingKind.FOREIGN_LOAD,
        FindingKind.CLOCK_HELD,
        FindingKind.ORPHAN,
        FindingKind.MEMORY_LOW,
        FindingKind.GPU_FAULT,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a phone."""

    kind: FindingKind
    cause: str  # with the figure and the limit
    hint: str = ""
    fault: DeviceFault | None = None  # the fault that recovery should repair; None: a warning only
    evidence: str = ""

    def __post_init__(self) -> None:
        fold_cause(self)

    @property
    def act(self) -> bool:
        """Whether recovery is wanted."""
        return self.fault is not None
