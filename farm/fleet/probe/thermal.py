"""`dumpsys thermalservice`: temperatures that the thermal HAL reads now, and how far it throttles. Pure; never raises.

The cached section holds the last change that was reported, minutes or days old, and is not believed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.core.health import Dropped, SensorGroup, Temperature, ThrottleStatus
from farm.fleet.probe.readings import MAX_PLAUSIBLE_C, MIN_PLAUSIBLE_C, decimal

SOURCE = "thermalservice"

# android.hardware.thermal TemperatureType: 6-8 are voltage, current and percentage of a battery's protection, -1 is
# unknown and used for differences between sensors; above 13 they are of Android 15.
_GROUPS = {0: SensorGroup.CPU, 1: SensorGroup.GPU, 2: SensorGroup.BATTERY, 3: SensorGroup.SKIN}
_ELECTRIC = {6: "a voltage", 7: "a current", 8: "a percentage"}
_LAST_TYPE = 30
# Samsung's Sdhms numbers types from 1 and names them as the enumeration does: the name counts.
_SHIFTED = re.compile(r"^[ \t]*Sdhms connected", re.MULTILINE)
_NAMED = re.compile(r"(?:TYPE_)?(CPU|GPU|BATTERY|SKIN|UNKNOWN|BCL_[A-Z]+|AP|BAT|SUBBAT)[0-9]*", re.IGNORECASE)
_BY_NAME = {
    "CPU": SensorGroup.CPU, "AP": SensorGroup.CPU, "GPU": SensorGroup.GPU, "BATTERY": SensorGroup.BATTERY,
    "BAT": SensorGroup.BATTERY, "SUBBAT": SensorGroup.BATTERY, "SKIN": SensorGroup.SKIN,
}  # fmt: skip

_HEADLINE = re.compile(r"^[ \t]*Thermal Status:[ \t]*([0-6])[ \t]*$", re.MULTILINE)
_OVERRIDDEN = re.compile(r"^[ \t]*IsStatusOverride:[ \t]*true", re.MULTILINE | re.IGNORECASE)
_CURRENT = re.compile(r"^[ \t]*Current temperatures from HAL:[ \t]*$", re.MULTILINE)
_READING = re.compile(
    r"\s*Temperature\{mValue=([^,}]*), mType=(-?[0-9]{1,3}), mName=(.*), mStatus=(-?[0-9]{1,3})\}?\s*"
)


@dataclass(frozen=True, slots=True)
class Thermal:
    """What the thermal service says."""

    temperatures: tuple[Temperature, ...] = ()
    throttle: ThrottleStatus | None = None
    throttled_by: str = ""


def parse_thermalservice(text: str) -> tuple[Thermal, list[Dropped]]:
    """The believed readings, and the worst status that the headline or a believed sensor claims."""
    dropped: list[Dropped] = []
    believed: list[Temperature] = []
    headline = None if _OVERRIDDEN.search(text) else _HEADLINE.search(text)
    worst, by = (int(headline[1]), "") if headline else (-1, "")
    shift = 1 if _SHIFTED.search(text) else 0
    for value, kind, name, status in _current_readings(text, dropped):
        reading, reason = _believe(value, kind - shift, name)
        if reading is None:
            dropped.append(Dropped(SOURCE, name, value, reason))
            continue
        believed.append(reading)
        if worst < status <= ThrottleStatus.SHUTDOWN:
            worst, by = status, name
    return Thermal(tuple(believed), ThrottleStatus(worst) if worst >= 0 else None, by if worst > 0 else ""), dropped


def _current_readings(text: str, dropped: list[Dropped]) -> list[tuple[str, int, str, int]]:
    start = _CURRENT.search(text)
    if start is None:
        if stale := text.count("Temperature{"):
            dropped.append(Dropped(SOURCE, "", f"{stale} cached readings", "reported once, nobody knows when"))
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
