"""A phone's condition around a measurement, from the same probe: only the sections that a certificate names.

The temperature is the battery's, never the hottest sensor's: a core is 20 °C warmer at once when work begins, and that
says nothing about the phone. The clock is the highest that the phone allows now, not the one it has at this moment: a
governor lowers the latter whenever nothing runs.
"""

from __future__ import annotations

from typing import Any

from farm.core.health import Battery, ClusterReading, Health
from farm.fleet.probe.read import Shells, probe

READ_TIMEOUT_S = 10.0
MOMENT_SECTIONS = ("cpu", "battery", "thermal", "gpu")
_PINNED = frozenset({"performance", "powersave", "userspace"})  # governors under which a core has one clock


async def read_conditions(client: Shells, serial: str) -> dict[str, Any]:
    """Read them in one shell round trip; fields of farm.measure.conditions.Moment.

    Raises:
        AdbError: the phone or the adb server did not do its part.
    """
    return moment_of((await probe(client, serial, MOMENT_SECTIONS, timeout_s=READ_TIMEOUT_S)).health)


def moment_of(health: Health) -> dict[str, Any]:
    """Fields of a Moment; None for what is unknown."""
    battery = health.battery
    clocks = [clock for cluster in health.cpu if (clock := _allowed_khz(cluster)) is not None]
    governors = sorted({each.governor for each in health.cpu if each.governor})
    governors += [f"gpu {health.gpu.governor}"] if health.gpu.governor else []  # as in the identity's clock_policy
    return {
        "temperature_c": battery.celsius,
        "throttle_status": int(health.throttle) if health.throttle is not None else None,
        "battery_percent": battery.percent,
        "charging": _charging(battery),
        "clock_hz": 1000.0 * max(clocks) if clocks else None,
        "gpu_clock_hz": float(health.gpu.max_hz) if health.gpu.max_hz else None,
        "governors": ", ".join(governors) or None,
    }


def _charging(battery: Battery) -> bool | None:
    if battery.powered_by or battery.status == "charging":
        return True
    return False if battery.status in ("discharging", "not-charging") else None


def _allowed_khz(cluster: ClusterReading) -> int | None:
    if cluster.governor in _PINNED and cluster.khz is not None:
        return cluster.khz
    return cluster.max_khz
