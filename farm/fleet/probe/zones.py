"""Thermal zones of /sys/class/thermal. Pure; never raises.

Zones hold millidegrees (Documentation/driver-api/thermal/sysfs-api.rst), but listings of one phone mix them with
tenths, whole degrees, percentages, mV and mA, and -40000 or -274000 where a sensor is not soldered. A figure that is
not in millidegrees is believed only where the zone's name is known to be a thermometer's and one unit alone makes sense
of it.
"""

from __future__ import annotations

import re

from farm.core.health import Dropped, SensorGroup, Temperature
from farm.fleet.probe.readings import celsius

SOURCE = "thermal_zones"  # of a line that does not say which zone it is
# "thermal_zone12 cpu-0-0-usr=45900", "cpu-0-0-usr: 45900", "type=temp"
_ZONE = re.compile(r"[ \t]*(?:(thermal_zone[0-9]{1,4}) )?([A-Za-z][^=:]*)[=:][ \t]*(-?[0-9]{1,9})[ \t]*", re.ASCII)
# Zones of power drivers that hold mA, mV or percent, and steps that a governor computes.
_NOT_THERMAL = re.compile(
    r"ibat|vbat|bcl|vph|lvl|socd|^soc$|cur(?:rent)?\b|volt|max-step|-step$|vdroop|ocp", re.IGNORECASE
)
_THERMOMETER = re.compile(r"tsens|therm|^batt|^bms$|_tz$|^xo|^pa_|^cpu|^gpu|^mtkts", re.IGNORECASE)
_SKIN = r"skin|case[-_ ]?therm|quiet[-_ ]?therm|^mtktsap$|^shell|^back[-_]?(?:therm|cover)"
_BATTERY = r"^batt?(?:ery)?(?:[-_].*)?$|^bms$|bat[-_]therm|^mtktsbattery$|^maxfg"
_GROUPS = (
    (SensorGroup.SKIN, re.compile(_SKIN, re.IGNORECASE)),
    (SensorGroup.BATTERY, re.compile(_BATTERY, re.IGNORECASE)),
    (SensorGroup.GPU, re.compile(r"gpu|g3d|mali", re.IGNORECASE)),
    (SensorGroup.CPU, re.compile(r"cpu|^apc|^big$|^mid$|^little$|cluster", re.IGNORECASE)),
)
_MILLI, _MIXED = (1000,), (1000, 10, 1)


def parse_zones(text: str) -> tuple[tuple[Temperature, ...], list[Dropped]]:
    """The believed zones, and the others with the reason."""
    believed: list[Temperature] = []
    dropped: list[Dropped] = []
    for line in text.splitlines():
        found = _ZONE.fullmatch(line)
        if found is None:
            continue
        source, name, raw = found[1] or SOURCE, found[2].rstrip(" \t"), int(found[3])
        if _NOT_THERMAL.search(name):
            dropped.append(Dropped(source, name, str(raw), "not a thermometer, by its name"))
            continue
        known = _THERMOMETER.search(name)
        degrees = celsius(raw, _MIXED if known else _MILLI)
        if degrees is None:
            reason = "no temperature in any unit" if known else "no temperature in millidegrees"
            dropped.append(Dropped(source, name, str(raw), reason))
            continue
        believed.append(Temperature(name, round(degrees, 1), group_of(name), source))
    return tuple(believed), dropped


def group_of(name: str) -> SensorGroup:
    """The part of a phone that a zone's name tells of."""
    return next((group for group, pattern in _GROUPS if pattern.search(name)), SensorGroup.OTHER)
