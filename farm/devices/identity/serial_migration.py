"""Records that follow their phones to other serials of adb's list.

A phone states its own serial number (ro.serialno) itself: another may state the same, by chance (boards and clones ship
with default numbers) or on purpose. So more must agree, and a number that two devices had at once proves nothing.

Two links with one serial number and one boot id are one phone, by USB and by network. farm uses one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from farm.adb.devices import USB_PATH, AdbState
from farm.common.errors import FarmError
from farm.devices import agent_work
from farm.devices.agent import Agent
from farm.devices.identity.naming_rules import is_distinct, same_kind
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.state import LINK_DOWN
from farm.model.device import Service, is_network
from farm.model.identity import DeviceIdentity
from farm.store.devices import DeviceRecord

if TYPE_CHECKING:
    from farm.devices.fleet import Fleet


def _is_there(agent: Agent) -> bool:
    return agent.device is not None and agent.state.identified and agent.state.life not in LINK_DOWN


def _number(agent: Agent) -> str:
    return agent.identity.hardware_serial if agent.identity else ""


def claimed(agent: Agent, agents: Iterable[Agent]) -> bool:
    """Whether another device that is there states the same serial number, or has the same port."""
    number = _number(agent)
    others = [other for other in agents if other is not agent and _is_there(other)]
    return any((number and _number(other) == number) or other.place == agent.place for other in others)


def sick_twin(agent: Agent, agents: Iterable[Agent]) -> Agent | None:
    """Another adopted device in quarantine that says it is the same phone."""
    number = _number(agent)
    for other in agents:
        if other is agent or not is_distinct(number) or _number(other) != number:
            continue
        if other.state.adopted and other.state.quarantine is not None and same_kind(agent.identity, other.identity):
            return other
    return None


log = logging.getLogger(__name__)


class SerialMigration:
    """One per fleet; works on its agents."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # Of this run of the daemon:
        self._shared: set[str] = set()  # serial numbers that two devices had at once
        self._came_from: dict[str, str] = {}  # serial in adb's list -> the one before

    def identified(self, agent: Agent, before: DeviceIdentity | None, identity: DeviceIdentity) -> None:
        """A device was identified; `before` is the last identity at its serial.

        A remembered phone that came back under another serial (USB or network, another port) gets its record. Not while
        adb lists it under the old serial too: then two phones have one number (`used_link` handles two links to one
        phone), and the new one stays a stranger unless a rule adopts it. A phone whose record moved away and that is
        there again gets it back. Two that have each other's serial trade records.
        """
        self._note(agent, identity)
        known = self._fleet.registry.get(agent.serial)
        if not identity.hardware_serial or (known is not None and known.hardware_serial == identity.hardware_serial):
            return
        other_keys = self._fleet.device_views.other_keys(agent.serial)
        by_rule = self._fleet.registry.adopted_by_rule(agent.serial, identity, other_keys) is not None
        for old in self._fleet.registry.of_hardware(identity.hardware_serial):
            former = self._fleet.agents.get(old.serial)
            if former is None or old.address:
                continue
            if known is not None:
                if self._traded(agent, identity, known.hardware_serial, former, by_rule=by_rule):
                    self._trade(agent, before, known, former, old)
                    return
            elif former.device is not None:
                if self._is_home(agent.serial, old.serial):
                    self._take_back(agent, former, old)
                    return
            elif self._may_follow(agent, identity, former, by_rule=by_rule):
                del self._fleet.agents[old.serial]
                self._fleet.device_views.move_away(old.serial)
                agent.server = former.server
                self._move(agent, former, old)
                return

    # -- two links to one phone --

    async def boots_beside(self, agent: Agent, identity: DeviceIdentity) -> dict[str, str]:
        """The boot ids of links that are not identified yet and may be the same phone's, by serial."""

        async def ask(other: Agent) -> str:
            try:
                return await agent_work.boot_id(self._fleet.client, other.serial)
            except FarmError:
                return ""  # it is asked again when it is identified

        asked = [
            other
            for other in self._fleet.agents.values()
            if other is not agent and other.device is not None and other.device.state is AdbState.DEVICE
            and not other.boot and self._known_number(other) == identity.hardware_serial != ""
        ]  # fmt: skip
        return dict(zip((other.serial for other in asked), await asyncio.gather(*map(ask, asked)), strict=True))

    def used_link(self, agent: Agent, boots: Mapping[str, str], held: Callable[[str], bool]) -> Agent | None:
        """The other link by which farm uses the phone of `agent`; None: farm uses this link.

        A link in use stays in use, except that a record goes home while no lease has the phone. Else an adopted link
        comes before a stranger, and USB before the network.
        """
        links = list(self._links(agent, boots.get(agent.serial, agent.boot), boots))
        first = min((agent, *links), key=self._rank)
        if first is agent:
            for other in links:
                if other.boot and not other.other_link:  # it was used, as a stranger
                    self._fleet.identify_anew(other)
            return None
        return None if self._is_home(agent.serial, first.serial) and not held(first.name) else first

    def second_links(self, agent: Agent) -> list[Agent]:
        """The unused links of the phone that may take its record over."""
        links = self._links(agent, agent.boot, {})
        return [other for other in links if other.other_link and self._fleet.registry.get(other.serial) is None]

    def _links(self, agent: Agent, boot: str, boots: Mapping[str, str]) -> Iterator[Agent]:
        """The other links to the phone of `agent`. One phone has one USB port."""
        path = agent.device.devpath if agent.device else ""
        for other in self._fleet.agents.values():
            if other is agent or other.device is None or not boot or boots.get(other.serial, other.boot) != boot:
                continue
            if self._known_number(other) == _number(agent) != "" and not (path and other.device.devpath):
                yield other

    def _known_number(self, agent: Agent) -> str:
        record = self._fleet.registry.get(agent.serial)
        return _number(agent) or (record.hardware_serial if record else "")

    def _rank(self, agent: Agent) -> tuple[bool, bool, bool, str]:
        record = self._fleet.registry.get(agent.serial)
        adopted = record is not None and record.adopted
        in_use = adopted and bool(agent.boot) and not agent.other_link
        return not in_use, not adopted, is_network(agent.serial), agent.serial

    # -- records that move --

    def _note(self, agent: Agent, identity: DeviceIdentity) -> None:
        """A device was identified: does another that is there now state the same number?"""
        if any(
            _is_there(other) and _number(other) == identity.hardware_serial
            for other in self._fleet.agents.values()
            if other != agent and (not agent.boot or other.boot != agent.boot)
        ):
            self._shared.add(identity.hardware_serial)

    def _may_follow(self, agent: Agent, identity: DeviceIdentity, former: Agent, *, by_rule: bool) -> bool:
        """Whether the record of `former`, which adb does not list, is that of `agent`, which is identified now.

        `by_rule`: a rule adopts the device anyway; else one whose model is not stored is unknown. Where another phone
        has its serial too, adb has listed it by its port since the other came.
        """
        number = identity.hardware_serial
        if agent.serial.startswith(USB_PATH):
            return agent.place is not None and agent.place == former.place and same_kind(identity, former.identity)
        if not is_distinct(number) or number in self._shared:
            return False
        return same_kind(identity, former.identity) if former.identity is not None else by_rule

    def _traded(self, agent: Agent, identity: DeviceIdentity, own: str, former: Agent, *, by_rule: bool) -> bool:
        """Whether the device identified now, where one of number `own` is remembered, is the same as `former`.

        Two phones trade serials when both were away (new network addresses, equal serials distinguished by ports).
        """
        return (
            is_distinct(own)
            and own not in self._shared
            and not _is_there(former)
            and self._may_follow(agent, identity, former, by_rule=by_rule)
        )

    def _moved(self, serial: str, to: str) -> None:
        """A record moved."""
        if self._came_from.pop(serial, None) != to:
            self._came_from[to] = serial

    def _is_home(self, serial: str, record_serial: str) -> bool:
        """Whether the record that is at `record_serial` now came from `serial`."""
        return self._came_from.get(record_serial) == serial

    def _move(self, agent: Agent, former: Agent, old: DeviceRecord) -> None:
        self._moved(old.serial, agent.serial)
        self._fleet.registry.save_soon(replace(old, serial=agent.serial), instead_of=old.serial)
        self._fleet.spawn(self._fleet.batteries.moved(old.serial, agent.serial), f"battery of {agent.name}")
        self._fleet.recovery.log.change_serial(old.serial, agent.serial)
        agent.inherit(former.state, old.name)
        agent.on_event(m.ServiceChanged(Service(old.service)))

    def _take_back(self, agent: Agent, former: Agent, old: DeviceRecord) -> None:
        """`former`, which is there too, got this phone's record: it is another phone, or the same on a second link."""
        if agent.boot and agent.boot == former.boot:
            agent.server = former.server
            self._move(agent, former, old)
            self._fleet.device_views.move_away(former.serial)  # its name is the other's
            former.name = former.serial
            self._fleet.identify_anew(former)
            return
        log.warning("%s and %s both say that they are %s", agent.serial, former.serial, old.hardware_serial)
        self._move(agent, former, old)
        former.on_event(m.Unadopted(clean=False))  # its holder loses it: the lease was for the other
        former.server = None
        if former.identity is not None:
            self._fleet.device_views.move_away(former.serial)  # its name is the other's
            former.name = former.serial
            if self._fleet.named(former, former.identity):
                former.on_event(m.PlainEvent.ADOPTED)
                if (kept := agent.state.quarantine) is not None:
                    former.on_event(m.QuarantineOrdered(kept.cause))
        self._fleet.changed(former)

    def _trade(
        self, agent: Agent, before: DeviceIdentity | None, own: DeviceRecord, former: Agent, old: DeviceRecord
    ) -> None:
        """The phone remembered here and the phone that is here now have each other's serial."""
        log.warning("%s and %s have traded places: %s is at %s now", own.name, old.name, old.name, agent.serial)
        self._fleet.registry.trade_soon(own, old)
        self._fleet.spawn(self._trade_batteries(agent.serial, former.serial), f"battery of {old.name}")
        aside = f"{agent.serial} (traded)"
        for serial, to in ((agent.serial, aside), (former.serial, agent.serial), (aside, former.serial)):
            self._fleet.recovery.log.change_serial(serial, to)
        self._fleet.device_views.move_away(agent.serial)
        self._fleet.device_views.move_away(former.serial)
        agent.server, former.server = former.server, agent.server
        state = agent.state
        agent.inherit(former.state, old.name)
        former.inherit(state, own.name)
        former.identity = before
        agent.on_event(m.ServiceChanged(Service(old.service)))
        former.on_event(m.ServiceChanged(Service(own.service)))
        self._fleet.changed(former)

    async def _trade_batteries(self, one: str, other: str) -> None:
        aside = f"{one} (traded)"
        for serial, to in ((one, aside), (other, one), (aside, other)):
            await self._fleet.batteries.moved(serial, to)
