"""Lists of phones as adb servers send them, reduced to one phone: text, and the two forms of adb 36's protocol buffers.

Of AOSP's `message Devices { repeated Device device = 1; }` only `string serial = 1` of a Device is looked at; its bytes
are passed on as they came, so fields of later releases survive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from farm.adb.devices import parse_device_line
from farm.adb.filter_requests import ListForm
from farm.adb.host_protocol import text_of
from farm.core.errors import ProtocolError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers
_MAX_VARINT_BYTES = 10
_DEVICE_FIELD = _SERIAL_FIELD = 1
_TEXT_DEVICE = re.compile(r"^device \{\n(?:.*\n)*?\}\n?", re.MULTILINE)
_TEXT_SERIAL = re.compile(r'^ {2}serial: "(?P<serial>(?:[^"\\]|\\.)*)"$', re.MULTILINE)
_TEXT_ESCAPE = re.compile(r'(["\\\'])')


def only(block: bytes, serial: str, form: ListForm) -> bytes:
    """The part of a list that is about `serial`; empty when it is not there.

    Raises:
        ProtocolError: the list is not of that form.
    """
    match form:
        case ListForm.TEXT:
            lines = text_of(block).splitlines(keepends=True)
            kept = (line for line in lines if (device := parse_device_line(line)) and device.serial == serial)
            return "".join(kept).encode("utf-8", "surrogateescape")
        case ListForm.PROTO_BINARY:
            wanted = serial.encode("utf-8", "surrogateescape")
            return b"".join(
                raw
                for number, raw, value in _fields(block)
                if number == _DEVICE_FIELD
                and any(name == _SERIAL_FIELD and text == wanted for name, _, text in _fields(value))
            )
        case ListForm.PROTO_TEXT:
            escaped = _TEXT_ESCAPE.sub(r"\\\1", serial)
            return "".join(
                device[0]
                for device in _TEXT_DEVICE.finditer(text_of(block))
                if (found := _TEXT_SERIAL.search(device[0])) and found["serial"] == escaped
            ).encode("utf-8", "surrogateescape")


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(number, the whole field, its bytes when it has a length) of each field of a message."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        value = b""
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _LENGTH:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ProtocolError("a list of phones is no protocol buffer", evidence=repr(message[begin : begin + 64]))
        if at > len(message):
            raise ProtocolError("a list of phones ends in the middle", evidence=repr(message[begin : begin + 64]))
        yield number, message[begin:at], value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = 0
    for count, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if not byte & 0x80:
            return value, at + count + 1
    raise ProtocolError("a list of phones has a number without an end", evidence=repr(message[at : at + 16]))
