"""A phone's thermometers: `dumpsys thermalservice`, zones of /sys/class/thermal, and which of them count. Pure.

Parsers never raise. The cached section of the thermal service holds the last change that was reported, minutes or days
old, and is not believed.

Zones hold millidegrees (Documentation/driver-api/thermal/sysfs-api.rst), but listings of one phone mix them with
tenths, whole degrees, percentages, mV and mA, and -40000 or -274000 where a sensor is not soldered. A figure that is
not in millidegrees is believed only where the zone's name is known to be a thermometer's and one unit alone makes sense
of it.

`[probe]` corrects what a phone says of its sensors by what operators know of its model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from farm.common.durations import many
from farm.devices.health.probe.readings import MAX_PLAUSIBLE_C, MIN_PLAUSIBLE_C, celsius, decimal
from farm.model.health import Dropped, Health, SensorGroup, Temperature, ThrottleStatus

SOURCE = "thermalservice"

# android.hardware.thermal TemperatureType: 6-8 are voltage, current and percentage of a battery's protection, -1 is
# unknown and used for differences between sensors; above 13 they are of Android 15.
_GROUPS = {0: SensorGroup.CPU, 1: SensorGroup.GPU, 2: SensorGroup.BATTERY, 3: SensorGroup.SKIN}
_ELECTRIC = {6: "a voltage", 7: "a current", 8: "a percentage"}
_LAST_TYPE = 30
# Samsung's Sdhms numbers types from 1 and names them as the enumeration does: the name counts.
_SHIFTED = re.compile(r"^[ \t]*Sdhms connected", re.MULTILINE)
_NAMED = re.compile(r"(?:TYPE_)?(CPU|GPU|BATTERY|SKIN|UNKNOWN|BCL_[A-Z]+|AP|PATHM|BAT|SUBBAT)[0-9]*", re.IGNORECASE)
_BY_NAME = {
    "CPU": SensorGroup.CPU, "AP": SensorGroup.CPU, "GPU": SensorGroup.GPU, "BATTERY": SensorGroup.BATTERY,
    "BAT": SensorGroup.BATTERY, "SUBBAT": SensorGroup.BATTERY, "SKIN": SensorGroup.SKIN,
    "PATHM": SensorGroup.OTHER,  # of a Galaxy A24's radio amplifier, as type 0
}  # fmt: skip

_HEADLINE = re.compile(r"^[ \t]*Thermal Status:[ \t]*([0-6])[ \t]*$", re.MULTILINE)
# The status of a service without its HAL is a default; so is a status without a measurement, or in a cut dump.
_NOT_READY = re.compile(
    r"^[ \t]*HAL Ready:[ \t]*false|\bconnected:[ \t]*no\b|^\*\*\* SERVICE .{1,80} DUMP TIMEOUT",
    re.MULTILINE | re.IGNORECASE,
)
_OVERRIDDEN = re.compile(r"^[ \t]*IsStatusOverride:[ \t]*true", re.MULTILINE | re.IGNORECASE)
_CURRENT = re.compile(r"^[ \t]*Current temperatures from HAL:[ \t]*$", re.MULTILINE)
_READING = re.compile(
    r"\s*Temperature\{mValue=([^,}]*), mType=(-?[0-9]{1,3}), mName=(.*), mStatus=(-?[0-9]{1,3})\}?\s*"
)


@dataclass(frozen=True, slots=True)
class ThermalServiceReading:
    """The fields of the thermal service."""

    temperatures: tuple[Temperature, ...] = ()
    throttle: ThrottleStatus | None = None
    throttled_by: str = ""


def parse_thermalservice(text: str) -> tuple[ThermalServiceReading, list[Dropped]]:
    """The believed readings, and the worst status that the headline or a believed sensor claims."""
    dropped: list[Dropped] = []
    believed: list[Temperature] = []
    headline = None if _OVERRIDDEN.search(text) else _HEADLINE.search(text)
    readings = _current_readings(text, dropped)
    if headline and (_NOT_READY.search(text) or (_CURRENT.search(text) and not readings)):
        dropped.append(
            Dropped(SOURCE, "Thermal Status", headline[1], "a default: its HAL is not ready, or reads nothing")
        )
        headline = None
    worst, by = (int(headline[1]), "") if headline else (-1, "")
    shift = 1 if _SHIFTED.search(text) else 0
    for value, kind, name, status in readings:
        reading, reason = _believe(value, kind - shift, name)
        if reading is None:
            dropped.append(Dropped(SOURCE, name, value, reason))
            continue
        believed.append(reading)
        if worst < status <= ThrottleStatus.SHUTDOWN:
            worst, by = status, name
    return ThermalServiceReading(
        tuple(believed), ThrottleStatus(worst) if worst >= 0 else None, by if worst > 0 else ""
    ), dropped


def _current_readings(text: str, dropped: list[Dropped]) -> list[tuple[str, int, str, int]]:
    start = _CURRENT.search(text)
    if start is None:
        if stale := text.count("Temperature{"):
            dropped.append(Dropped(SOURCE, "", many(stale, "cached reading"), "reported once, at an unknown time"))
        return []
    readings = []
    for line in text[start.end() :].lstrip("\n").splitlines():
        found = _READING.fullmatch(line)
        if found:
            value, kind, name, status = found.groups()
            readings.append((value.strip(), int(kind), name.strip(), int(status)))
        elif line.strip() and "Temperature{" not in line:
            break  # the next heading
    return readings


def _believe(value: str, kind: int, name: str) -> tuple[Temperature | None, str]:
    named = _NAMED.fullmatch(name)
    word = named[1].upper() if named else ""
    group = _BY_NAME.get(word)
    if group is None:
        if word == "UNKNOWN" or kind < 0:
            return None, "of unknown type: often a difference between sensors"
        if kind in _ELECTRIC or word.startswith("BCL"):
            return None, f"{_ELECTRIC.get(kind, 'a figure')} of the battery's protection"
        if kind > _LAST_TYPE:
            return None, "of a type that Android does not have"
        group = _GROUPS.get(kind, SensorGroup.OTHER)
    degrees = decimal(value)
    if degrees is None:
        return None, "not a number"
    if not MIN_PLAUSIBLE_C <= degrees <= MAX_PLAUSIBLE_C:
        return None, f"no temperature of a phone in a lab ({MIN_PLAUSIBLE_C:g} to {MAX_PLAUSIBLE_C:g} °C)"
    return Temperature(name, round(degrees, 1), group, SOURCE), ""


ZONES = "thermal_zones"  # of a line that does not say which zone it is
# "thermal_zone12 cpu-0-0-usr=45900", "cpu-0-0-usr: 45900", "type=temp"
_ZONE = re.compile(r"[ \t]*(?:(thermal_zone[0-9]{1,4}) )?([A-Za-z][^=:]*)[=:][ \t]*(-?[0-9]{1,9})[ \t]*", re.ASCII)
# Zones of power drivers that hold mA, mV or percent, and steps that a governor computes.
_NOT_THERMAL = re.compile(
    r"ibat|vbat|bcl|vph|lvl|socd|^soc$|cur(?:rent)?\b|volt|max-step|-step$|vdroop|ocp", re.IGNORECASE
)
_THERMOMETER = re.compile(r"tsens|therm|^batt|^bms$|_tz$|^xo|^pa_|^cpu|^gpu|^mtkts", re.IGNORECASE)
_SKIN_ZONE = r"skin|case[-_ ]?therm|quiet[-_ ]?therm|^mtktsap$|^shell|^back[-_]?(?:therm|cover)"
_BATTERY_ZONE = r"^batt?(?:ery)?(?:[-_].*)?$|^bms$|bat[-_]therm|^mtktsbattery$|^maxfg"
_GROUP_PATTERNS = (
    (SensorGroup.SKIN, re.compile(_SKIN_ZONE, re.IGNORECASE)),
    (SensorGroup.BATTERY, re.compile(_BATTERY_ZONE, re.IGNORECASE)),
    (SensorGroup.GPU, re.compile(r"gpu|g3d|mali", re.IGNORECASE)),
    (SensorGroup.CPU, re.compile(r"cpu|^apc|^big$|^mid$|^little$|cluster", re.IGNORECASE)),
)
_MILLI, _MIXED = (1000,), (1000, 10, 1)


def parse_zones(text: str) -> tuple[tuple[Temperature, ...], list[Dropped]]:
    """The believed zones, and the doubted zones with the reason."""
    believed: list[Temperature] = []
    dropped: list[Dropped] = []
    for line in text.splitlines():
        found = _ZONE.fullmatch(line)
        if found is None:
            continue
        source, name, raw = found[1] or ZONES, found[2].rstrip(" \t"), int(found[3])
        group, known = _of_zone(name)
        if group is None:
            dropped.append(Dropped(source, name, str(raw), "not a thermometer, by its name"))
            continue
        degrees = celsius(raw, _MIXED if known else _MILLI)
        if degrees is None:
            reason = "no temperature in any unit" if known else "no temperature in millidegrees"
            dropped.append(Dropped(source, name, str(raw), reason))
            continue
        believed.append(Temperature(name, round(degrees, 1), group, source))
    return tuple(believed), dropped


@lru_cache(2048)  # names of a few models' zones, read with every probe
def _of_zone(name: str) -> tuple[SensorGroup | None, bool]:
    """The part of a phone that a zone measures, None if it is no thermometer; and whether it is known to be one."""
    return None if _NOT_THERMAL.search(name) else group_of(name), bool(_THERMOMETER.search(name))


def group_of(name: str) -> SensorGroup:
    """The part of a phone that a zone's name stands for."""
    return next((group for group, pattern in _GROUP_PATTERNS if pattern.search(name)), SensorGroup.OTHER)


# What the thermal service reads was chosen and named by the phone's maker; zones are whatever the kernel has.
_FIRST = "thermalservice"


@dataclass(frozen=True, slots=True)
class SensorPolicy:
    """The operators' configuration of one model's sensors."""

    ignore: tuple[str, ...] = ()  # names of sensors that lie; * and ? stand for any characters
    skin: str = ""  # the sensor that is the skin; empty: those that the phone calls so


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """How often phones are probed, and which readings count: `[probe]` and `[probe.model."MODEL"]`."""

    # A probe takes 0.1 s of a phone; with one an hour, a fault is noticed too late.
    # per device; a phone under full load warms by less than 5 °C meanwhile
    every_s: Annotated[float, Field(ge=0.2, le=3600)] = 10.0
    model: Mapping[str, SensorPolicy] = field(default_factory=dict)  # by ro.product.model


def counted(health: Health, policy: SensorPolicy) -> Health:
    """The same health with only the sensors that count, in the groups they count for.

    A throttle status that only an ignored sensor claims is unknown, not none.
    """
    if not policy.ignore and not policy.skin:
        return health
    kept: list[Temperature] = []
    dropped: list[Dropped] = []
    for each in health.temperatures:
        if _ignored(each.sensor, policy):
            dropped.append(Dropped(each.source, each.sensor, f"{each.celsius:g} °C", "ignored by [probe.model]"))
        else:
            kept.append(_grouped(each, policy.skin))
    doubtful = bool(health.throttled_by) and _ignored(health.throttled_by, policy)
    return replace(
        health,
        temperatures=tuple(kept),
        dropped=(*health.dropped, *dropped),
        throttle=None if doubtful else health.throttle,
        throttled_by="" if doubtful else health.throttled_by,
    )


def one_temperature(health: Health) -> Temperature | None:
    """The one figure to show: the hottest that the thermal service reads, else the hottest of any other sensor."""
    first = [each for each in health.temperatures if each.source == _FIRST]
    others = [each for each in health.temperatures if each.source != "battery"]
    return max(first or others or health.temperatures, key=lambda each: each.celsius, default=None)


def _ignored(sensor: str, policy: SensorPolicy) -> bool:
    return any(fnmatchcase(sensor, pattern) for pattern in policy.ignore)


def _grouped(temperature: Temperature, skin: str) -> Temperature:
    if skin and temperature.sensor == skin:
        return replace(temperature, group=SensorGroup.SKIN)
    if skin and temperature.group is SensorGroup.SKIN:
        return replace(temperature, group=SensorGroup.OTHER)
    return temperature
