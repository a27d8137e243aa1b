"""The present state of a virtual phone's sensors, battery and faults: one frozen value, kept in one folder per phone.

The lab process is the only writer. `write_state` puts the same value in several forms into `<phone dir>/state/`, each
replaced whole (write + rename), so that a reader never sees half of one:

- `state.json`   for Python readers: the fields of `PhoneState`;
- `kernel_fault` for `tvm_rpc`: one word of `KernelFault`, read before each call into a kernel;
- `driver_fault` for the OpenCL driver: one word of `DriverFault`;
- `kernel_log`, `hang_dumpsys` and `disk_free_kib` (the latter only when wanted) for `dmesg`, `dumpsys` and `df`.

The *folder* is what the phone mounts (read-only): a bind mount of the files themselves would keep showing the old ones
after a rename. Programs on the phone find it through the environment variable `FARM_VIRTUAL_STATE`.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from farm.common.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

STATE_ENVIRONMENT = "FARM_VIRTUAL_STATE"

IDLE_LOAD = (0.4, 0.4, 0.4)  # an idle Android has 0.2 to 1
_IDLE_TEMPERATURES = MappingProxyType({"cpu": 36.0, "gpu": 34.0, "skin": 31.0, "battery": 29.0})


class ThrottlingStatus(IntEnum):
    """Android's thermal severity, as `dumpsys thermalservice` prints it (android.os.PowerManager.THERMAL_STATUS_*)."""

    NONE = 0
    LIGHT = 1
    MODERATE = 2
    SEVERE = 3
    CRITICAL = 4
    EMERGENCY = 5
    SHUTDOWN = 6


class BatteryStatus(IntEnum):
    """Android's charging state, as `dumpsys battery` prints it (android.os.BatteryManager.BATTERY_STATUS_*)."""

    UNKNOWN = 1
    CHARGING = 2
    DISCHARGING = 3
    NOT_CHARGING = 4
    FULL = 5


class BatteryHealth(IntEnum):
    """Android's verdict on a battery, as `dumpsys battery` prints it (android.os.BatteryManager.BATTERY_HEALTH_*)."""

    UNKNOWN = 1
    GOOD = 2
    OVERHEAT = 3
    DEAD = 4
    OVER_VOLTAGE = 5
    UNSPECIFIED_FAILURE = 6
    COLD = 7


class KernelFault(StrEnum):
    """How the next kernel called on the phone misbehaves."""

    NONE = "none"
    SEGFAULT = "segfault"  # the session's worker dies of SIGSEGV
    IGNORE_SIGTERM = "ignore_sigterm"  # it spins forever and SIGTERM does nothing, as in a stuck driver
    UNKILLABLE = "unkillable"  # it spins, and a child of it cannot be killed for `unkillable_s`
    WRONG_NUMBERS = "wrong_numbers"  # it returns, having written nonsense


class DriverFault(StrEnum):
    """What is wrong with the OpenCL driver of a phone that has one."""

    NONE = "none"
    MISSING = "missing"  # there is no libOpenCL.so
    FOREIGN = "32-bit"  # it is for a 32-bit machine
    CRASH = "crash"  # loading it ends the process
    HANG = "hang"  # clBuildProgram does not return
    FALSE_EXTENSIONS = "false_extensions"  # it states extensions that it does not have
    SMALL_IMAGES = "small_images"  # no image is larger than 64 x 64
    SMALL_LOCAL_MEMORY = "small_local_memory"  # a kernel has 1 KiB of it, the least that OpenCL allows


@dataclass(frozen=True, slots=True)
class PhoneState:
    """One moment of a virtual phone.

    `temps_c` has the groups `cpu`, `gpu`, `skin` and `battery` (degrees Celsius); the profile says which thermal zone
    belongs to which group. `clock_scale` is the share of the maximum clock that the governor still allows. `knobs`
    are the files below /sys that root wrote since boot: path -> text.
    """

    boot_id: str = ""
    booted_at_s: float = 0.0  # CLOCK_BOOTTIME of the host, for the phone's uptime
    battery_level: int = 85  # percent
    battery_status: BatteryStatus = BatteryStatus.CHARGING
    battery_voltage_mv: int = 4100
    battery_current_ma: float = 450.0  # into the battery; negative while it drains
    battery_health: BatteryHealth = BatteryHealth.GOOD
    battery_cycles: int = 120
    battery_full_uah: int = 4_800_000  # what it holds now
    battery_design_uah: int = 5_000_000  # what it held when new
    charging_enabled: bool = True  # the battery may take current
    input_suspended: bool = False  # the cable feeds nothing, though it is in
    usb_powered: bool = True
    temps_c: Mapping[str, float] = field(default_factory=lambda: dict(_IDLE_TEMPERATURES))
    throttling: ThrottlingStatus = ThrottlingStatus.NONE
    clock_scale: float = 1.0
    load: tuple[float, float, float] = IDLE_LOAD  # of /proc/loadavg: the lab host's says nothing of the phone
    cpu_busy: float | None = None  # share of one core or more, 0 to 1; None: clocks stay as captured
    gpu_busy: float | None = None
    gpu_resets: int = 0
    knobs: Mapping[str, str] = field(default_factory=dict)
    kernel_fault: KernelFault = KernelFault.NONE
    unkillable_s: float = 0.0
    driver_fault: DriverFault = DriverFault.NONE
    kernel_log: tuple[str, ...] = ()  # since boot
    dumpsys_hangs: bool = False
    disk_free_bytes: int | None = None  # None: as much as the host has

    def __post_init__(self) -> None:
        if not 0 <= self.battery_level <= 100:
            raise UserError(f"battery level {self.battery_level} is not a percentage", hint="give 0 to 100")
        if not 0 < self.clock_scale <= 1:
            raise UserError(f"clock scale {self.clock_scale} is not a share of the maximum", hint="give 0 < x <= 1")
        unknown = sorted(set(self.temps_c) - set(_IDLE_TEMPERATURES))
        if unknown:
            raise UserError(
                f"no such temperature group: {', '.join(unknown)}", hint=f"use {', '.join(_IDLE_TEMPERATURES)}"
            )

    @property
    def battery_temp_c(self) -> float:
        """Temperature of the battery in degrees Celsius."""
        return self.temps_c.get("battery", _IDLE_TEMPERATURES["battery"])


def new_boot_id() -> str:
    """A fresh boot id in the form of /proc/sys/kernel/random/boot_id."""
    return str(uuid.uuid4())


def state_folder(phone_directory: Path) -> Path:
    """Where a phone's state lives on the host; mounted read-only inside the phone."""
    return phone_directory / "state"


def write_state(phone_directory: Path, state: PhoneState) -> None:
    """Replace the files of a phone's state."""
    folder = state_folder(phone_directory)
    folder.mkdir(parents=True, exist_ok=True)
    record = asdict(state)
    record["temps_c"] = dict(state.temps_c)
    record["knobs"] = dict(state.knobs)
    _replace(folder / "state.json", json.dumps(record, indent=1) + "\n")
    seconds = f" {state.unkillable_s:g}" if state.kernel_fault is KernelFault.UNKILLABLE else ""
    _replace(folder / "kernel_log", "".join(f"{line}\n" for line in state.kernel_log))
    marks = {
        "hang_dumpsys": "" if state.dumpsys_hangs else None,
        "disk_free_kib": None if state.disk_free_bytes is None else f"{state.disk_free_bytes // 1024}\n",
    }
    for name, text in marks.items():
        if text is None:
            (folder / name).unlink(missing_ok=True)
        else:
            _replace(folder / name, text)
    _replace(folder / "driver_fault", f"{state.driver_fault.value}\n")
    _replace(folder / "kernel_fault", f"{state.kernel_fault.value}{seconds}\n")


def read_state(folder: Path) -> PhoneState:
    """Read the state back from the *state folder*, on the host or inside the phone."""
    record = json.loads((folder / "state.json").read_text("utf-8"))
    return PhoneState(**changes_from_record(record))


def changes_from_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a state, some or all, as they stand in state.json."""
    unknown = set(record) - {item.name for item in fields(PhoneState)}
    if unknown:
        raise ValueError(f"unknown fields of a state: {sorted(unknown)}")
    kinds: Mapping[str, Callable[[Any], Any]] = {
        "battery_status": BatteryStatus,
        "battery_health": BatteryHealth,
        "throttling": ThrottlingStatus,
        "kernel_fault": KernelFault,
        "driver_fault": DriverFault,
        "kernel_log": tuple,
        "load": tuple,
    }
    return {name: kinds[name](value) if name in kinds else value for name, value in record.items()}


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
