"""What an adb server lists: parsing of `devices` / `devices -l` / track-devices text into frozen values.

The formats, as adb 29 and 36 print them: without -l `SERIAL<TAB>STATE`; with -l `%-22s STATE [DEVPATH] [product:P
model:M device:D] [transport_id:N]`. A serial may contain spaces (even in front) or be longer than its column, a state
may be a sentence ("no permissions (...); see [...]"), a devpath may lack its `usb:`: tests/data/adb has genuine lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class DeviceState(StrEnum):
    """What adb says of a transport."""

    DEVICE = "device"  # up; does not prove that the phone answers (a wedged adbd stays `device`)
    OFFLINE = "offline"  # the transport does not answer
    UNAUTHORIZED = "unauthorized"  # waits for a person to accept the key
    AUTHORIZING = "authorizing"  # the key is being offered
    CONNECTING = "connecting"
    NO_PERMISSIONS = "no permissions"  # the host may not open the USB node
    RECOVERY = "recovery"
    SIDELOAD = "sideload"
    RESCUE = "rescue"
    BOOTLOADER = "bootloader"
    HOST = "host"
    DETACHED = "detached"  # `adb detach`
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AdbDevice:
    """One line of the list."""

    serial: str  # exactly as adb names it: spaces in front belong to it
    state: DeviceState
    product: str = ""
    model: str = ""
    device: str = ""
    transport_id: int | None = None  # changes with every new transport; None = not listed
    devpath: str = ""  # USB port path ("1-4.2"), without its "usb:"; empty for network phones and emulators
    detail: str = ""  # the state in adb's own words, when it says more than the state's name


_HEADER = "List of devices attached"
# One alternative per state; "no permissions" carries a reason in four wordings and the address of a manual.
_STATE = (
    r"no permissions(?:\s*\([^)]*\))?(?:;\s*see\s*\[[^\]]*\])?|"
    r"device|offline|unauthorized|authorizing|connecting|recovery|sideload|rescue|bootloader|host|detached|unknown"
)
_LONG_LINE = re.compile(
    rf"(?P<serial>.*\S)\s+?(?P<state>{_STATE})"
    r"(?:\s+(?P<devpath>usb:\S+|\d[\d.\-]*X?))?"
    r"(?P<pairs>(?:\s+[a-z_]+:\S*)*)\s*"
)
_STRANGE_STATE = re.compile(r"(?P<serial>\S+)\s+(?P<state>\S.*?)\s+transport_id:(?P<id>\d+)\s*")
_PAIR = re.compile(r"([a-z_]+):(\S*)")
_STATES = {state.value: state for state in DeviceState}


def parse_device_list(text: str) -> tuple[AdbDevice, ...]:
    """Parses what `adb devices [-l]` prints or track-devices[-l] sends.

    Never raises: a line that is no device (header, daemon start-up, an echoed command, a warning) is skipped.
    """
    return tuple(device for line in text.split("\n") if (device := parse_device_line(line)) is not None)


def parse_device_line(line: str) -> AdbDevice | None:
    """One line of the list, or None when it names no device."""
    line = line.rstrip("\r\n")
    if line.startswith((_HEADER, "* ", "adb ", "error:")):
        return None
    serial, tab, rest = line.partition("\t")
    if tab:  # a serial holds no TAB, so nothing can be mistaken, not even a state this version does not know
        match = _LONG_LINE.fullmatch(f"- {rest}")
        if match is None:
            return AdbDevice(serial, DeviceState.UNKNOWN, detail=rest.strip()) if serial.strip() else None
    else:
        match = _LONG_LINE.fullmatch(line)
        if match is None:  # a state that this version does not know must not make the phone invisible
            strange = _STRANGE_STATE.fullmatch(line)
            if strange is None:
                return None
            return AdbDevice(
                strange["serial"], DeviceState.UNKNOWN, transport_id=int(strange["id"]), detail=strange["state"]
            )
        serial = match["serial"]
    if not serial.strip():
        return None
    words = match["state"]
    state = _STATES.get(words, DeviceState.NO_PERMISSIONS)
    pairs = dict(_PAIR.findall(match["pairs"]))
    number = pairs.get("transport_id", "")
    return AdbDevice(
        serial=serial,
        state=state,
        product=pairs.get("product", ""),
        model=pairs.get("model", ""),
        device=pairs.get("device", ""),
        transport_id=int(number) if number.isascii() and number.isdigit() else None,
        devpath=(match["devpath"] or "").removeprefix("usb:"),
        detail=words if words != state.value else "",
    )


def usable(devices: Iterable[AdbDevice]) -> tuple[AdbDevice, ...]:
    """Those whose shell can be asked."""
    return tuple(device for device in devices if device.state is DeviceState.DEVICE)
