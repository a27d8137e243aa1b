"""Whoever knows the devices, and waiting until one of them is as one wants it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from farm.core.device import DeviceView, Life


class Devices(Protocol):
    """The fleet (farm.fleet.fleet.Fleet), for those who only look."""

    def views(self) -> tuple[DeviceView, ...]:
        """Every device."""

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view; returns the function that ends it."""


@contextlib.contextmanager
def seen(devices: Devices, name: str, fits: Callable[[Life], bool]) -> Iterator[asyncio.Future[DeviceView]]:
    """A future that is done as soon as the life of the phone `name` is one that fits."""
    found: asyncio.Future[DeviceView] = asyncio.get_running_loop().create_future()

    def look(view: DeviceView) -> None:
        if view.name == name and fits(view.life) and not found.done():
            found.set_result(view)

    unsubscribe = devices.subscribe(look)
    try:
        for view in devices.views():
            look(view)
        yield found
    finally:
        unsubscribe()
