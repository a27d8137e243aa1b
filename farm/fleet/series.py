"""Readings over time of every device, in memory: what the wall and a device's page draw."""

from __future__ import annotations

import time
from collections.abc import Callable

from farm.core.health import Health
from farm.core.series import Series, columns_of

MOST_DEVICES = 2000  # serials ever seen; beyond that the one longest silent goes


class FleetSeries:
    """A series by serial: a renamed device keeps its own."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch."""
        self.clock = clock
        self._series: dict[str, Series] = {}

    def add(self, serial: str, health: Health, shown_c: float | None) -> None:
        """What a probe has read."""
        series = self._series.pop(serial, None) or Series()
        if len(self._series) >= MOST_DEVICES:
            del self._series[next(iter(self._series))]
        self._series[serial] = series
        series.add(self.clock(), columns_of(health, shown_c))

    def of(self, serial: str) -> Series:
        """The readings of a device; empty before its first."""
        return self._series.get(serial) or Series()
