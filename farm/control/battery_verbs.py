"""`device.battery`: what is known of a phone's battery, and how it ages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from farm.control.callers import Role
from farm.control.forms import OneDevice, read_fields
from farm.control.server import ControlCall, ControlServer
from farm.fleet.fleet import Fleet


class BatteryVerbs:
    """Verbs about batteries."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def register(self, server: ControlServer) -> None:
        """Add every verb to the door."""
        server.register("device.battery", self.look, Role.VIEWER)

    async def look(self, call: ControlCall) -> Mapping[str, Any]:
        """The latest reading, the last days, what farm does about its charge, and signs of swelling."""
        look = self._fleet.battery(read_fields(call, OneDevice).device)
        days = [{**asdict(day), "capacity": day.capacity} for day in look.days]
        return {**asdict(look), "days": days}
