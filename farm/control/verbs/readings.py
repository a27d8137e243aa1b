"""Verbs about what was read from devices: over time, and of their batteries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import OneDevice, Verbs, form, verb
from farm.core.series import COARSE_S, FINE_S, UNITS
from farm.fleet.fleet import Fleet
from farm.fleet.series import FleetSeries


@form
class Readings:
    """`device.readings`: those of the last `seconds`, at most a day."""

    device: str
    seconds: Annotated[float, Field(gt=0, le=COARSE_S)] = FINE_S


class ReadingsVerbs(Verbs):
    """Verbs over what probes have read."""

    def __init__(self, fleet: Fleet, series: FleetSeries) -> None:
        self._fleet = fleet
        self._series = series

    @verb("device.readings", Role.VIEWER)
    async def readings(self, asked: Readings) -> Mapping[str, Any]:
        """Columns over time: {at: [seconds since the epoch], columns: [{quantity, name, unit, values}]}."""
        view = self._fleet.view(asked.device)
        at, columns = self._series.of(view.serial).read(self._series.clock() - asked.seconds)
        return {
            "device": view.name,
            "at": at,
            "columns": [
                {"quantity": quantity.value, "name": name, "unit": UNITS[quantity], "values": values}
                for (quantity, name), values in columns.items()
                if any(value is not None for value in values)
            ],
        }

    @verb("fleet.trends", Role.VIEWER)
    async def trends(self) -> Mapping[str, Any]:
        """The shown temperature of every device over the last hour, oldest first; None where nothing was read."""
        now_s = self._series.clock()
        return {
            "celsius": {
                view.name: self._series.of(view.serial).line(now_s) for view in self._fleet.views() if view.adopted
            },
            "span_s": FINE_S,
        }

    @verb("device.battery", Role.VIEWER)
    async def battery(self, asked: OneDevice) -> Mapping[str, Any]:
        """The latest reading, the last days, what farm does about its charge, and signs of swelling."""
        look = self._fleet.battery(asked.device)
        days = [{**asdict(day), "capacity": day.capacity} for day in look.days]
        return {**asdict(look), "days": days}
