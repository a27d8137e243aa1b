"""Where devices are plugged in, and whose fault it is when several are lost at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsbPlace:
    """One port of one hub, as sysfs names it: hub "1-4", port 2, path "1-4.2"."""

    hub: str
    port: int
    path: str
