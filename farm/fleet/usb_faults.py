"""Losses in the farm: who went together, what is blamed for it (farm.core.attribution), one piece of news for each.

A phone whose hub or host is to blame is not mended: its ladder hears of it as `Around.elsewhere`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from farm.core.attribution import Blame, Culprit, attribute
from farm.core.events import EventLog
from farm.fleet.agent import Agent

WINDOW_S = 3.0  # the kernel tears a hub's devices down one by one, 0.1-0.3 s each; adb tells each as it notices


@dataclass(frozen=True, slots=True)
class _Fault:
    blame: Blame
    names: tuple[str, ...]
    told: bool  # as an event and a problem; the adb server's end is told by whoever watches it

    @property
    def subject(self) -> str:
        return self.blame.hub or "usb"

    def event(self, what: str) -> str:
        """The kind of its event; `what` is lost or back."""
        return f"hub.{what}" if self.blame.hub else f"host.usb_{what}"


class UsbFaults:
    """What vanished lately. Used from the event loop's thread."""

    def __init__(self, events: EventLog, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._now_s = monotonic
        self._listed: frozenset[str] = frozenset()
        self._lost_at: dict[str, float] = {}  # monotonic seconds, by serial
        self._faults: list[_Fault] = []

    def problems(self) -> list[str]:
        """One line for each hub, or the host, that lost its phones and has none of them back."""
        return [
            f"{fault.blame.reason.removeprefix('its ')}: {', '.join(fault.names)} (look at its cable and its power)"
            for fault in self._faults
            if fault.told
        ]

    def look(
        self, agents: Mapping[str, Agent], listed: Collection[str], dead: Collection[str] = (), *, server_lost: bool
    ) -> tuple[Agent, ...]:
        """Take adb's list as it is now; returns the agents whose `elsewhere` changed.

        Args:
            agents: every device, by serial.
            listed: the serials on adb's list.
            dead: those of them whose transport is dead (`offline`): a hub that hangs keeps its phones listed.
            server_lost: whether the list is empty because the adb server is gone.
        """
        now, before = self._now_s(), self._listed
        self._listed = frozenset(listed) - frozenset(dead)
        for serial in before - self._listed:
            if serial in agents and not agents[serial].state.climb.sent_away:
                self._lost_at[serial] = now
        self._lost_at = {
            serial: at for serial, at in self._lost_at.items() if serial not in self._listed and serial in agents
        }
        self._end_those_back(agents)
        if before - self._listed:
            fresh = [serial for serial, at in self._lost_at.items() if now - at <= WINDOW_S]
            places = {serial: agent.place for serial, agent in agents.items() if agent.place is not None}
            for blame in attribute(fresh, places, self._listed, dead=dead, server_lost=server_lost):
                if blame.kind is not Culprit.PHONE:
                    self._begin(blame, agents, told=not server_lost)
        return self._explain(agents)

    def _begin(self, blame: Blame, agents: Mapping[str, Agent], *, told: bool) -> None:
        if any(set(blame.devices) <= set(fault.blame.devices) for fault in self._faults):
            return  # a smaller piece of what is told already
        self._faults = [fault for fault in self._faults if not set(fault.blame.devices) <= set(blame.devices)]
        fault = _Fault(blame, tuple(sorted(agents[serial].name for serial in blame.devices)), told)
        self._faults.append(fault)
        if told:
            self._events.publish(fault.event("lost"), fault.subject, devices=fault.names, reason=blame.reason)

    def _end_those_back(self, agents: Mapping[str, Agent]) -> None:
        """One phone back proves its hub; forgotten phones are missed by nobody."""
        for fault in tuple(self._faults):
            back = [serial for serial in fault.blame.devices if serial in self._listed]
            if back or not any(serial in agents for serial in fault.blame.devices):
                self._faults.remove(fault)
                if fault.told:
                    names = [agents[serial].name for serial in back if serial in agents]
                    self._events.publish(fault.event("back"), fault.subject, devices=names)

    def _explain(self, agents: Mapping[str, Agent]) -> tuple[Agent, ...]:
        reasons = {serial: fault.blame.reason for fault in self._faults for serial in fault.blame.devices}
        changed = [agent for serial, agent in agents.items() if agent.elsewhere != reasons.get(serial, "")]
        for agent in changed:
            agent.elsewhere = reasons.get(agent.serial, "")
        return tuple(changed)
