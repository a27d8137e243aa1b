"""Care for single devices: what recovery must know of the world around one, and an operator's orders about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from farm.core import lifecycle_messages as m
from farm.core.device import DeviceView
from farm.core.errors import FarmError, HostError, PhoneError, UserError
from farm.core.health_rules import Finding
from farm.core.lifecycle_state import DeviceState
from farm.core.recovery import Around, Rung
from farm.fleet.agent import Agent
from farm.fleet.agents import require_adopted
from farm.fleet.recovery_log import RecoveryLog
from farm.fleet.switchboard import Switchboard

REBOOT_ASKED_S = 15.0  # a phone takes the request in well below a second; adb's own patience is 10 s


@dataclass(frozen=True, slots=True)
class CareConfig:
    """What operators configured about recovery."""

    per_day: Mapping[Rung, int] = field(default_factory=dict)  # budgets; else the ladder's own
    power: Switchboard | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One device, as its agent knows it."""

    state: DeviceState
    around: Around
    story: tuple[str, ...]  # its last steps
    findings: tuple[Finding, ...]  # of its latest probes
    probed_at_s: float  # monotonic


class Care:
    """One per fleet. Used from the event loop's thread."""

    def __init__(
        self,
        find: Callable[[str], Agent],
        views: Callable[[], Sequence[DeviceView]],
        log: RecoveryLog,
        config: CareConfig,
        in_hands: Callable[[Agent], bool],
    ) -> None:
        """`in_hands`: whether a person has it now."""
        self._find = find
        self._views = views
        self._config = config
        self._in_hands = in_hands
        self.log = log
        self.holder: Callable[[str], str] = lambda _: ""  # who has the device of that name; "" nobody

    def around(self, agent: Agent) -> Around:
        """What its recovery must know of the world around it."""
        no_power = self._no_power(agent)
        # Asked at every event: no look at a hundred phones that lose nothing.
        hurt = [] if no_power else self._hurt(agent)
        return Around(
            holder=self.holder(agent.name),
            in_hands=self._in_hands(agent),
            no_power=no_power,
            neighbours=", ".join(f"{holder}'s lease on {name}" for name, holder in hurt),
            wired=agent.place is not None,
            elsewhere=agent.elsewhere,
            per_day=self._config.per_day,
        )

    def use(self, per_day: Mapping[Rung, int]) -> None:
        """Recover within these budgets from now on; what was spent today stays spent."""
        self._config = replace(self._config, per_day=per_day)

    def climbed(self, agent: Agent, before: DeviceState) -> None:
        """Tell and keep what recovery did."""
        self.log.climbed(agent.serial, agent.name, before, agent.state)

    def state(self, name: str) -> DeviceState:
        """Where a device is in its life, on the ladder and in quarantine.

        Raises:
            NoSuchDeviceError: there is none; the hint names the nearest.
        """
        return self._find(name).state

    def look(self, name: str) -> Seen:
        """What explains a device.

        Raises:
            NoSuchDeviceError: there is none; the hint names the nearest.
        """
        agent = self._find(name)
        return Seen(agent.state, self.around(agent), agent.story, agent.findings, agent.health_at)

    # -- orders --

    async def reboot(self, name: str, by: str, *, force: bool = False) -> None:
        """Reboot a device by order of `by`; returns when the phone has taken the request. It comes back by itself.

        Raises:
            UserError: it is not adopted, so it is not farm's to touch, or somebody has it and `force` is not given.
            PhoneError: it cannot be talked to, or did not take the request.
        """
        agent = require_adopted(self._find(name))
        try:
            async with agent.orders, asyncio.timeout(REBOOT_ASKED_S):
                self._still_free(agent, force=force)
                await agent.reboot(f"{by or 'an operator'} wants it rebooted")
        except TimeoutError:
            said = f"{agent.name} did not take the request in {REBOOT_ASKED_S:g} s"
            raise PhoneError(said, hint="restart it by hand, or: farm device power-cycle NAME") from None

    async def power_cycle(self, name: str, by: str, *, force: bool) -> tuple[str, ...]:
        """Cut the power of its USB port for a moment; returns what else is on that hub.

        Raises:
            UserError: it is not adopted, or somebody has it or it would hurt others and `force` is not given.
            HostError: nothing can switch the power of its port.
        """
        agent = require_adopted(self._find(name))
        if why := self._no_power(agent, ordered=True):
            raise HostError(
                f"the power of {agent.name}'s port cannot be cut: {why}", hint="docs/configuration.md: [power]"
            )
        async with agent.orders:
            self._still_free(agent, force=force)
            hurt = self._hurt(agent)
            if hurt and not force:
                said = ", ".join(f"{other} ({holder} has it)" for other, holder in hurt)
                raise UserError(
                    f"{said} may lose power with {agent.name}: it is on the same hub",
                    hint=f"wait, or: farm device power-cycle {agent.name} --force",
                )
            agent.tell(m.Ordered(Rung.POWER_CYCLE, f"{by or 'an operator'} wants its power cycled"))
        return tuple(view.name for view in self._neighbours(agent))

    async def quarantine(self, name: str, reason: str, *, force: bool = False) -> None:
        """Keep a device away from users until it is released; whoever has it loses it. Waits for no other order.

        Raises:
            UserError: it is not adopted, or somebody has it and `force` is not given.
            StoreWriteError: it cannot be kept: a restart would bring the device back into service.
        """
        agent = require_adopted(self._find(name))
        self._still_free(agent, force=force)
        await self.log.promise(agent.serial, reason)
        try:
            self._still_free(require_adopted(self._find(agent.serial)), force=force)
        except FarmError:
            self.log.renounce(agent.serial)
            raise
        agent.tell(m.Distrusted(reason))

    # -- below --

    def _still_free(self, agent: Agent, *, force: bool) -> None:
        holder = self.holder(agent.name)  # it may have been leased while an order waited
        if holder and not force:
            raise UserError(f"{holder} has {agent.name}", hint="wait for the end of the lease, or add --force")

    def _no_power(self, agent: Agent, *, ordered: bool = False) -> str:
        """Why the power of its port cannot be cut; "" when it can, or an order should try."""
        if self._config.power is None:
            return "no power switch is configured"
        return self._config.power.why_not(agent.place, ordered=ordered)

    def _neighbours(self, agent: Agent) -> list[DeviceView]:
        """Others that may lose power with it."""
        if self._config.power is None or agent.place is None:
            return []
        views = [view for view in self._views() if view.serial != agent.serial]
        hurt = self._config.power.hurt(agent.place, {view.serial: view.place for view in views if view.place})
        return [view for view in views if view.serial in hurt]

    def _hurt(self, agent: Agent) -> list[tuple[str, str]]:
        """(name, holder) of neighbours that somebody has."""
        return [(view.name, holder) for view in self._neighbours(agent) if (holder := self.holder(view.name))]
