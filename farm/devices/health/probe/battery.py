"""The battery: `dumpsys battery`, and its gauge in /sys/class/power_supply. Pure; never raises.

Units: `dumpsys battery` prints mV and tenths of a degree (android.os.BatteryManager), power_supply files µV, µA, µAh
and tenths of a degree (Documentation/ABI/testing/sysfs-class-power); vendors print mV, mA and mAh in the same places.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from farm.devices.health.probe.readings import MAX_BATTERY_C, celsius, integer
from farm.model.health import Battery, Dropped

DUMPSYS, SUPPLY = "battery", "power_supply"
_STOPPED = "UPDATES STOPPED"  # after `dumpsys battery set` or `unplug`: what follows was set by hand

# BatteryManager.BATTERY_HEALTH_* and BATTERY_STATUS_*, by number and as the kernel spells them.
_HEALTH = {2: "good", 3: "overheat", 4: "dead", 5: "over-voltage", 6: "failure", 7: "cold"}
_STATUS = {2: "charging", 3: "discharging", 4: "not-charging", 5: "full"}
_KERNEL_HEALTH = {
    "good": "good", "overheat": "overheat", "hot": "overheat", "dead": "dead", "over voltage": "over-voltage",
    "unspecified failure": "failure", "cold": "cold",
}  # fmt: skip
_KERNEL_STATUS = {
    "charging": "charging", "discharging": "discharging", "not charging": "not-charging", "full": "full",
}  # fmt: skip

_MIN_MV, _MAX_MV = 2_500, 9_600  # one lithium cell nearly empty, two in series full
_MIN_UAH, _MAX_UAH = 500_000, 30_000_000
_MAX_OF_DESIGN = 1.3  # a gauge that claims more has not learned anything
_MAX_CYCLES = 5_000
_MIN_UA, _MAX_UA = 10_000, 20_000_000  # below 10 mA, a figure in µA cannot be distinguished from one in mA
_USAGE_PER_CYCLE = 100  # Samsung counts percent that were discharged ...
_MIN_USAGE = 1_000  # ... but small figures may be cycles: a phone that lost 4 % of its capacity says 132
_FIELD = re.compile(r"\s*([A-Za-z][A-Za-z ]*?): (\S+)\s*")
_SAMSUNG_USAGE = re.compile(r"^[ \t]*mSavedBatteryUsage: \[?([0-9]{1,9})\]?[ \t]*$", re.MULTILINE)

_LEVEL = re.compile(r"^[ \t]*level: \S", re.MULTILINE)


def parse_dumpsys(text: str) -> tuple[Battery, list[Dropped]]:
    """The fields of `dumpsys battery`. Whole lines only, and the first of each name: vendors append their logs."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if found := _FIELD.fullmatch(line):
            fields.setdefault(found[1], found[2])
    if _STOPPED in text:
        return Battery(), [Dropped(DUMPSYS, "battery", _STOPPED, "its values were set by hand")]
    powered = tuple(
        name.lower() for name in ("AC", "USB", "Wireless", "Dock") if fields.get(f"{name} powered") == "true"
    )
    if fields.get("present") == "false":
        return Battery(powered_by=powered), [Dropped(DUMPSYS, "battery", "present: false", "there is no battery")]
    dropped: list[Dropped] = []
    level, scale = integer(fields.get("level")), integer(fields.get("scale", "100"))
    percent = round(100 * level / scale) if level is not None and scale and 0 <= level <= scale else None
    if "level" in fields and percent is None:
        raw = f"{fields['level']}/{fields.get('scale', '100')}"
        dropped.append(Dropped(DUMPSYS, "level", raw, "not a share of its scale"))
    degrees = _temperature(fields.get("temperature"), DUMPSYS, dropped)
    millivolts = _voltage(fields.get("voltage"), DUMPSYS, dropped)
    if percent == 0 and fields.get("voltage") == fields.get("temperature") == "0":
        percent = None
        dropped.append(Dropped(DUMPSYS, "level", "0", "a default, like its voltage and temperature"))
    battery = Battery(
        percent=percent,
        celsius=degrees,
        voltage_mv=millivolts,
        current_ma=_samsung_current(fields),
        health=_HEALTH.get(integer(fields.get("health")) or 0, ""),
        status=_STATUS.get(integer(fields.get("status")) or 0, ""),
        powered_by=powered,
    )
    usage = _SAMSUNG_USAGE.search(text)
    cycles = int(usage[1]) // _USAGE_PER_CYCLE if usage and int(usage[1]) >= _MIN_USAGE else 0
    return replace(battery, cycles=cycles if 0 < cycles <= _MAX_CYCLES else None), dropped


def add_supply(battery: Battery, text: str) -> tuple[Battery, list[Dropped]]:
    """The same battery with its gauge's readings: `SUPPLY/NAME=VALUE` lines, those of `uevent` and of single files.

    Where `dumpsys battery` says something too, it counts; the gauge's figures cannot be set by hand.
    """
    values = _supply_values(text)
    if values.get("PRESENT", "").strip() == "0":
        return battery, [Dropped(SUPPLY, "battery", "PRESENT=0", "there is no battery")]
    dropped: list[Dropped] = []
    full = _capacity(values, "CHARGE_FULL", dropped)
    design = _capacity(values, "CHARGE_FULL_DESIGN", dropped)
    if full and design and full > _MAX_OF_DESIGN * design:
        dropped.append(Dropped(SUPPLY, "CHARGE_FULL", str(full), "far more than it held when new"))
        full = None
    cycles = integer(values.get("CYCLE_COUNT"))
    if cycles is not None and not 0 < cycles <= _MAX_CYCLES:
        dropped.append(Dropped(SUPPLY, "CYCLE_COUNT", str(cycles), "a gauge that does not count says 0 or 65535"))
        cycles = None
    status = battery.status or _KERNEL_STATUS.get(values.get("STATUS", "").strip().lower(), "")
    percent = integer(values.get("CAPACITY"))
    voltage, current = battery.voltage_mv, battery.current_ma
    return replace(
        battery,
        percent=percent if battery.percent is None and percent is not None and 0 <= percent <= 100 else battery.percent,
        celsius=battery.celsius if battery.celsius is not None else _temperature(values.get("TEMP"), SUPPLY, dropped),
        voltage_mv=voltage if voltage is not None else _voltage(values.get("VOLTAGE_NOW"), SUPPLY, dropped),
        current_ma=current if current is not None else _current(values.get("CURRENT_NOW"), status, dropped),
        health=battery.health or _KERNEL_HEALTH.get(values.get("HEALTH", "").strip().lower(), ""),
        status=status,
        cycles=cycles or battery.cycles,
        full_uah=full,
        design_uah=design,
    ), dropped


def _supply_values(text: str) -> Mapping[str, str]:
    """By the kernel's names. `battery` is printed first, then `bms`, the gauge of older Qualcomm phones."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        name = name.rpartition("/")[2].removeprefix("POWER_SUPPLY_").upper()
        if equals and value.strip():
            values.setdefault(name, value)
    return values


def _temperature(text: str | None, source: str, dropped: list[Dropped]) -> float | None:
    tenths = integer(text)
    if tenths is None:
        return None
    degrees = celsius(tenths, (10, 1000), MAX_BATTERY_C)
    if degrees is None:
        dropped.append(Dropped(source, "temperature", str(tenths), "no battery temperature in tenths of a degree"))
    return degrees


def _voltage(text: str | None, source: str, dropped: list[Dropped]) -> int | None:
    value = integer(text)
    if value is None:
        return None
    for per_mv in (1, 1000):
        if _MIN_MV <= value / per_mv <= _MAX_MV:
            return round(value / per_mv)
    dropped.append(Dropped(source, "voltage", str(value), "no battery voltage in mV or µV"))
    return None


def _capacity(values: Mapping[str, str], name: str, dropped: list[Dropped]) -> int | None:
    value = integer(values.get(name))
    if value is None:
        return None
    for uah in (value, value * 1000):
        if _MIN_UAH <= uah <= _MAX_UAH:
            return uah
    dropped.append(Dropped(SUPPLY, name, str(value), "no battery's capacity in µAh or mAh"))
    return None


def _samsung_current(fields: Mapping[str, str]) -> float | None:
    """`current now` in mA, positive into the battery; phones that do not measure it say 0."""
    current = integer(fields.get("current now"))
    return float(current) if current and abs(current) * 1000 <= _MAX_UA else None


def _current(text: str | None, status: str, dropped: list[Dropped]) -> float | None:
    """Current into the battery in mA. The kernel wants µA, positive while charging; many drivers turn the sign round.

    A phone that draws more than its cable gives drains although it says that it charges: then a negative figure may
    mean either, and is dropped.
    """
    value = integer(text)
    if not value:
        return None
    reason = ""
    if not _MIN_UA <= abs(value) <= _MAX_UA:
        reason = "cannot be told from mA" if abs(value) < _MIN_UA else "no current of a phone's battery"
    elif status == "discharging":
        return -abs(value) / 1000
    elif status != "charging" or value < 0:
        reason = "its sign may mean either direction"
    if reason:
        dropped.append(Dropped(SUPPLY, "CURRENT_NOW", str(value), reason))
        return None
    return value / 1000


def source_is_silent(dumpsys: str) -> bool:
    """Whether `dumpsys battery` said nothing of a battery service at all."""
    return "powered:" not in dumpsys and not _LEVEL.search(dumpsys)
