"""Where phones are plugged in: from adb's list, from sysfs by the phone's serial, or as the configuration says.

sysfs is read as files (Documentation/ABI/stable/sysfs-bus-usb); adb tells what comes and goes, so nothing else of udev
is needed (docs/decisions.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farm.core.attribution import UsbPlace, hubs_above, parse_place

DEVICES = "bus/usb/devices"
_HUB_CLASS = "09"  # bDeviceClass, USB 2.0 table 9-8 and the class list of usb.org
_NETWORK = re.compile(r".*:\d+|.*\._adb[\w-]*\._tcp\.?.*")  # HOST:PORT, or an mDNS name


@dataclass(frozen=True, slots=True)
class UsbDevice:
    """One device that the kernel sees."""

    place: UsbPlace
    serial: str
    product: str
    hub: bool


@dataclass(frozen=True, slots=True)
class Topology:
    """The host's USB tree.

    Args:
        places: serial (adb's or the phone's own) -> path, `[usb.places]`: network phones, boards, whatever sysfs
            cannot know. It wins.
        sysfs: where sysfs is mounted.
    """

    places: Mapping[str, str] = field(default_factory=dict)
    sysfs: Path = Path("/sys")

    def place_of(self, serial: str, devpath: str = "", hardware_serial: str = "") -> UsbPlace | None:
        """Where a phone is plugged in, or None when nobody knows.

        Args:
            serial: as adb lists it.
            devpath: as adb lists it, with or without `usb:`; "" when it lists none.
            hardware_serial: its ro.serialno, "" while unknown.
        """
        for name in (serial, hardware_serial):
            if name and name in self.places:
                return parse_place(self.places[name])
        if (place := parse_place(devpath)) is not None:
            return place
        if _NETWORK.fullmatch(serial):
            return None  # its cable, if it has one, charges it: what hangs on the hub says nothing of its link
        wanted = {serial, hardware_serial} - {""}
        found = [device.place for device in self.devices() if device.serial in wanted]
        return found[0] if len(found) == 1 else None  # two with one serial: guessing would cut the wrong one's power

    def devices(self) -> tuple[UsbDevice, ...]:
        """Everything that is plugged in, hubs too (root hubs not), by path. One that leaves meanwhile is skipped."""
        try:
            folders = sorted((self.sysfs / DEVICES).iterdir())
        except OSError:
            return ()
        found: list[UsbDevice] = []
        for folder in folders:
            place = parse_place(folder.name)  # interfaces (`1-4:1.0`) and root hubs (`usb1`) are none
            if place is not None:
                is_hub = _read(folder / "bDeviceClass") == _HUB_CLASS
                found.append(UsbDevice(place, _read(folder / "serial"), _read(folder / "product"), is_hub))
        return tuple(found)

    def below(self, place: UsbPlace) -> tuple[UsbDevice, ...]:
        """What loses its power with that port besides the device in it: whatever hangs on it, if it is a hub."""
        return tuple(device for device in self.devices() if place.path in hubs_above(device.place))


def unplaced(serials: Iterable[str], places: Mapping[str, UsbPlace]) -> tuple[str, ...]:
    """Phones on a cable that nobody can find: neither adb nor sysfs nor the configuration says where they are."""
    return tuple(sorted(serial for serial in serials if serial not in places and not _NETWORK.fullmatch(serial)))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
