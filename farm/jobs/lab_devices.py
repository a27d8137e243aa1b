"""The devices of the lab's other hosts, as their rows say: a pool of identical phones may hold some of theirs.

Read every two seconds while a pool is there, and not at all else.
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

# Rows of devices: what each host has said last, as JSON objects, by the device's name.
ReadStates = Callable[[], Awaitable[Mapping[str, Mapping[str, object]]]]


class LabDevices:
    """What is known of them. Used on the event loop."""

    def __init__(self, read: ReadStates | None = None) -> None:
        """`read`: None where there are no other hosts."""
        self._read = read
        self._bodies: Mapping[str, Mapping[str, object]] = {}
        self._states: dict[str, DeviceState] = {}
        self._callbacks: set[Callable[[], None]] = set()
        self._reading: asyncio.Task[None] | None = None

    def states(self) -> Sequence[DeviceState]:
        """The devices as they were read last; none while nobody has subscribed."""
        return tuple(self._states.values())

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when one of them is different; returns the function that ends it."""
        self._callbacks.add(callback)
        if self._read is not None and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._run(), name="devices of other hosts")

        def stop() -> None:
            self._callbacks.discard(callback)
            if not self._callbacks and self._reading is not None:
                self._reading.cancel()

        return stop

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except HostError as error:
                log.debug("the devices of other hosts cannot be read: %s", error)
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
