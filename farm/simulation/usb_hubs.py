"""The USB hubs that a lab's phones hang on: power by port, a `uhubctl` that switches it, and the folders of sysfs.

Formats follow uhubctl 2.6 (its main.c: print_port_status, main) and Linux (Documentation/ABI/stable/sysfs-bus-usb).
Hubs between a phone and its root hub switch each port by itself; root hubs do not, as in most computers.

The lab host has programs that reach into the lab: `LAB/bin/uhubctl -l 1-4 -p 2 -a cycle`, and `LAB/bin/usb-power
off|on 1-4.2` for power by command template.
"""

from __future__ import annotations

import asyncio
import getopt
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.common.errors import UserError
from farm.simulation.control import CONTROL_SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from farm.simulation.lab_phone import LabPhone

_PLACE = re.compile(r"[1-9]\d*-[1-9]\d?(\.[1-9]\d?){0,5}")
_ROOT_PORTS = 16
_MAX_PORTS = 14  # that uhubctl knows
_HUB = "2109:2817 VIA Labs, Inc. USB2.0 Hub"
_ANDROID = "18d1:4ee7"  # Google: a phone with adb
_HOST_CONTROLLER = "devices/pci0000:00/0000:00:14.0"
DEVICES = "bus/usb/devices"  # below the folder given to `Hubs`: what farm's topology reader is pointed at
_ACTIONS = {"0": "off", "1": "on", "2": "cycle", "3": "toggle", "4": "flash"}
_SHORT = "l:L:n:s:a:p:d:r:w:hvefRNS"
_LONG = (
    "location=", "level=", "vendor=", "search=", "action=", "ports=", "delay=", "repeat=", "wait=", "help", "version",
    "exact", "force", "reset", "nodesc", "nosysfs",
)  # fmt: skip
_VERSION = "2.6.0"
BIN = "bin"
_PROGRAM = """\
import json, socket, sys
lab = socket.socket(socket.AF_UNIX)
try:
    lab.connect(sys.argv[1])
    order = {"id": 1, "do": sys.argv[2], "arguments": sys.argv[3:]}
    lab.sendall(json.dumps(order).encode() + b"\\n")
    reply = json.loads(lab.makefile("rb").readline())
except (OSError, ValueError) as error:
    sys.exit(f"the lab does not answer: {error}")
if not reply["ok"]:
    sys.exit(reply["error"]["message"])
sys.stdout.write(reply["value"]["out"])
sys.stderr.write(reply["value"]["err"])
sys.exit(reply["value"]["code"])
"""


@dataclass(frozen=True, slots=True)
class HostProgramOutput:
    """Output and exit code of a host's program."""

    code: int = 0
    out: str = ""
    err: str = ""


def parent_of(place: str) -> tuple[str, int]:
    """Hub and port of a device: `1-4.2` is port 2 of hub `1-4`, `1-4` is port 4 of root hub `1`."""
    if not _PLACE.fullmatch(place):
        raise UserError(f"{place!r} is no USB place", hint="as in 1-4.2: bus 1, port 4, port 2 of the hub there")
    cut = max(place.rfind("."), place.rfind("-"))
    return place[:cut], int(place[cut + 1 :])


def hubs_above(places: Iterable[str]) -> dict[str, int]:
    """Every hub on the way to these places, with its number of ports; root hubs are bare numbers."""
    ports: dict[str, int] = {}
    for place in places:
        hub, port = parent_of(place)
        ports[hub] = max(ports.get(hub, 4), port)
        while "-" in hub:
            hub, port = parent_of(hub)
            ports[hub] = max(ports.get(hub, 4), port)
    return {
        hub: _ROOT_PORTS if "-" not in hub else (count if count == 4 else max(7, count))
        for hub, count in sorted(ports.items())
    }


class Hubs:
    """Of one lab."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._phones: dict[str, LabPhone] = {}  # by place
        self._off: set[tuple[str, int]] = set()  # ports without current
        self._unplugged: set[str] = set()  # hubs
        self._shown: dict[str, dict[str, str]] = {}
        self._numbers = 1

    def add(self, phone: LabPhone, place: str) -> None:
        """A phone hangs on that place."""
        parent_of(place)
        if place in self._phones or place in hubs_above(self._phones) or hubs_above([place]).keys() & self._phones:
            raise UserError(f"USB place {place} is taken", hint="choose another port")
        self._phones[place] = phone
        self.refresh()

    def remove(self, phone: LabPhone) -> None:
        """A phone is taken away."""
        self._phones = {place: other for place, other in self._phones.items() if other is not phone}
        self.refresh()

    async def set_port(self, hub: str, port: int, *, on: bool) -> None:
        """Give a port current or take it away, with all that hangs below."""
        (self._off.discard if on else self._off.add)((hub, port))
        await self._spread()

    async def set_plugged(self, hub: str, *, plugged: bool) -> None:
        """Pull a hub's own cable, or put it back."""
        if hub not in hubs_above(self._phones) or "-" not in hub:
            raise UserError(f"there is no hub {hub}", hint=f"hubs: {', '.join(hubs_above(self._phones)) or 'none'}")
        (self._unplugged.discard if plugged else self._unplugged.add)(hub)
        await self._spread()

    async def _spread(self) -> None:
        changed = [
            (phone, lit) for place, phone in self._phones.items() if phone.port_power != (lit := self._is_lit(place))
        ]
        await asyncio.gather(*(phone.set_port_power(on=lit) for phone, lit in changed))
        self.refresh()

    def _is_lit(self, place: str) -> bool:
        """Whether current comes from the root down to there."""
        while "-" in place:
            hub, port = parent_of(place)
            if (hub, port) in self._off or hub in self._unplugged:
                return False
            place = hub
        return True

    # -- uhubctl -----------------------------------------------------------------------------------------------------

    async def uhubctl(self, arguments: Sequence[str]) -> HostProgramOutput:
        """Do as `uhubctl ARGUMENTS` does; returns its output."""
        try:
            options = _options(arguments)
        except getopt.GetoptError as error:
            return HostProgramOutput(1, err=f"uhubctl: {error}\nRun with -h to get usage info.\n")
        except ValueError as error:
            return HostProgramOutput(1, err=f"{error}\n")
        if "version" in options:
            return HostProgramOutput(out=f"{_VERSION}\n")
        if "help" in options:
            return HostProgramOutput(1, out="uhubctl: utility to control USB port power for smart hubs.\n")
        location = options.get("location", "")
        smart = {hub: count for hub, count in hubs_above(self._phones).items() if self._is_smart(hub)}
        chosen = [hub for hub in smart if not location or hub.lower() == location.lower()]
        if not chosen:
            where = f" at location {location}" if location else ""
            return HostProgramOutput(1, err=f"No compatible devices detected{where}!\nRun with -h to get usage info.\n")
        action = options.get("action", "")
        if not action:
            return HostProgramOutput(out="".join(self._hub_text("Current", hub, options) for hub in chosen))
        if len(chosen) > 1:
            problem = "Error: changing port state for multiple hubs at once is not supported."
            return HostProgramOutput(1, err=f"{problem}\nUse -l to limit operation to one hub!\n")
        return HostProgramOutput(out=await self._switch(chosen[0], action, options))

    async def _switch(self, hub: str, action: str, options: Mapping[str, str]) -> str:
        printed = ""
        steps = {"off": (False,), "on": (True,), "cycle": (False, True), "flash": (True, False), "toggle": (None,)}
        for number, on in enumerate(steps[action]):
            if number:
                await asyncio.sleep(float(options.get("delay", "2")))
            printed += self._hub_text("Current", hub, options)
            wanted = bool(on)
            for port in _ports(options, hubs_above(self._phones)[hub]):
                wanted = on if on is not None else (hub, port) in self._off
                await self.set_port(hub, port, on=wanted)
            printed += f"Sent power {'on' if wanted else 'off'} request\n" + self._hub_text("New", hub, options)
        return printed

    def _is_smart(self, hub: str) -> bool:
        return "-" in hub and self._is_lit(hub) and hub not in self._unplugged

    def _hub_text(self, word: str, hub: str, options: Mapping[str, str]) -> str:
        count = hubs_above(self._phones)[hub]
        text = f"{word} status for hub {hub} [{_hub_description(count)}]\n"
        for port in _ports(options, count):
            text += f"  Port {port}: {self._port_text(hub, port)}\n"
        return text

    def _port_text(self, hub: str, port: int) -> str:
        if (hub, port) in self._off:
            return "0000 off"
        place = f"{hub}.{port}"
        phone = self._phones.get(place)
        connected = "0503 power highspeed enable connect"
        if phone is not None and self._enumerates(place, phone):
            return f"{connected} [{_ANDROID} {phone.title} {phone.spec.serial}]"
        count = hubs_above(self._phones).get(place)
        if count is not None and place not in self._unplugged:
            return f"{connected} [{_hub_description(count)}]"
        return "0100 power"

    def _enumerates(self, place: str, phone: LabPhone) -> bool:
        """Whether the host sees a device there: a phone that is off is none."""
        return self._is_lit(place) and phone.plugged and phone.powered

    # -- sysfs -------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Write the folders of sysfs for the present plugs."""
        wanted: dict[str, dict[str, str]] = {}
        for hub, count in hubs_above(self._phones).items():
            if "-" not in hub or self._is_smart(hub):
                wanted[hub] = {"bDeviceClass": "09", "maxchild": str(count), "product": "USB2.0 Hub"}
        for place, phone in self._phones.items():
            if self._enumerates(place, phone):
                wanted[place] = {"bDeviceClass": "00", "product": phone.title, "serial": phone.spec.serial}
        links = self._folder / DEVICES
        links.mkdir(parents=True, exist_ok=True)
        # What hangs below a folder comes after it, and goes before it.
        for place in sorted(self._shown.keys() - wanted.keys(), reverse=True):
            (links / _sysfs_name(place)).unlink(missing_ok=True)
            shutil.rmtree(self._device_folder(place), ignore_errors=True)
        for place in sorted(wanted.keys() - self._shown.keys()):
            self._numbers += 1
            folder = self._device_folder(place)
            folder.mkdir(parents=True, exist_ok=True)
            bus, _, path = place.partition("-")
            common = {"busnum": bus, "devnum": str(self._numbers), "devpath": path or "0", "speed": "480"}
            for name, text in {**wanted[place], **common}.items():
                (folder / name).write_text(f"{text}\n", "utf-8")
            link = links / _sysfs_name(place)
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
        self._shown = wanted

    def _device_folder(self, place: str) -> Path:
        above = []
        while "-" in place:
            above.append(place)
            place = parent_of(place)[0]
        folder = self._folder / _HOST_CONTROLLER / f"usb{place}"
        for name in reversed(above):
            folder /= name
        return folder


def _sysfs_name(place: str) -> str:
    return place if "-" in place else f"usb{place}"


def _hub_description(ports: int) -> str:
    return f"{_HUB}, USB 2.10, {ports} ports, ppps"


def _options(arguments: Sequence[str]) -> dict[str, str]:
    given, rest = getopt.gnu_getopt(list(arguments), _SHORT, list(_LONG))
    if rest:
        raise ValueError("Invalid command line syntax!\nRun with -h to get usage info.")
    names = {name[0]: name for name in (long.removesuffix("=") for long in _LONG if long != "reset")}
    names |= {"R": "reset", "N": "nodesc", "S": "nosysfs", "L": "level"}
    names["n"], names["l"], names["r"], names["s"] = "vendor", "location", "repeat", "search"
    names["e"] = "exact"
    options = {names.get(key.lstrip("-"), key.lstrip("-")): value for key, value in given}
    if "action" in options:
        action = options["action"].lower()
        options["action"] = _ACTIONS.get(action, action if action in _ACTIONS.values() else "")
    _ports(options, _MAX_PORTS)  # refuses what is no list
    return options


def _ports(options: Mapping[str, str], count: int) -> list[int]:
    text = options.get("ports", "all")
    if text.lower() == "all":
        return list(range(1, count + 1))
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = _number(first), _number(last or first)
        if low > high:
            raise ValueError(f"Bad port spec {low}-{high}, first port must be less than last")
        if low <= 0 or high > _MAX_PORTS:
            raise ValueError(f"Bad port spec {low}-{high}, port numbers must be from 1 to {_MAX_PORTS}")
        chosen.update(range(low, high + 1))
    return [port for port in sorted(chosen) if port <= count]


def _number(text: str) -> int:
    """As C's atoi."""
    digits = re.match(r"\d*", text)
    return int(digits[0] or 0) if digits else 0


def write_host_programs(lab: Path) -> None:
    """Put them into the lab's folder `bin`."""
    folder = lab / BIN
    folder.mkdir(parents=True, exist_ok=True)
    body = folder / ".ask_lab.py"
    body.write_text(_PROGRAM, "utf-8")
    words = [sys.executable, "-I", "-S", str(body), str(lab / CONTROL_SOCKET)]
    for name, action in (("uhubctl", "uhubctl"), ("usb-power", "usb_power")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*words, action])} "$@"\n', "utf-8")
        program.chmod(0o755)
