"""Lists of phones as adb servers send them: parsing of text into frozen values, and reducing a list to one phone.

The formats, as adb 29 and 36 print them: without -l `SERIAL<TAB>STATE`; with -l `%-22s STATE [DEVPATH] [product:P
model:M device:D] [transport_id:N]`. A serial may contain spaces (even in front) or be longer than its column, a state
may be a sentence ("no permissions (...); see [...]"), a devpath may lack its `usb:`: tests/data/adb has genuine lines.

adb 36 also sends protocol buffers, in two forms. Of AOSP's `message Devices { repeated Device device = 1; }` only
`string serial = 1` of a Device is read; fields of later releases pass through.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from farm.adb.host_protocol import text_of
from farm.common.errors import ProtocolError


class AdbState(StrEnum):
    """The state of a transport in adb's list."""

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


class ListForm(StrEnum):
    """How a list of phones is written."""

    TEXT = "text"
    PROTO_BINARY = "proto-binary"
    PROTO_TEXT = "proto-text"


@dataclass(frozen=True, slots=True)
class AdbDevice:
    """One line of the list."""

    serial: str  # as adb names it, with any spaces in front; or its USB path, see `distinct`
    state: AdbState
    product: str = ""
    model: str = ""
    device: str = ""
    transport_id: int | None = None  # changes with every new transport; None = not listed
    devpath: str = ""  # USB port path ("1-4.2"), without its "usb:"; empty for network phones and emulators
    detail: str = ""  # adb's text of the state, when it is more than the state's name


USB_PATH = "usb:"  # how adb names a port in place of a serial
NO_SERIAL = "(no serial number)"  # how adb lists a phone whose USB descriptor has none

_HEADER = "List of devices attached"
# One alternative per state; "no permissions" carries a reason in many wordings, which may end in the middle.
_STATE = (
    r"no permissions(?:[ ;(].*?)??|"
    r"device|offline|unauthorized|authorizing|connecting|recovery|sideload|rescue|bootloader|host|detached|unknown"
)
_LONG_LINE = re.compile(
    rf"(?P<serial>.*?\S)\s+?(?P<state>{_STATE})"
    r"(?:\s+(?P<devpath>usb:\S+|\d[\d.\-]*X?))?"
    r"(?P<pairs>(?:\s+[a-z_]+:.*)?)\s*"
)
_MANGLED_LINE = re.compile(rf"(?P<serial>\S+)\s+(?P<state>{_STATE})(?P<devpath>)\s+(?P<pairs>.*)")
_STRANGE_STATE = re.compile(r"(?P<serial>\S+)\s+(?P<state>\S.*?)\s+transport_id:(?P<id>\d+)\s*")
_PAIR = re.compile(r"([a-z_]+):(.*?)(?=\s+[a-z_]+:|\s*$)")  # a product may have spaces
_STATES = {state.value: state for state in AdbState}


def parse_device_list(text: str) -> tuple[AdbDevice, ...]:
    """Parses the list that `adb devices [-l]` prints or track-devices[-l] sends.

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
            return AdbDevice(serial, AdbState.UNKNOWN, detail=rest.strip()) if serial.strip() else None
    else:
        match = _LONG_LINE.fullmatch(line) or _MANGLED_LINE.fullmatch(line)
        if match is None:  # a state that this version does not know must not make the phone invisible
            strange = _STRANGE_STATE.fullmatch(line)
            if strange is None:
                return None
            return AdbDevice(
                strange["serial"], AdbState.UNKNOWN, transport_id=int(strange["id"]), detail=strange["state"]
            )
        serial = match["serial"]
    if not serial.strip():
        return None
    words = match["state"]
    state = _STATES.get(words, AdbState.NO_PERMISSIONS)
    pairs = dict(_PAIR.findall(match["pairs"]))
    number = pairs.get("transport_id", "")
    return AdbDevice(
        serial=serial,
        state=state,
        product=pairs.get("product", ""),
        model=pairs.get("model", ""),
        device=pairs.get("device", ""),
        transport_id=int(number) if number.isascii() and number.isdigit() else None,
        devpath=(match["devpath"] or "").removeprefix(USB_PATH),
        detail=words if words != state.value else "",
    )


def distinct(devices: Iterable[AdbDevice], shared: set[str]) -> list[AdbDevice]:
    """Devices with their USB paths, which adb takes too, in place of missing and shared serials.

    `shared`: every serial that several phones have had at once. Those of this list are added.
    """
    listed = list(devices)
    counts = Counter(device.serial for device in listed)
    shared |= {serial for serial, count in counts.items() if count > 1}
    return [
        replace(device, serial=USB_PATH + device.devpath)
        if device.devpath and (device.serial in shared or device.serial == NO_SERIAL)
        else device
        for device in listed
    ]


def usable(devices: Iterable[AdbDevice]) -> tuple[AdbDevice, ...]:
    """The devices in adb's state `device`."""
    return tuple(device for device in devices if device.state is AdbState.DEVICE)


_TEXT_DEVICE = re.compile(r"^device \{\n(?:.*\n)*?\}\n?", re.MULTILINE)
_TEXT_SERIAL = re.compile(r'^ {2}serial: "(?P<serial>(?:[^"\\]|\\.)*)"$', re.MULTILINE)
_TEXT_ESCAPE = re.compile(r'(["\\\'])')


def keep_only(block: bytes, serial: str, form: ListForm) -> bytes:
    """The part of a list that is about `serial`; empty when it is not there.

    Raises:
        ProtocolError: the list is not of that form.
    """
    match form:
        case ListForm.TEXT:
            lines = text_of(block).splitlines(keepends=True)
            kept = (
                line
                for line in lines
                if (device := parse_device_line(line)) and serial in (device.serial, USB_PATH + device.devpath)
            )
            return "".join(kept).encode("utf-8", "surrogateescape")
        case ListForm.PROTO_BINARY:
            return _only_in_message(block, serial)
        case ListForm.PROTO_TEXT:
            escaped = _TEXT_ESCAPE.sub(r"\\\1", serial)
            return "".join(
                device[0]
                for device in _TEXT_DEVICE.finditer(text_of(block))
                if (found := _TEXT_SERIAL.search(device[0])) and found["serial"] == escaped
            ).encode("utf-8", "surrogateescape")


@cache
def _device_list() -> Any:
    from farm.common.protobuf import message_classes  # 30 ms, and few servers send this form

    known = message_classes("adb", Devices={"device": (1, "repeated Device")}, Device={"serial": (1, "bytes")})
    return known["Devices"]


def _only_in_message(block: bytes, serial: str) -> bytes:
    devices = _device_list()
    from farm.common.protobuf import DecodeError

    try:
        listed = devices.FromString(block)
    except DecodeError as error:
        raise ProtocolError("a list of phones is no protocol buffer", evidence=repr(block[:64])) from error
    wanted = serial.encode("utf-8", "surrogateescape")
    return bytes(devices(device=[each for each in listed.device if each.serial == wanted]).SerializeToString())
