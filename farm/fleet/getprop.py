"""Parse `getprop`: bytes a phone printed -> properties. Never raises on any input."""

from __future__ import annotations

import codecs
import re
from itertools import zip_longest

# A property starts a line, or follows another one on the same line (dumps pasted through wide terminals join them).
_START = re.compile(r"(?:^|(?<=\])[ \t]+)\[([^\[\]\s]+)\]: \[", re.MULTILINE)

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(data: bytes) -> str:
    """Decode what a phone or a saved dump holds: UTF-8, or what its byte order mark says; bad bytes become U+FFFD.

    Line ends become LF: adb's old shell protocol and Windows hosts leave CRLF, some shells CRCRLF.
    """
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            text = data[len(bom) :].decode(encoding, errors="replace")
            break
    else:
        text = data.decode("utf-8", errors="replace")
    return re.sub(r"\r+\n?", "\n", text)


def parse_getprop(text: str) -> dict[str, str]:
    """Parse the output of `getprop`, `[key]: [value]` per property.

    Values may span lines; two properties may share a line; a property printed twice keeps its first value (a dump that
    was pasted twice repeats everything). Anything else is skipped.
    """
    properties: dict[str, str] = {}
    starts = list(_START.finditer(text))
    for start, following in zip_longest(starts, starts[1:]):
        end = following.start() if following else len(text)
        value = text[start.end() : end].rstrip()
        properties.setdefault(start.group(1), value.removesuffix("]"))
    return properties
