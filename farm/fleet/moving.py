"""Records that follow their phones to other serials of adb's list (farm.fleet.same_phone says when)."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Protocol

from farm.core import lifecycle_messages as m
from farm.core.device import Service
from farm.core.identity import DeviceIdentity
from farm.fleet.agent import Agent
from farm.fleet.battery_care import BatteryCare
from farm.fleet.board import Board
from farm.fleet.recovery_log import RecoveryLog
from farm.fleet.registry import Registry
from farm.fleet.same_phone import SerialHistory
from farm.store.records import DeviceRecord

log = logging.getLogger(__name__)


class Household(Protocol):
    """What else the fleet does for a device whose record moves."""

    def named(self, agent: Agent, identity: DeviceIdentity) -> bool:
        """Give an identified device the name that is remembered or follows from a rule; whether it is adopted."""

    def changed(self, agent: Agent) -> None:
        """Show the agent as it is now."""

    def spawn(self, what: Coroutine[object, object, None], name: str) -> None:
        """Do this beside everything else."""


class Moving:
    """One per fleet; works on its agents."""

    def __init__(
        self,
        agents: dict[str, Agent],
        registry: Registry,
        board: Board,
        recoveries: RecoveryLog,
        batteries: BatteryCare,
        household: Household,
    ) -> None:
        self._agents = agents  # by serial
        self._registry = registry
        self._board = board
        self._recoveries = recoveries
        self._batteries = batteries
        self._household = household
        self._history = SerialHistory()

    def identified(self, agent: Agent, before: DeviceIdentity | None, identity: DeviceIdentity) -> None:
        """A device was identified; `before` is what was last known at its serial.

        A remembered phone that came back under another serial (USB or network, another port) gets its record. Not while
        adb lists it under the old serial too: then it is one phone on two ways, and two agents would replace each
        other's servers, or two phones with one number; the new one stays a stranger unless a rule adopts it. A phone
        whose record moved away and that is there again gets it back; two that have each other's serial trade records.
        """
        self._history.note(agent, identity, self._agents.values())
        known = self._registry.get(agent.serial)
        if not identity.hardware_serial or (known is not None and known.hardware_serial == identity.hardware_serial):
            return
        by_rule = self._registry.adopted_by_rule(agent.serial, identity, self._board.taken(agent.serial)) is not None
        for old in self._registry.of_hardware(identity.hardware_serial):
            former = self._agents.get(old.serial)
            if former is None or old.address:
                continue
            if known is not None:
                if self._history.traded(identity, known.hardware_serial, former, by_rule=by_rule):
                    self._trade(agent, before, known, former, old)
                    return
            elif former.device is not None:
                if self._history.is_home(agent.serial, old.serial):
                    self._take_back(agent, former, old)
                    return
            elif self._history.may_follow(identity, former, by_rule=by_rule):
                del self._agents[old.serial]
                self._board.move_away(old.serial)
                agent.server = former.server
                self._move(agent, former, old)
                return

    def _move(self, agent: Agent, former: Agent, old: DeviceRecord) -> None:
        self._history.moved(old.serial, agent.serial)
        self._registry.save_soon(replace(old, serial=agent.serial), instead_of=old.serial)
        self._household.spawn(self._batteries.moved(old.serial, agent.serial), f"battery of {agent.name}")
        self._recoveries.moved(old.serial, agent.serial)
        agent.inherit(former.state, old.name)
        agent.tell(m.ServiceChanged(Service(old.service)))

    def _take_back(self, agent: Agent, former: Agent, old: DeviceRecord) -> None:
        """`former`, which is there too, got what is this phone's: it is another, or the same on a second way."""
        log.warning("%s and %s both say that they are %s", agent.serial, former.serial, old.hardware_serial)
        self._move(agent, former, old)
        former.tell(m.Unadopted(clean=False))  # whoever has it loses it: they asked for the other
        former.server = None
        if former.identity is not None:
            self._board.move_away(former.serial)  # its name is the other's
            former.name = former.serial
            if self._household.named(former, former.identity):
                former.tell(m.Adopted())
                if (kept := agent.state.quarantine) is not None:
                    former.tell(m.Distrusted(kept.reason))
        self._household.changed(former)

    def _trade(
        self, agent: Agent, before: DeviceIdentity | None, own: DeviceRecord, former: Agent, old: DeviceRecord
    ) -> None:
        """The phone remembered here and the one that is here now have each other's serial."""
        log.warning("%s and %s have traded places: %s is at %s now", own.name, old.name, old.name, agent.serial)
        self._registry.trade_soon(own, old)
        self._household.spawn(self._trade_batteries(agent.serial, former.serial), f"battery of {old.name}")
        aside = f"{agent.serial} (traded)"
        for serial, to in ((agent.serial, aside), (former.serial, agent.serial), (aside, former.serial)):
            self._recoveries.moved(serial, to)
        self._board.move_away(agent.serial)
        self._board.move_away(former.serial)
        agent.server, former.server = former.server, agent.server
        state = agent.state
        agent.inherit(former.state, old.name)
        former.inherit(state, own.name)
        former.identity = before
        agent.tell(m.ServiceChanged(Service(old.service)))
        former.tell(m.ServiceChanged(Service(own.service)))
        self._household.changed(former)

    async def _trade_batteries(self, one: str, other: str) -> None:
        aside = f"{one} (traded)"
        for serial, to in ((one, aside), (other, one), (aside, other)):
            await self._batteries.moved(serial, to)
