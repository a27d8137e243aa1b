"""Which boot it is, since when, and the load: /proc/uptime and /proc/loadavg, else `uptime`. Pure; never raises."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BOOT = re.compile(r"^boot_id=([0-9A-Za-z-]{1,64})[ \t]*$", re.MULTILINE)
_UPTIME = re.compile(r"^(?:/proc/uptime=)?[ \t]*([0-9]{1,10}\.[0-9]{1,3}) [0-9]{1,12}\.[0-9]{1,3}[ \t]*$", re.MULTILINE)
_LOAD = re.compile(r"^/proc/loadavg=([0-9]{1,5}\.[0-9]{1,3}) ", re.MULTILINE)
# toybox " 12:56:15 up 11 days, 10 min,  0 users,  load average: 50.39"; toolbox "up time: 2 days, 12:06:52, idle"
_WORDS = re.compile(
    r"\bup(?: time:)? +(?:([0-9]{1,5}) days?, *)?(?:([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?|([0-9]{1,2}) min)"
)
_AVERAGE = re.compile(r"load averages?: *([0-9]{1,5}\.[0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot of a phone."""

    boot_id: str = ""
    uptime_s: float | None = None
    load_1min: float | None = None


def parse_boot(text: str) -> Boot:
    """Interpret the section. A load of 50 on an idle phone is common: tasks that wait in drivers count."""
    boot, load = _BOOT.search(text), _LOAD.search(text) or _AVERAGE.search(text)
    return Boot(boot[1] if boot else "", _uptime_s(text), float(load[1]) if load else None)


def _uptime_s(text: str) -> float | None:
    if found := _UPTIME.search(text):
        return float(found[1])
    if found := _WORDS.search(text):
        days, hours, minutes, seconds, only_minutes = (int(group or 0) for group in found.groups())
        return float(86400 * days + 3600 * hours + 60 * (minutes + only_minutes) + seconds)
    return None
