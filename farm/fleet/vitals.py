"""One glance at a phone's health for `farm status`: battery level and one temperature.

The parsers are pure and never raise. A figure that may be wrong is worse than none, so every reading that is not
plausibly a temperature is dropped: HALs print currents and percentages as temperatures, sensors that do not exist read
0, -40 or
-274, and the cached section is stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from farm.fleet.shell_output import SECTION, Shell, split_sections

READ_TIMEOUT_S = 15.0  # generous on purpose: two dumpsys calls, and no real phone was measured

# Zones are read with shell built-ins: a phone in our captures has 79 of them, and `cat` would fork twice for each.
READ_COMMAND = f"""\
echo '{SECTION}battery'
dumpsys battery 2>/dev/null
echo '{SECTION}thermal'
dumpsys thermalservice 2>/dev/null
echo '{SECTION}zones'
for zone in /sys/class/thermal/thermal_zone*; do
  kind='' temp=''
  {{ IFS= read -r kind < "$zone/type"; IFS= read -r temp < "$zone/temp"; }} 2>/dev/null
  [ -n "$kind" ] && [ -n "$temp" ] && echo "$kind=$temp"
done
exit 0
"""

MIN_PLAUSIBLE_C = 5.0  # a phone in a lab; below lie fake batteries ("26" tenths) and currents in mA read as m°C
MAX_PLAUSIBLE_C = 120.0  # silicon is shut down before; above lie currents in mA
MAX_BATTERY_C = 90.0  # a sanity limit, not a datasheet's

# Android's TemperatureType (hardware/interfaces/thermal): 6-8 are voltage, current and percentage, -1 is unknown and
# used for differences between sensors.
_TEMPERATURE_TYPES = frozenset({0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13})
_HAL_READING = re.compile(r"\s*Temperature\{mValue=([^,}]*), mType=(-?[0-9]{1,3}), mName=([^,}]*),")
_CURRENT = re.compile(r"^Current temperatures from HAL:[ \t]*\n", re.MULTILINE)

_ZONE = re.compile(r"^[ \t]*([A-Za-z][^=:\n]*?)[ \t]*[=:][ \t]*(-?[0-9]{1,9})[ \t]*$", re.MULTILINE)
# Zones of power drivers that hold mA, mV or percent, and steps that a governor computes.
_NOT_THERMAL = re.compile(r"ibat|vbat|bcl|vph|lvl|socd|^soc$|cur(?:rent)?\b|volt|max-step|-step$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Vitals:
    """What could be read with confidence; None for the rest."""

    battery_percent: int | None = None
    battery_c: float | None = None
    hottest_c: float | None = None
    hottest_sensor: str = ""

    @property
    def temperature_c(self) -> float | None:
        """The one figure to show: the hottest sensor, else the battery."""
        return self.hottest_c if self.hottest_c is not None else self.battery_c


async def read_vitals(client: Shell, serial: str, *, timeout_s: float = READ_TIMEOUT_S) -> Vitals:
    """Read them in one shell round trip.

    Raises:
        AdbError: the phone or the adb server did not do its part.
    """
    result = await client.shell(serial, READ_COMMAND, timeout_s=timeout_s)
    return parse_vitals(result.stdout)


def parse_vitals(output: bytes) -> Vitals:
    """Interpret the output of `READ_COMMAND`."""
    sections = split_sections(output)
    percent, battery_c = parse_battery(sections.get("battery", ""))
    hottest = parse_thermalservice(sections.get("thermal", "")) or parse_zones(sections.get("zones", ""))
    sensor, hottest_c = hottest or ("", None)
    return Vitals(percent, battery_c, hottest_c, sensor)


def parse_battery(text: str) -> tuple[int | None, float | None]:
    """Percent and °C from `dumpsys battery`; temperature is printed in tenths of a degree.

    Nothing is believed after `dumpsys battery set` or `unplug` ("UPDATES STOPPED"), or when no battery is present.
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        # Only whole lines count: logs further down hold `level:71`, and `Capacity level: -1` is another field.
        if found := re.fullmatch(r"  ([a-z]+): (\S+)\s*", line):
            fields.setdefault(found.group(1), found.group(2))
    if "UPDATES STOPPED" in text or fields.get("present") == "false":
        return None, None
    level, scale = _integer(fields.get("level")), _integer(fields.get("scale", "100"))
    percent = round(100 * level / scale) if level is not None and scale and 0 <= level <= scale else None
    tenths = _integer(fields.get("temperature"))
    celsius = tenths / 10 if tenths is not None else None
    if celsius is None or not MIN_PLAUSIBLE_C <= celsius <= MAX_BATTERY_C:
        return percent, None
    return percent, celsius


def parse_thermalservice(text: str) -> tuple[str, float] | None:
    """Name and °C of the hottest sensor that the thermal HAL reads now, or None.

    The cached section is ignored: it holds the last change that was reported, minutes or days old.
    """
    start = _CURRENT.search(text)
    if start is None:
        return None
    readings = []
    for line in text[start.end() :].splitlines():
        found = _HAL_READING.match(line)
        if found is None:
            break  # the next heading
        value, kind, name = found.groups()
        celsius = _decimal(value)
        if int(kind) in _TEMPERATURE_TYPES and celsius is not None:
            readings.append((name.strip(), celsius))
    return _hottest(readings)


def parse_zones(text: str) -> tuple[str, float] | None:
    """Name and °C of the hottest zone among `type=temp` lines, or None.

    Only millidegrees are believed. Zones in tenths and whole degrees exist (309 and 31 in one listing), but nothing
    tells them from percentages; what they would add is not worth a wrong figure.
    """
    return _hottest((name, int(temp) / 1000) for name, temp in _ZONE.findall(text) if not _NOT_THERMAL.search(name))


def _hottest(readings: Iterable[tuple[str, float]]) -> tuple[str, float] | None:
    sane = [reading for reading in readings if MIN_PLAUSIBLE_C <= reading[1] <= MAX_PLAUSIBLE_C]
    if not sane:
        return None
    name, celsius = max(sane, key=lambda reading: reading[1])
    return name, round(celsius, 1)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,9}", text) else None


def _decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?", text) else None
