"""What `uhubctl` prints, as values. Pure; the format of versions 2.0 to 2.6 (its print_port_status and main)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HUB = re.compile(r"(Current|New) status for hub (\S+) \[.*\]")
_PORT = re.compile(r"  Port (\d+): [0-9a-f]{4}((?: [^\[]\S*)*)(?: \[.*\])?")
# Words of its complaints. It ends with 0 even when a hub refused to switch: only the status afterwards tells.
_NO_HUB = "No compatible devices detected"
_NO_PERMISSION = ("permission problems", "Permission denied", "LIBUSB_ERROR_ACCESS", "Operation not permitted")


@dataclass(frozen=True, slots=True)
class PortStatus:
    """One port of one hub as it was told."""

    hub: str  # uhubctl's location: "1-4", a root hub is "1"
    port: int
    powered: bool
    after: bool  # told after the action (`New status`), not before it


def parse_status(text: str) -> tuple[PortStatus, ...]:
    """Every port told of, in order: a USB 3 hub is two, and an action tells each before and after. Never raises."""
    ports: list[PortStatus] = []
    when, hub = "", ""
    for line in text.splitlines():
        if match := _HUB.fullmatch(line):
            when, hub = match[1], match[2]
        elif hub and (match := _PORT.fullmatch(line)):
            ports.append(PortStatus(hub, int(match[1]), "off" not in match[2].split(), when == "New"))
    return tuple(ports)


def powered(text: str, port: int, *, after: bool = False) -> bool | None:
    """Whether a port has power on any half of its hub (USB 2 and USB 3 share it); None: nothing was told of it."""
    told = [each.powered for each in parse_status(text) if each.port == port and (each.after or not after)]
    return any(told) if told else None


def lacks_permission(stderr: str) -> bool:
    """Whether it complains that it may not open a hub."""
    return any(words in stderr for words in _NO_PERMISSION)


def knows_no_hub(stderr: str) -> bool:
    """Whether it complains that no hub, or none at that place, can switch its ports one by one."""
    return _NO_HUB in stderr
