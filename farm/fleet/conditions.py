"""A phone's condition around a measurement, in one adb read: battery, its temperature, throttling, charging.

The parsers are pure and never raise; what is not certain is None. The temperature is the battery's, never the hottest
sensor's: a core is 20 °C warmer at once when work begins, and that says nothing about the phone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from farm.fleet.shell_output import SECTION, Shell, split_sections
from farm.fleet.vitals import parse_battery

READ_TIMEOUT_S = 10.0
READ_COMMAND = f"""\
echo '{SECTION}battery'
dumpsys battery 2>/dev/null
echo '{SECTION}thermal'
dumpsys thermalservice 2>/dev/null
exit 0
"""
# PowerManager.THERMAL_STATUS_NONE .. SHUTDOWN, as IThermalService's dump prints it (Android 10 and newer).
_STATUS = re.compile(r"^Thermal Status: ([0-6])\s*$", re.MULTILINE)
_POWERED = re.compile(r"^  (?:AC|USB|Wireless|Dock) powered: (true|false)\s*$", re.MULTILINE)


async def read_conditions(client: Shell, serial: str, *, timeout_s: float = READ_TIMEOUT_S) -> dict[str, Any]:
    """Read them in one shell round trip; fields of farm.measure.conditions.Moment.

    Raises:
        AdbError: the phone or the adb server did not do its part.
    """
    result = await client.shell(serial, READ_COMMAND, timeout_s=timeout_s)
    return parse_conditions(split_sections(result.stdout))


def parse_conditions(sections: Mapping[str, str]) -> dict[str, Any]:
    """Interpret the sections of what `READ_COMMAND` prints."""
    battery = sections.get("battery", "")
    percent, celsius = parse_battery(battery)
    status = _STATUS.search(sections.get("thermal", ""))
    powered = _POWERED.findall(battery)
    return {
        "temperature_c": celsius,
        "throttle_status": int(status[1]) if status else None,
        "battery_percent": percent,
        "charging": "true" in powered if powered and percent is not None else None,
    }
