"""Cuts the power of a phone's port for a while, gives it back, and waits for the phone to be ready again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from farm.common.errors import Code, PhoneError, UserError
from farm.devices.power.power import cycle
from farm.devices.power.switchboard import Switchboard
from farm.model.device import DeviceView, Life, UsbPlace

if TYPE_CHECKING:
    from farm.devices.fleet import Fleet

RETURN_S = 120.0  # enumeration takes seconds, identity, server and check some more


class Untether:
    """Untethers phones. One per farm; used from the event loop's thread."""

    def __init__(self, fleet: Fleet, power: Switchboard | None) -> None:
        self._fleet, self._power = fleet, power

    def check(self, name: str) -> tuple[Switchboard, UsbPlace]:
        """The switch of a phone's port, and the port.

        Raises:
            UserError: its power cannot be cut, or other phones would lose power.
            NoSuchDeviceError: there is no such phone.
        """
        agent = self._fleet.find(name)
        why = "no power switch is configured" if self._power is None else self._power.why_not(agent.place, ordered=True)
        if others := self._fleet.recovery.neighbours(agent):
            why = why or f"{', '.join(view.name for view in others)} would lose power, too"
        if why or self._power is None or agent.place is None:
            raise UserError(
                f"{name} cannot be untethered: {why}", Code.POWER_NOT_MEASURABLE,
                hint="docs/configuration.md: [power] names the switch of its port",
            )  # fmt: skip
        return self._power, agent.place

    async def cut(self, name: str, seconds: float) -> None:
        """Cut the power of its port, give it back after so many seconds, and return when the phone is ready again.

        Raises:
            UserError: as `check`.
            PowerError: it could not be cut, or does not come back.
            PhoneError: the phone does not come back.
        """
        power, place = self.check(name)
        agent = self._fleet.find(name)
        agent.untethered = True
        try:
            await cycle(power, place, lambda: agent.device is not None, seconds)
            await self._until_ready(name)
        finally:
            agent.untethered = False

    async def _until_ready(self, name: str) -> None:
        changed = asyncio.Event()

        def notice(view: DeviceView) -> None:
            if view.name == name:
                changed.set()

        unsubscribe = self._fleet.subscribe(notice)
        try:
            async with asyncio.timeout(RETURN_S):
                while (life := self._fleet.view(name).life) not in (Life.READY, Life.QUARANTINED):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            life = self._fleet.view(name).life
        finally:
            unsubscribe()
        if life is not Life.READY:
            raise PhoneError(
                f"{name} is {life} and not ready, {RETURN_S:g} s after its port has power again",
                Code.UNTETHERED_FAILED,
                hint=f"farm device show {name} tells how it recovers; an empty battery needs longer",
            )  # fmt: skip
