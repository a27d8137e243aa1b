"""An adb server that the service manager keeps (farm-adb.service): it is waited for and ended here, never started."""

from __future__ import annotations

import asyncio
import time

from farm.adb.errors import AdbServerUnreachable
from farm.adb.server import AdbServer

BACK_TIMEOUT_S = 15.0  # the manager starts it again within a second; a cold, busy host must not fail
_POLL_S = 0.05


class KeptAdbServer(AdbServer):
    """As `AdbServer`, but whoever keeps it starts it. It outlives the daemon, and so do sessions through it."""

    async def stop(self, *, even_adopted: bool = False) -> None:
        """Only `restart` ends it; the manager starts the next one."""
        if even_adopted:
            await self._end_adopted()

    def trim_log(self) -> None:
        """What it says is in the journal."""

    async def _may_stay(self) -> bool:
        return True

    async def _start(self) -> None:
        return

    async def _wait_until_it_answers(self) -> int:
        deadline = time.monotonic() + BACK_TIMEOUT_S
        while True:
            try:
                return await self.client.version()
            except AdbServerUnreachable as absent:
                if time.monotonic() > deadline:
                    raise AdbServerUnreachable(
                        f"Nobody starts the adb server on {self.client.address.spec}.",
                        hint="systemctl status farm-adb; journalctl -u farm-adb",
                    ) from absent
                await asyncio.sleep(_POLL_S)
