"""The switch of each USB port, as configured, and the ports that farm has switched off and must switch on again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.common.doctor_findings import WARN, Diagnosis
from farm.common.events import EventLog
from farm.devices.agent import Agent
from farm.devices.power.power import CommandSwitch, PowerError, PowerSwitch, Uhubctl
from farm.devices.power.power_rules import PowerConfig, UsbConfig, UsbLosses
from farm.model.device import UsbPlace, hubs_above, is_network, parse_place

REFUSED_S = 600.0  # a hub that hung or was replugged may obey again: the next one to need it asks it
RESTORE_EVERY_S = 30.0  # a phone without power is empty in hours, and a call of uhubctl is cheap
log = logging.getLogger(__name__)
DEVICES = "bus/usb/devices"


class Switchboard:
    """One per farm. Used from the event loop's thread.

    Args:
        config: `[power]`.
        notes: a folder with a file for each port that farm has switched off, for the daemon after a killed daemon.
        monotonic: seconds.
    """

    def __init__(
        self,
        config: PowerConfig | None = None,
        notes: Path | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config or PowerConfig()
        self._notes = notes
        self._monotonic = monotonic
        self.uhubctl = Uhubctl(self._config.uhubctl, self._config.timeout_s)
        self._refused: dict[UsbPlace, tuple[str, float]] = {}  # what a port's switch said last, and when
        self._off: set[UsbPlace] = set()  # a power cycle under way will switch them on
        self._failed: dict[UsbPlace, PowerError] = {}  # why ports could not be switched on again
        self._turns: defaultdict[UsbPlace, asyncio.Lock] = defaultdict(asyncio.Lock)

    def why_not(self, place: UsbPlace | None, *, ordered: bool = False) -> str:
        """Why a phone's power cannot be cut, in a few words; "" when it can, as far as is known.

        Args:
            place: its port.
            ordered: an operator wants it: what the switch said before is no reason not to ask it again.
        """
        if place is None:
            return "its USB port is unknown ([usb.places])"
        switch = self._config.rule_for(place).switch
        if switch == "none":
            return "the power of its port is not switched ([power])"
        if switch == "uhubctl" and not (self.uhubctl.find() if ordered else self.uhubctl.installed):
            return "uhubctl is not installed, and no other power switch is configured"
        refusal, at_s = self._refused.get(place, ("", 0.0))
        return "" if ordered or self._monotonic() - at_s >= REFUSED_S else refusal

    def losing_power(self, place: UsbPlace, places: Mapping[str, UsbPlace]) -> tuple[str, ...]:
        """Which of `places` (by serial) lose their power with that port, whatever is in it included.

        A switch of single ports cuts what hangs on the port; a command that names neither {port} nor {path} cuts the
        whole hub.
        """
        rule = self._config.rule_for(place)
        whole = rule.switch == "command" and not any("{port}" in word or "{path}" in word for word in rule.off)
        whole = whole and place.path not in self._config.hub
        top = place.hub if whole else place.path
        return tuple(sorted(serial for serial, other in places.items() if top in (other.path, *hubs_above(other))))

    def problems(self) -> list[str]:
        """Ports that may be without power because farm could not switch them on again."""
        again = f"tried again every {RESTORE_EVERY_S:g} s"
        return [
            f"port {place.path} may have no power: {error.message}; {again} ({error.hint})"
            for place, error in sorted(self._failed.items(), key=lambda each: each[0].path)
        ]

    async def off(self, place: UsbPlace) -> None:
        """See `PowerSwitch`. The caller must call `on` afterwards, even if this raises."""
        async with self._turns[place]:
            self._note(place)
            self._off.add(place)
            try:
                await self._switch_of(place).off(place)
            except PowerError as error:
                self._refused[place] = (error.message, self._monotonic())
                raise
            self._refused.pop(place, None)

    async def on(self, place: UsbPlace) -> None:
        """See `PowerSwitch`. `run` tries again after a failure."""
        try:
            async with self._turns[place]:
                await self._switch_on(place)
        finally:
            self._off.discard(place)

    async def run(self) -> None:
        """Until cancelled: switch on ports that farm, or a daemon before this one, left switched off."""
        while True:
            await self.restore_power()
            self.uhubctl.find()  # it may be installed any day
            await asyncio.sleep(RESTORE_EVERY_S)

    async def restore_power(self) -> None:
        """Try once to switch on every port that was left without power. Never raises."""
        for place in sorted({*self._noted(), *self._failed}, key=lambda each: each.path):
            known = self._failed.get(place)
            try:
                async with self._turns[place]:
                    if place in self._off:
                        continue
                    await self._switch_on(place)
                log.warning("port %s was left without power: it has it again", place.path)
            except PowerError as error:
                if known is None or known.message != error.message:
                    log.warning("port %s was left without power: %s (%s)", place.path, error.message, error.hint)
            except Exception:
                log.exception("port %s: a bug in farm while its power was switched on", place.path)

    async def _switch_on(self, place: UsbPlace) -> None:
        try:
            await self._switch_of(place).on(place)
        except PowerError as error:
            self._failed[place] = error
            raise
        self._failed.pop(place, None)
        if self._notes is None:
            return
        try:
            (self._notes / place.path).unlink(missing_ok=True)
        except OSError as error:
            log.warning("port %s has power, but its note stays: %s", place.path, error)

    def _note(self, place: UsbPlace) -> None:
        if self._notes is None:
            return
        try:
            self._notes.mkdir(parents=True, exist_ok=True)
            (self._notes / place.path).touch()
        except OSError as error:
            raise PowerError(
                f"port {place.path} keeps its power: that it is off could not be noted ({error.strerror})",
                hint=f"a daemon that is killed meanwhile would leave it off; look at {self._notes}: df, ls -ld",
                evidence=str(error),
            ) from error

    def _noted(self) -> set[UsbPlace]:
        if self._notes is None:
            return set()
        try:
            return {place for path in self._notes.iterdir() if (place := parse_place(path.name)) is not None}
        except FileNotFoundError:
            return set()
        except OSError as error:
            log.warning("the notes of ports left without power cannot be read: %s", error)
            return set()

    def _switch_of(self, place: UsbPlace) -> PowerSwitch:
        rule = self._config.rule_for(place)
        if rule.switch == "none":
            raise PowerError(f"the power of port {place.path} is not switched", hint="[power] in the configuration")
        if rule.switch == "command":
            return CommandSwitch(rule, self._config.timeout_s)
        return self.uhubctl


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
    interface: str  # class, subclass and protocol: ADB, FASTBOOT or FILES; "": the host did not configure the device
    barred: bool = False  # the host's rules do not let it in


ADB, FASTBOOT, FILES = "ff4201", "ff4203", "060101"  # FILES: MTP, alone while USB debugging is off


def phones_on_usb(sysfs: Path) -> list[UsbPhone]:
    """Phones with adb, in fastboot or with files only, and devices that the host did not configure: maybe phones."""
    try:
        folders = sorted((sysfs / DEVICES).iterdir())
    except OSError:
        return []
    return [phone for folder in folders if parse_place(folder.name) and (phone := _phone(folder)) is not None]


def _phone(device: Path) -> UsbPhone | None:
    serial, configured = _read(device / "serial"), device / "bConfigurationValue"
    if configured.exists() and not _read(configured):
        return UsbPhone(device, serial, "", _read(device / "authorized") == "0")
    files = None
    for interface in sorted(device.glob(f"{device.name}:*")):
        kind = "".join(
            _read(interface / name) for name in ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
        )
        if kind in (ADB, FASTBOOT):
            return UsbPhone(device, serial, kind)
        if kind == FILES or _read(interface / "interface") == "MTP":  # kernels before FunctionFS: vendor's class
            files = UsbPhone(device, serial, FILES)
    return files


def judge_phones(phones: Sequence[UsbPhone]) -> Iterator[Diagnosis]:
    """Phones on cables that adb does not list, or not by a distinct serial."""
    for phone in phones:
        where, called = phone.folder.name, f" ({phone.serial})" if phone.serial else ""
        if phone.interface == FASTBOOT:
            fix = f"fastboot -s {phone.serial or f'usb:{where}'} reboot"
            yield Diagnosis("usb phones", WARN, f"the phone at {where}{called} is in fastboot", fix)
        elif phone.interface == FILES:
            fix = "if it is a phone: Developer options, USB debugging on (docs/first-phones.md)"
            yield Diagnosis("usb phones", WARN, f"the device at {where}{called} has no adb", fix)
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
