"""The readings of a phone's sensors and the output of its services: pure text from a profile and a `PhoneState`.

The host renders; the phone only reads files. So a fault reaches `cat /sys/class/thermal/...`, `dumpsys battery` and
`dumpsys thermalservice` at the same moment, and no program on the phone has to compute anything.
"""

from __future__ import annotations

import os
import re
from statistics import fmean
from typing import TYPE_CHECKING

from farm.simulation import clocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from farm.simulation.profiles import Profile, ThermalZone
    from farm.simulation.state import BatteryHealth, BatteryStatus, PhoneState

SYS = "sys"  # folder under the phone's directory that becomes /sys
DUMPSYS = "dumpsys"  # ... that `dumpsys` reads
PROC = "proc"  # ... whose files replace those of /proc

_UNITS_PER_DEGREE = {"mc": 1000, "dc": 10, "c": 1}
# TemperatureType of android.hardware.thermal -> our group. Types not listed keep their captured value.
_HAL_GROUPS = {0: "cpu", 1: "gpu", 2: "battery", 3: "skin", 5: "skin", 9: "cpu"}
_SKIN = 3
_CURRENT_SECTION = "Current temperatures from HAL:"
_TEMPERATURE = re.compile(r"Temperature\{mValue=([^,]+), mType=(-?\d+), mName=([^,]+), mStatus=\d+\}")
_SUPPLY = "/sys/class/power_supply"
# Files that root writes to steer charging; which of them a kernel has differs, so a virtual phone has the usual two.
CHARGING_ENABLED = f"{_SUPPLY}/battery/charging_enabled"
INPUT_SUSPEND = f"{_SUPPLY}/battery/input_suspend"


def render(profile: Profile, state: PhoneState) -> dict[str, str]:
    """Every file that depends on the state, by its path under the phone's directory."""
    files = {
        f"{DUMPSYS}/battery": battery_text(profile.battery, state),
        f"{PROC}/boot_id": f"{state.boot_id}\n",
        f"{PROC}/loadavg": loadavg_text(state.load),
    }
    if profile.thermalservice:
        files[f"{DUMPSYS}/thermalservice"] = thermalservice_text(profile.thermalservice, state)
    technology = re.search(r"^  technology: (.*)$", profile.battery, re.MULTILINE)
    supply = power_supply_files(technology[1] if technology else "Li-ion", state)
    moving = (*_thermal_zones(profile.zones, state), *clocks.clock_files(profile.sysfs, state))
    for path, text in (*moving, *supply.items()):
        files[path.removeprefix("/")] = text
    return files


def render_constant(profile: Profile) -> dict[str, str]:
    """Every file that stays the same for the phone's life, by its path under the phone's directory."""
    files = {path.removeprefix("/"): text for path, text in clocks.constant_files(profile.sysfs).items()}
    for number, zone in enumerate(profile.zones):
        files[f"sys/class/thermal/thermal_zone{number}/type"] = f"{zone.type}\n"
    files[f"{PROC}/cpuinfo"] = profile.cpuinfo
    files[f"{PROC}/meminfo"] = profile.meminfo
    return files


def write_links(phone_directory: Path, profile: Profile) -> None:
    """Symbolic links of /sys."""
    for path, says in clocks.links(profile.sysfs).items():
        link = phone_directory / path.removeprefix("/")
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(says)


def apply_state(
    phone_directory: Path,
    profile: Profile,
    state: PhoneState,
    captured: Mapping[str, str] | None = None,
    leave: Callable[[str, str], bool] | None = None,
) -> frozenset[str]:
    """Write the files that changed with the state; a reader on the phone sees each file whole, old or new.

    `captured` files, by their path under the phone's directory, say what they say instead.
    `leave(name, text)`: whether a file that says this now stays as it is; returns which did.
    """
    return write_files(phone_directory, render(profile, state) | dict(captured or {}), leave)


def write_files(
    phone_directory: Path, files: Mapping[str, str], leave: Callable[[str, str], bool] | None = None
) -> frozenset[str]:
    """Write rendered files, leaving alone those that already say the same; returns those to `leave`.

    Files under proc/ are mounted one by one, so they keep their inode; all others are replaced by rename.
    """
    left = set()
    for name, text in files.items():
        target = phone_directory / name
        data = text.encode("utf-8", "surrogateescape")
        try:
            now = target.read_bytes()
            if now == data:
                continue
            if leave is not None and leave(name, now.decode("utf-8", "replace")):
                left.add(name)
                continue
        except FileNotFoundError:
            # Nobody reads a file that was not there before; not renaming halves the time of a first boot.
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            continue
        if name.startswith(f"{PROC}/"):
            target.write_bytes(data)
            continue
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(target)
    return frozenset(left)


def loadavg_text(load: tuple[float, float, float]) -> str:
    """/proc/loadavg; threads and the newest process id are a quiet phone's."""
    one, five, fifteen = load
    return f"{one:.2f} {five:.2f} {fifteen:.2f} 1/4096 20000\n"


def thermalservice_text(template: str, state: PhoneState) -> str:
    """`dumpsys thermalservice`: the status and the current section follow the state, the cached one stays stale."""
    head, mark, current = template.partition(_CURRENT_SECTION)
    head = re.sub(r"^Thermal Status: \d+", f"Thermal Status: {int(state.throttling)}", head, flags=re.MULTILINE)

    def reading(match: re.Match[str]) -> str:
        captured, kind, name = match[1], int(match[2]), match[3]
        absent = float(captured) in (0.0, -99.9)  # how vendors say "no such sensor"
        value = captured if absent or kind not in _HAL_GROUPS else f"{state.temps_c[_HAL_GROUPS[kind]]:.1f}"
        status = int(state.throttling) if kind == _SKIN else 0
        return f"Temperature{{mValue={value}, mType={kind}, mName={name}, mStatus={status}}}"

    return head + mark + _TEMPERATURE.sub(reading, current)


def _thermal_zones(zones: tuple[ThermalZone, ...], state: PhoneState) -> Iterable[tuple[str, str]]:
    means = {
        group: fmean(_degrees(zone) for zone in zones if zone.group == group)
        for group in {zone.group for zone in zones if zone.group}
    }
    for number, zone in enumerate(zones):
        value = zone.value
        if zone.group:
            # The spread between the zones of a group is the captured one; the state moves them together.
            degrees = state.temps_c[zone.group] + _degrees(zone) - means[zone.group]
            value = round(degrees * _UNITS_PER_DEGREE[zone.unit])
        yield f"/sys/class/thermal/thermal_zone{number}/temp", f"{value}\n"


def _degrees(zone: ThermalZone) -> float:
    return zone.value / _UNITS_PER_DEGREE[zone.unit]


def battery_text(template: str, state: PhoneState) -> str:
    """`dumpsys battery` with the state's level, charge, voltage, temperature and health.

    Only the first block is touched: vendors append lines with the same words in them (`charge counter:`,
    `current now:`), and those stay as captured.
    """
    values = {
        "AC powered": "false",
        "USB powered": "true" if state.usb_powered else "false",
        "status": str(int(state.battery_status)),
        "health": str(int(state.battery_health)),
        "level": str(state.battery_level),
        "voltage": str(state.battery_voltage_mv),
        "temperature": f"{state.battery_temp_c * 10:.0f}",
    }
    for name, value in values.items():
        template = re.sub(rf"^  {name}: .*$", f"  {name}: {value}", template, count=1, flags=re.MULTILINE)
    return template


def power_supply_files(technology: str, state: PhoneState) -> dict[str, str]:
    """Values of the fuel gauge and the cable; units as in Documentation/ABI/testing/sysfs-class-power (µA, µV, µAh).

    The sign of `current_now` is the kernel's: positive into the battery. (Vendors differ; the farm has to cope.)
    """
    battery = {
        "type": "Battery",
        "present": "1",
        "status": _word(state.battery_status),
        "health": _word(state.battery_health),
        "technology": technology,
        "capacity": state.battery_level,
        "temp": f"{state.battery_temp_c * 10:.0f}",
        "voltage_now": state.battery_voltage_mv * 1000,
        "current_now": f"{state.battery_current_ma * 1000:.0f}",
        "cycle_count": state.battery_cycles,
        "charge_full": state.battery_full_uah,
        "charge_full_design": state.battery_design_uah,
        "charge_counter": state.battery_full_uah * state.battery_level // 100,
        "charging_enabled": int(state.charging_enabled),
        "input_suspend": int(state.input_suspended),
    }
    cable = {"type": "USB", "online": int(state.usb_powered)}
    files = {f"{_SUPPLY}/battery/{name}": f"{value}\n" for name, value in battery.items()}
    own = {"charging_enabled", "input_suspend", "type"}  # of the driver, not of the power supply class
    lines = [f"POWER_SUPPLY_{name.upper()}={value}\n" for name, value in battery.items() if name not in own]
    files[f"{_SUPPLY}/battery/uevent"] = "".join(["POWER_SUPPLY_NAME=battery\n", *lines])
    return files | {f"{_SUPPLY}/usb/{name}": f"{value}\n" for name, value in cable.items()}


def _word(value: BatteryStatus | BatteryHealth) -> str:
    """`Not charging`: the name as the kernel writes it (drivers/power/supply/power_supply_sysfs.c)."""
    return value.name.replace("_", " ").capitalize()
