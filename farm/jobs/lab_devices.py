"""The devices of the lab's other hosts, by their rows: a pool of identical phones may hold some of them.

Read every two seconds while there is a pool, and never without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from farm.common.errors import HostError
from farm.head import wire
from farm.head.messages import DeviceChanged
from farm.model.device import DeviceState

READ_EVERY_S = 2.0

log = logging.getLogger(__name__)

# Reads the latest message about each device, as a JSON object, by the device's name.
ReadStates = Callable[[], Awaitable[Mapping[str, Mapping[str, object]]]]


class LabDevices:
    """The known devices of other hosts. Used on the event loop."""

    def __init__(self, read: ReadStates | None = None) -> None:
        """`read`: None where there are no other hosts."""
        self._read = read
        self._bodies: Mapping[str, Mapping[str, object]] = {}
        self._states: dict[str, DeviceState] = {}
        self._callbacks: set[Callable[[], None]] = set()
        self._reading: asyncio.Task[None] | None = None

    def states(self) -> Sequence[DeviceState]:
        """The devices by the latest rows; none while there is no subscriber."""
        return tuple(self._states.values())

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when a device has changed; returns the function that ends the subscription."""
        self._callbacks.add(callback)
        if self._read is not None and self._reading is None:
            self._reading = asyncio.create_task(self._run(), name="devices of other hosts")

        def stop() -> None:
            self._callbacks.discard(callback)
            if not self._callbacks and self._reading is not None:
                self._reading.cancel()
                self._reading, self._states, self._bodies = None, {}, {}

        return stop

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except HostError as error:
                log.debug("the devices of other hosts cannot be read: %s", error)
            except Exception:
                log.exception("the devices of other hosts cannot be read")
            await asyncio.sleep(READ_EVERY_S)

    async def _look(self) -> None:
        assert self._read is not None
        bodies = await self._read()
        if bodies == self._bodies:
            return
        for name in self._states.keys() - bodies.keys():
            del self._states[name]
        for name, body in bodies.items():
            if body != self._bodies.get(name) and isinstance(message := wire.to_head(body, 0.0), DeviceChanged):
                self._states[name] = message.state
        self._bodies = bodies
        for callback in tuple(self._callbacks):
            callback()
