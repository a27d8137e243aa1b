"""What a virtual phone's sensors, battery and faults say right now: one frozen value, kept in one folder per phone.

The lab process is the only writer. `write_state` puts two forms of the same value into `<phone dir>/state/`, each
replaced whole (write + rename), so that a reader never sees half of one:

- `state.json`   for Python readers: the fields of `PhoneState`;
- `kernel_fault` for `tvm_rpc`: one word of `KernelFault`, read before each call into a kernel.

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
from typing import TYPE_CHECKING

from farm.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STATE_ENVIRONMENT = "FARM_VIRTUAL_STATE"

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


class KernelFault(StrEnum):
    """How the next kernel called on the phone misbehaves."""

    NONE = "none"
    SEGFAULT = "segfault"  # the session's worker dies of SIGSEGV
    IGNORE_SIGTERM = "ignore_sigterm"  # it spins for ever and SIGTERM does nothing, as in a stuck driver
    WRONG_NUMBERS = "wrong_numbers"  # it returns, having written nonsense


@dataclass(frozen=True, slots=True)
class PhoneState:
    """One moment of a virtual phone.

    `temps_c` has the groups `cpu`, `gpu`, `skin` and `battery` (degrees Celsius); the profile says which thermal zone
    belongs to which group. `clock_scale` is the share of the maximum clock that the governor still allows.
    """

    boot_id: str = ""
    booted_at_s: float = 0.0  # CLOCK_BOOTTIME of the host, for the phone's uptime
    battery_level: int = 85  # percent
    battery_status: BatteryStatus = BatteryStatus.CHARGING
    battery_voltage_mv: int = 4100
    usb_powered: bool = True
    temps_c: Mapping[str, float] = field(default_factory=lambda: dict(_IDLE_TEMPERATURES))
    throttling: ThrottlingStatus = ThrottlingStatus.NONE
    clock_scale: float = 1.0
    kernel_fault: KernelFault = KernelFault.NONE
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


def throttling_of(skin_c: float) -> tuple[ThrottlingStatus, float]:
    """Severity and remaining clock share for a skin temperature.

    The steps lie in the range of the captured `dumpsys thermalservice` outputs (skin, light: 36 to 39 degrees; severe:
    42 to 50); the clock shares are the simulation's own.
    """
    steps = (
        (55.0, ThrottlingStatus.SHUTDOWN, 0.2),
        (52.0, ThrottlingStatus.EMERGENCY, 0.25),
        (47.0, ThrottlingStatus.CRITICAL, 0.4),
        (45.0, ThrottlingStatus.SEVERE, 0.55),
        (43.0, ThrottlingStatus.MODERATE, 0.7),
        (39.0, ThrottlingStatus.LIGHT, 0.85),
    )
    for threshold_c, status, scale in steps:
        if skin_c >= threshold_c:
            return status, scale
    return ThrottlingStatus.NONE, 1.0


def state_folder(phone_directory: Path) -> Path:
    """Where a phone's state lives on the host; mounted read-only inside the phone."""
    return phone_directory / "state"


def write_state(phone_directory: Path, state: PhoneState) -> None:
    """Replace the files of a phone's state.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = state_folder(phone_directory)
    folder.mkdir(parents=True, exist_ok=True)
    record = asdict(state)
    record["temps_c"] = dict(state.temps_c)
    _replace(folder / "state.json", json.dumps(record, indent=1) + "\n")
    _replace(folder / "kernel_fault", f"{state.kernel_fault.value}\n")


def read_state(folder: Path) -> PhoneState:
    """Read the state back from the *state folder*, on the host or inside the phone.

    Raises:
        OSError: there is no state yet.
        ValueError: the file is not ours.
    """
    record = json.loads((folder / "state.json").read_text("utf-8"))
    unknown = set(record) - {item.name for item in fields(PhoneState)}
    if unknown:
        raise ValueError(f"unknown fields in {folder}/state.json: {sorted(unknown)}")
    record["battery_status"] = BatteryStatus(record["battery_status"])
    record["throttling"] = ThrottlingStatus(record["throttling"])
    record["kernel_fault"] = KernelFault(record["kernel_fault"])
    return PhoneState(**record)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
