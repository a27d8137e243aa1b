"""Was it the library? A session that the phone ended is a crash, a cable that was pulled, or a phone that died."""

from __future__ import annotations

import asyncio

from farm.core.device import DeviceView, Life
from farm.core.device_news import Devices
from farm.leasing import Leasing

# A broken session is followed by a check within 2 s. A worker asks, and hears of a busy daemon after 15 s.
LOOK_S = 10.0
# What a phone goes through whose session broke while its RPC server lives and its link holds. A lost link leads over
# PROVISIONING or further, a server that died over STARTING: there it may have been anything.
_THERE = frozenset({Life.READY, Life.RECOVERING, Life.CHECKING})


class Kills:
    """Tells a killed process from a lost phone."""

    def __init__(self, leases: Leasing, devices: Devices, look_s: float = LOOK_S) -> None:
        self._leases = leases
        self._devices = devices
        self._look_s = look_s

    async def killed(self, lease_id: str, device: str) -> bool:
        """Whether the phone's side ended the lease's session, and the phone passed its check with its link kept."""
        changed, lost = asyncio.Event(), False

        def look(view: DeviceView) -> None:
            nonlocal lost
            if view.name == device:
                lost = lost or view.life not in _THERE
                changed.set()

        def life() -> Life:
            return next((view.life for view in self._devices.views() if view.name == device), Life.GONE)

        unsubscribe = self._devices.subscribe(look)
        try:
            async with asyncio.timeout(self._look_s):
                if not await self._leases.ended_by_phone(lease_id):
                    return False
                while not lost and (now := life()) is not Life.READY and now in _THERE:
                    changed.clear()
                    await changed.wait()
                return not lost and life() is Life.READY
        except TimeoutError:
            return False
        finally:
            unsubscribe()
