"""Phones that several hosts of a lab report at once: over the network, or moved while one of them is cut off. Pure.

The first device with a phone's serial number is handed out, until it is gone or its host is lost; the others are not.
"""

from __future__ import annotations

from collections.abc import Collection

from farm.devices.identity.naming_rules import is_distinct, same_kind
from farm.model.device import DeviceState, Life


class PhoneClaims:
    """The devices of all hosts by their hardware serial, in the order in which they came."""

    def __init__(self) -> None:
        self._of_serial: dict[str, dict[str, DeviceState]] = {}  # -> by name
        self._serials: dict[str, str] = {}  # by name

    def changed(self, state: DeviceState) -> None:
        """A host has reported a device; one that is gone, or that its host does not use, claims no phone."""
        unused = state.life is Life.GONE or bool(state.withheld)
        serial = "" if state.identity is None or unused else state.identity.hardware_serial
        if self._serials.get(state.name, "") != serial:
            self.forget(state.name)
        if serial and is_distinct(serial):
            self._serials[state.name] = serial
            self._of_serial.setdefault(serial, {})[state.name] = state

    def forget(self, name: str) -> None:
        """A device is not there any more."""
        if not (serial := self._serials.pop(name, "")):
            return
        del self._of_serial[serial][name]
        if not self._of_serial[serial]:
            del self._of_serial[serial]

    def rivals(self, name: str) -> frozenset[str]:
        """The other devices with the serial number of this one."""
        return frozenset(self._of_serial.get(self._serials.get(name, ""), ())) - {name}

    def why_not(self, name: str, lost: Collection[str]) -> str:
        """Why this device is not handed out: another host, none of the `lost`, has its phone; "": it is."""
        devices = self._of_serial.get(self._serials.get(name, ""), {})
        for other in devices.values():
            if other.name == name:
                break
            mine = devices[name]
            if other.host not in (mine.host, *lost) and same_kind(other.identity, mine.identity):
                return f"host {other.host} has the same phone, as {other.name}: let one of them have it"
        return ""
