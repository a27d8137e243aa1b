"""What a lab tells about a phone."""

from __future__ import annotations

from dataclasses import dataclass

from farm.core.errors import PhoneError


class PhoneOffError(PhoneError):
    """The virtual phone is off, or went down before it had done what was asked."""

    code = "phone_off"


@dataclass(frozen=True, slots=True)
class PhoneStatus:
    """What the lab knows of a phone."""

    name: str
    profile: str
    serial: str  # as adb lists it when the lab plugs it in
    hardware_serial: str  # ro.serialno
    address: str  # host:port its adbd listens on, for `adb connect`
    directory: str
    isolation: str
    pid: int  # of the phone's init on this host; 0 when it is off
    powered: bool
    plugged: bool
    online: bool  # an adb server completed the handshake
    boots: int
    key_shown: str  # the key a person at the phone is asked to accept
    fault: str  # the link's mode, `normal` when nothing is wrong with it
