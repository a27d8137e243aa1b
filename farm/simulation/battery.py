"""The battery as the phone shows it: `dumpsys battery` and /sys/class/power_supply."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.simulation.state import BatteryHealth, BatteryStatus, PhoneState

_SUPPLY = "/sys/class/power_supply"
# Files that root writes to steer charging; which of them a kernel has differs, so a virtual phone has the usual two.
CHARGING_ENABLED = f"{_SUPPLY}/battery/charging_enabled"
INPUT_SUSPEND = f"{_SUPPLY}/battery/input_suspend"


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
    """What the fuel gauge and the cable say; units as in Documentation/ABI/testing/sysfs-class-power (µA, µV, µAh).

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
