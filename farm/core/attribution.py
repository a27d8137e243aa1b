"""Where devices are plugged in; when several are lost at once: the fault of each phone, of their hub, or of the host.

Pure. A place is named as sysfs names it: `1-4.2` is port 2 of hub `1-4`, which is in port 4 of bus 1's root hub `usb1`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

# Buses, root ports and hubs in a row that Linux and USB know (drivers/usb/core/hcd.c: USB_MAXBUS; USB 3.2, 10.1).
_MAX_BUS = 64  # macOS counts locations instead, `231-1`: no place on this host
_PATH = re.compile(r"([1-9]\d{0,2})-([1-9]\d{0,2}(?:\.[1-9]\d{0,2}){0,5})")
_NETWORK = re.compile(r":\d+$|\._adb[\w-]*\._tcp")
_FEWEST = 2  # lost at once before anything but the phone itself is blamed


@dataclass(frozen=True, slots=True)
class UsbPlace:
    """One port of one hub, as sysfs names it: hub "1-4", port 2, path "1-4.2". The root hub of bus 1 is "usb1"."""

    hub: str
    port: int
    path: str


def parse_place(text: str) -> UsbPlace | None:
    """A USB path, `1-4.2` or `usb:1-4.2`; None for anything else (macOS's, libusb's old `336675328X`)."""
    match = _PATH.fullmatch(text.removeprefix("usb:"))
    if match is None or int(match[1]) > _MAX_BUS:
        return None
    path = match[0]
    above, dot, port = path.rpartition(".")
    return UsbPlace(above, int(port), path) if dot else UsbPlace(f"usb{match[1]}", int(match[2]), path)


def is_network(serial: str) -> bool:
    """Whether adb lists a phone by its address: HOST:PORT, or an mDNS name."""
    return _NETWORK.search(serial) is not None


def hubs_above(place: UsbPlace) -> tuple[str, ...]:
    """Every hub between the device and the host, the nearest first; the last is the root hub."""
    hubs = [place.hub]
    while (above := parse_place(hubs[-1])) is not None:
        hubs.append(above.hub)
    return tuple(hubs)


class Culprit(StrEnum):
    """Whose fault a loss is."""

    PHONE = "phone"
    HUB = "hub"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Blame:
    """One explanation of one or more losses."""

    kind: Culprit
    devices: tuple[str, ...]  # serials, sorted
    hub: str = ""  # of Culprit.HUB
    reason: str = ""  # what to say of each device; "" for a phone that went alone


def attribute(
    losses: Collection[str],
    places: Mapping[str, UsbPlace],
    present: Collection[str],
    *,
    dead: Collection[str] = (),
    server_lost: bool = False,
) -> tuple[Blame, ...]:
    """Whose fault it is that these devices were lost within a short time.

    A hub is blamed when nothing that is known to hang on it is left and at least two devices went; of several such
    hubs in a row the lowest that has them all. When that leaves nothing on any hub, and no single hub had them all,
    it is the host (its controller, its power, its kernel).

    Args:
        losses: serials of the devices lost.
        places: where devices, lost or present, are plugged in; network phones have none.
        present: serials of the devices that adb still lists as alive.
        dead: serials of those that it lists as dead: they did not vanish.
        server_lost: whether the adb server itself went: then nobody else is to blame.
    """

    def how(serials: Collection[str]) -> str:
        return "went silent" if all(serial in dead for serial in serials) else "vanished"

    lost = tuple(sorted(losses))
    if server_lost:
        return (Blame(Culprit.HOST, lost, reason="the adb server went away"),) if lost else ()
    placed = [serial for serial in lost if serial in places]
    alone = [serial for serial in lost if serial not in places]
    left = {hub for serial in present if serial in places for hub in hubs_above(places[serial])}
    groups: dict[str, list[str]] = {}
    for serial in placed:
        empty = [hub for hub in hubs_above(places[serial]) if hub not in left]
        groups.setdefault(empty[-1] if empty else "", []).append(serial)
    alone += groups.pop("", [])
    if not left and len(placed) >= _FEWEST and _common_hub(placed, places) == "":
        count = len(placed)
        return (
            Blame(Culprit.HOST, tuple(placed), reason=f"all USB phones of this host ({count}) {how(placed)} together"),
            *(Blame(Culprit.PHONE, (serial,)) for serial in alone),
        )
    blames: list[Blame] = []
    for group in groups.values():
        if len(group) < _FEWEST:
            alone += group
            continue
        hub = _common_hub(group, places) or hubs_above(places[group[0]])[-1]
        what = f"its hub {hub}" if not hub.startswith("usb") else f"its USB bus {hub.removeprefix('usb')}"
        blames.append(Blame(Culprit.HUB, tuple(group), hub, f"{what} {how(group)} with {len(group)} phones"))
    return (*blames, *(Blame(Culprit.PHONE, (serial,)) for serial in sorted(alone)))


def _common_hub(serials: Collection[str], places: Mapping[str, UsbPlace]) -> str:
    """The lowest hub that has them all; "" when only a root hub does over several hubs, or none at all."""
    chains = [hubs_above(places[serial]) for serial in serials]
    for hub in chains[0]:
        if all(hub in chain for chain in chains):
            one = len({places[serial].hub for serial in serials}) == 1
            return hub if one or not hub.startswith("usb") else ""
    return ""
