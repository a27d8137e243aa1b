"""Periodic checks, for phones that passed their last one long ago: memory and GPUs that fail do so silently.

Farm's files on the phone are compared by hash first, and its server starts again. That takes a phone for some seconds,
and only while it is not leased.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from farm.devices.agent import Agent
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.state import LifecycleState
from farm.devices.thermal.thermal_gates import ThermalGates
from farm.model.device import Life

CHECK_DUE_EVERY_S = 60.0  # with one phone a look, a farm's checks spread out by themselves
ROUNDS = 4  # in the time from check to check, at least


def overdue_s(state: LifecycleState, every_s: float, now_s: float) -> float | None:
    """For how long its check has been due; None: it is not, or its present work leads to a check anyway."""
    if state.life is not Life.READY or state.bundle_override:
        return None
    late_s = now_s - state.ready_at - every_s
    return late_s if late_s >= 0 else None


class PeriodicChecks:
    """One per fleet."""

    def __init__(
        self,
        agents: Callable[[], Iterable[Agent]],
        gates: ThermalGates,
        every_h: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gates` know who has which device. `every_h` 0: never."""
        self._agents = agents
        self._gates = gates
        self._every_s = every_h * 3600
        self._monotonic = monotonic

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(
                min(CHECK_DUE_EVERY_S, self._every_s / ROUNDS) if self._every_s > 0 else CHECK_DUE_EVERY_S
            )
            self.check_next()

    def use(self, every_h: float) -> None:
        """Check so often from the next look on; 0: never."""
        self._every_s = every_h * 3600

    def check_next(self) -> None:
        """Have the phone checked whose check has been due for longest."""
        if self._every_s <= 0:
            return
        now_s = self._monotonic()
        due = [
            (late_s, agent.name, agent)
            for agent in self._agents()
            if not self._gates.holds(agent.name)
            and (late_s := overdue_s(agent.state, self._every_s, now_s)) is not None
        ]
        if due:
            max(due)[2].on_event(m.PlainEvent.PROVISIONING_DUE)
