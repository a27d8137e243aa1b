"""Where phones are plugged in: from adb's list, from sysfs by the phone's serial, or as the configuration says.

sysfs is read as files (Documentation/ABI/stable/sysfs-bus-usb); adb tells what comes and goes, so nothing else of udev
is needed (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farm.core.attribution import UsbPlace, is_network, parse_place

DEVICES = "bus/usb/devices"


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
        if is_network(serial):
            return None  # its cable, if it has one, charges it: what hangs on the hub says nothing of its link
        wanted = {serial, hardware_serial} - {""}
        found = [place for place, its_serial in self.devices() if its_serial in wanted]
        return found[0] if len(found) == 1 else None  # two with one serial: guessing would cut the wrong one's power

    def devices(self) -> tuple[tuple[UsbPlace, str], ...]:
        """Every device with a serial that is plugged in, by path. One that leaves meanwhile is skipped."""
        try:
            folders = sorted((self.sysfs / DEVICES).iterdir())
        except OSError:
            return ()
        placed = ((parse_place(folder.name), folder) for folder in folders)  # interfaces (`1-4:1.0`) have no place
        return tuple((place, serial) for place, folder in placed if place and (serial := _read(folder / "serial")))


def unplaced(serials: Iterable[str], places: Mapping[str, UsbPlace]) -> tuple[str, ...]:
    """Phones on a cable that nobody can find: neither adb nor sysfs nor the configuration says where they are."""
    return tuple(sorted(serial for serial in serials if serial not in places and not is_network(serial)))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
