"""Reads every ready device's vitals in turn, evenly spread, so that no two of these shells run at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from farm.adb.client import AdbClient
from farm.adb.errors import AdbTimeout
from farm.core import lifecycle_messages as m
from farm.core.device import Life
from farm.core.errors import FarmError
from farm.fleet.agent import Agent
from farm.fleet.vitals import READ_TIMEOUT_S, read_vitals

VITALS_EVERY_S = 30.0  # per device: 100 phones are about three short shells a second
ANSWER_TIMEOUT_S = 5.0  # for a command that does nothing; a phone under full load takes tenths of a second
_WORTH_READING = frozenset({Life.READY, Life.QUARANTINED})

log = logging.getLogger(__name__)


class VitalsRound:
    """Keeps temperature and battery of each agent fresh."""

    def __init__(
        self,
        client: AdbClient,
        agents: Callable[[], tuple[Agent, ...]],
        changed: Callable[[Agent], None],
        *,
        every_s: float = VITALS_EVERY_S,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._client = client
        self._agents = agents
        self._changed = changed
        self._every_s = every_s
        self._timeout_s = timeout_s

    async def run(self) -> None:
        """Go round until cancelled."""
        while True:
            agents = self._agents()
            if not agents:
                await asyncio.sleep(self._every_s)
            for agent in agents:
                await asyncio.sleep(self._every_s / len(agents))
                if agent.device is not None and agent.state.life in _WORTH_READING:
                    await self.read(agent)

    async def read(self, agent: Agent) -> None:
        """Read one device now. One that answers no command at all is reported lost: adb goes on listing it.

        Never raises: a thermometer that farm cannot read is no reason to stop reading the others, or to end a session.
        """
        try:
            await self._read(agent)
        except Exception:
            log.exception("%s: a bug in farm while its vitals were read", agent.name)

    async def _read(self, agent: Agent) -> None:
        follow = agent.state.follow  # of now: a server that starts while we wait is not to blame
        try:
            vitals = await read_vitals(self._client, agent.serial, timeout_s=self._timeout_s)
        except AdbTimeout:
            if not await self._answers(agent):
                agent.tell(m.LinkLost(follow, "it answers no command, though adb lists it"))
        except FarmError as error:
            log.debug("%s: no vitals: %s", agent.name, error)  # the follower or the list will tell what is wrong
        else:
            agent.temperature_c, agent.battery_percent = vitals.temperature_c, vitals.battery_percent
            self._changed(agent)

    async def _answers(self, agent: Agent) -> bool:
        """Whether the phone runs a command at all; a slow `dumpsys` alone must not end anybody's session."""
        try:
            await self._client.shell(agent.serial, "true", timeout_s=min(ANSWER_TIMEOUT_S, self._timeout_s))
        except AdbTimeout:
            return False
        except FarmError as error:
            log.debug("%s: %s", agent.name, error)
        return True
