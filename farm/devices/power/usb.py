"""Where phones are plugged in, and which of them were lost together.

A place comes from adb's list, from sysfs by the phone's serial, or from the configuration. sysfs is read as files
(Documentation/ABI/stable/sysfs-bus-usb). Losses are attributed by `power_rules`, with one event for each. A phone
that its hub or host lost is not recovered: `RecoveryContext.external_cause` says so to its recovery.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.common.events import EventLog
from farm.devices.agent import Agent
from farm.devices.power.power_rules import LossCause, UsbConfig, attribute
from farm.model.device import UsbPlace, is_network, parse_place

DEVICES = "bus/usb/devices"


def place_of(usb: UsbConfig, serial: str, devpath: str = "", hardware_serial: str = "") -> UsbPlace | None:
    """Where a phone is plugged in, or None when it is unknown.

    Args:
        usb: `[usb]`; a place that it names wins.
        serial: as adb lists it.
        devpath: as adb lists it, with or without `usb:`; "" when it lists none.
        hardware_serial: its ro.serialno, "" while unknown.
    """
    for name in (serial, hardware_serial):
        if name and name in usb.places:
            return parse_place(usb.places[name])
    if (place := parse_place(devpath)) is not None:
        return place
    if is_network(serial):
        return None  # its cable, if it has one, charges it: what hangs on the hub says nothing of its link
    wanted = {serial, hardware_serial} - {""}
    found = [place for place, its_serial in plugged_in(Path(usb.sysfs)) if its_serial in wanted]
    return found[0] if len(found) == 1 else None  # two with one serial: guessing would cut the wrong one's power


def plugged_in(sysfs: Path) -> tuple[tuple[UsbPlace, str], ...]:
    """Every device with a serial that is plugged in, by path. One that leaves meanwhile is skipped."""
    try:
        folders = sorted((sysfs / DEVICES).iterdir())
    except OSError:
        return ()
    placed = ((parse_place(folder.name), folder) for folder in folders)  # interfaces (`1-4:1.0`) have no place
    return tuple((place, serial) for place, folder in placed if place and (serial := _read(folder / "serial")))


def unplaced(serials: Iterable[str], places: Mapping[str, UsbPlace]) -> tuple[str, ...]:
    """Phones on a cable whose port cannot be found: neither adb nor sysfs nor the configuration says where they are."""
    return tuple(sorted(serial for serial in serials if serial not in places and not is_network(serial)))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


WINDOW_S = 3.0  # the kernel tears a hub's devices down one by one, 0.1-0.3 s each; adb tells each as it notices


@dataclass(frozen=True, slots=True)
class _Fault:
    cause: LossCause
    names: tuple[str, ...]
    announced: bool  # as an event and a problem; the watcher announces the adb server's end

    @property
    def subject(self) -> str:
        return self.cause.hub or "usb"

    def event(self, what: str) -> str:
        """The kind of its event; `what` is lost or back."""
        return f"hub.{what}" if self.cause.hub else f"host.usb_{what}"


class UsbFaults:
    """Recent losses of phones. Used from the event loop's thread."""

    def __init__(self, events: EventLog, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._now_s = monotonic
        self._listed: frozenset[str] = frozenset()
        self._lost_at: dict[str, float] = {}  # monotonic seconds, by serial
        self._faults: list[_Fault] = []

    def problems(self) -> list[str]:
        """One line for each hub, or the host, that lost its phones and has none of them back."""
        return [
            f"{fault.cause.reason.removeprefix('its ')}: {', '.join(fault.names)} (look at its cable and its power)"
            for fault in self._faults
            if fault.announced
        ]

    def update(
        self, agents: Mapping[str, Agent], listed: Collection[str], dead: Collection[str] = (), *, server_lost: bool
    ) -> tuple[Agent, ...]:
        """Take adb's list as it is now; returns the agents whose `external_cause` changed.

        Args:
            agents: every device, by serial.
            listed: the serials on adb's list.
            dead: those of them whose transport is dead (`offline`): a hub that hangs keeps its phones listed.
            server_lost: whether the list is empty because the adb server is gone.
        """
        now, before = self._now_s(), self._listed
        self._listed = frozenset(listed) - frozenset(dead)
        for serial in before - self._listed:
            if serial in agents and not agents[serial].state.progress.sent_away:
                self._lost_at[serial] = now
        self._lost_at = {
            serial: at for serial, at in self._lost_at.items() if serial not in self._listed and serial in agents
        }
        self._end_those_back(agents)
        if before - self._listed:
            fresh = [serial for serial, at in self._lost_at.items() if now - at <= WINDOW_S]
            places = {serial: agent.place for serial, agent in agents.items() if agent.place is not None}
            for cause in attribute(fresh, places, self._listed, dead=dead, server_lost=server_lost):
                if cause.reason:
                    self._begin(cause, agents, announced=not server_lost)
        return self._explain(agents)

    def _begin(self, cause: LossCause, agents: Mapping[str, Agent], *, announced: bool) -> None:
        if any(set(cause.devices) <= set(fault.cause.devices) for fault in self._faults):
            return  # part of a loss that is announced already
        self._faults = [fault for fault in self._faults if not set(fault.cause.devices) <= set(cause.devices)]
        fault = _Fault(cause, tuple(sorted(agents[serial].name for serial in cause.devices)), announced)
        self._faults.append(fault)
        if announced:
            self._events.publish(fault.event("lost"), fault.subject, devices=fault.names, reason=cause.reason)

    def _end_those_back(self, agents: Mapping[str, Agent]) -> None:
        """One phone back proves its hub; forgotten phones are not missed."""
        for fault in tuple(self._faults):
            back = [serial for serial in fault.cause.devices if serial in self._listed]
            if back or not any(serial in agents for serial in fault.cause.devices):
                self._faults.remove(fault)
                if fault.announced:
                    names = [agents[serial].name for serial in back if serial in agents]
                    self._events.publish(fault.event("back"), fault.subject, devices=names)

    def _explain(self, agents: Mapping[str, Agent]) -> tuple[Agent, ...]:
        reasons = {serial: fault.cause.reason for fault in self._faults for serial in fault.cause.devices}
        changed = [agent for serial, agent in agents.items() if agent.external_cause != reasons.get(serial, "")]
        for agent in changed:
            agent.external_cause = reasons.get(agent.serial, "")
        return tuple(changed)
