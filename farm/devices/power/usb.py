"""Where phones are plugged in, and which of them were lost together.

A place comes from adb's list, from sysfs by the phone's serial, or from the configuration. sysfs is read as files
(Documentation/ABI/stable/sysfs-bus-usb). `power_rules` decides what was lost, `UsbFaults` publishes it. A phone
that its hub or host lost is not recovered: `RecoveryContext.external_cause` says so to its recovery.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.common.doctor_findings import WARN, Diagnosis
from farm.common.events import EventLog
from farm.devices.agent import Agent
from farm.devices.power.power_rules import UsbConfig, UsbLosses
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
    """Every device with a serial that is plugged in, by path. A device that leaves meanwhile is skipped."""
    try:
        folders = sorted((sysfs / DEVICES).iterdir())
    except OSError:
        return ()
    placed = ((parse_place(folder.name), folder) for folder in folders)  # interfaces (`1-4:1.0`) have no place
    return tuple((place, serial) for place, folder in placed if place and (serial := _read(folder / "serial")))


def unplaced(serials: Iterable[str], places: Mapping[str, UsbPlace]) -> tuple[str, ...]:
    """Phones on a cable whose port cannot be found: neither adb nor sysfs nor the configuration says where they are."""
    return tuple(sorted(serial for serial in serials if serial not in places and not is_network(serial)))


@dataclass(frozen=True, slots=True)
class UsbPhone:
    """A phone on USB in sysfs."""

    folder: Path  # in sysfs; its name is the port's path
    serial: str  # "": it has none
    interface: str  # class, subclass and protocol, ADB or FASTBOOT; "": the host did not configure the device
    barred: bool = False  # the host's rules do not let it in


ADB, FASTBOOT = "ff4201", "ff4203"


def phones_on_usb(sysfs: Path) -> list[UsbPhone]:
    """Phones with adb or in fastboot, and devices that the host did not configure, which may be phones."""
    try:
        folders = sorted((sysfs / DEVICES).iterdir())
    except OSError:
        return []
    return [phone for folder in folders if parse_place(folder.name) and (phone := _phone(folder)) is not None]


def _phone(device: Path) -> UsbPhone | None:
    serial, configured = _read(device / "serial"), device / "bConfigurationValue"
    if configured.exists() and not _read(configured):
        return UsbPhone(device, serial, "", _read(device / "authorized") == "0")
    for interface in sorted(device.glob(f"{device.name}:*")):
        kind = "".join(
            _read(interface / name) for name in ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
        )
        if kind in (ADB, FASTBOOT):
            return UsbPhone(device, serial, kind)
    return None


def judge_phones(phones: Sequence[UsbPhone]) -> Iterator[Diagnosis]:
    """Phones on cables that adb does not list, or not by a distinct serial."""
    for phone in phones:
        where, called = phone.folder.name, f" ({phone.serial})" if phone.serial else ""
        if phone.interface == FASTBOOT:
            fix = f"fastboot -s {phone.serial or f'usb:{where}'} reboot"
            yield Diagnosis("usb phones", WARN, f"the phone at {where}{called} is in fastboot", fix)
        elif phone.barred:
            fix = f"let it in (usbguard), or: echo 1 | sudo tee {phone.folder}/authorized"
            yield Diagnosis("usb phones", WARN, f"the device at {where}{called} may not be used on this host", fix)
        elif not phone.interface:
            fix = "another port, a hub with a supply, or fewer phones at one controller; journalctl -k -g 'set config'"
            yield Diagnosis("usb phones", WARN, f"the host did not configure the device at {where}{called}", fix)
    with_adb = [phone for phone in phones if phone.interface == ADB]
    fix = "leave each at its port: farm knows it as usb:PORT, adb as `-s usb:PORT`"
    if without := [phone.folder.name for phone in with_adb if not phone.serial]:
        yield Diagnosis("usb phones", WARN, f"no serial number: the phones at {', '.join(without)}", fix)
    for serial, count in Counter(phone.serial for phone in with_adb if phone.serial).items():
        if count > 1:
            where = " and ".join(phone.folder.name for phone in with_adb if phone.serial == serial)
            yield Diagnosis("usb phones", WARN, f"the phones at {where} have one serial number, {serial}", fix)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


class UsbFaults:
    """Recent losses of phones, explained to their agents. Used from the event loop's thread."""

    def __init__(self, events: EventLog, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._now_s = monotonic
        self._losses = UsbLosses()

    def problems(self) -> list[str]:
        """One line for each hub, or the host, that lost its phones and has none of them back."""
        return [
            f"{fault.cause.reason.removeprefix('its ')}: {', '.join(fault.names)} (look at its cable and its power)"
            for fault in self._losses.faults
            if fault.announced
        ]

    def update(
        self, agents: Mapping[str, Agent], listed: Collection[str], dead: Collection[str] = (), *, server_lost: bool
    ) -> tuple[Agent, ...]:
        """Take adb's list as it is now, publish losses and returns; the agents whose `external_cause` changed.

        `agents`: every device, by serial. `listed`, `dead`, `server_lost`: as of `UsbLosses.update`, dead ones listed.
        """
        before = self._losses
        names = {serial: agent.name for serial, agent in agents.items()}
        self._losses, over = before.update(
            frozenset(listed) - frozenset(dead),
            names,
            {serial: agent.place for serial, agent in agents.items() if agent.place is not None},
            self._now_s(),
            dead=dead,
            sent_away=[
                serial for serial, agent in agents.items() if agent.untethered or agent.state.progress.sent_away
            ],
            server_lost=server_lost,
        )
        for fault in over:
            if fault.announced:
                back = [serial for serial in fault.cause.devices if serial in self._losses.listed and serial in names]
                self._events.publish(fault.event("back"), fault.subject, devices=[names[each] for each in back])
        for fault in self._losses.faults:
            if fault.announced and fault not in before.faults:
                self._events.publish(fault.event("lost"), fault.subject, devices=fault.names, reason=fault.cause.reason)
        causes = {serial: fault.cause.reason for fault in self._losses.faults for serial in fault.cause.devices}
        changed = [agent for serial, agent in agents.items() if agent.external_cause != causes.get(serial, "")]
        for agent in changed:
            agent.external_cause = causes.get(agent.serial, "")
        return tuple(changed)
