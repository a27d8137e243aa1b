"""Text that phones print: decoded, cut into sections, and made safe for people and logs. Pure.

Where people and logs get it, it is bounded and without characters that a terminal obeys.
"""

from __future__ import annotations

import codecs
import logging
import re
from itertools import zip_longest

WORD = 80  # characters of a name or a figure
LINE = 200  # of a property
REASON = 400  # of a sentence that may quote one
# C0 (but tab and newline), DEL, C1, separators that some take for a line end, marks that turn the direction of text,
# and halves of surrogate pairs, which no UTF-8 has.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""The text with a terminal's control characters spelled out (`\x1b`); tabs and newlines stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def plain(text: str, most: int = LINE) -> str:
    """One line of at most `most` characters, with a terminal's control characters spelled out."""
    if len(text) <= most and text.isprintable():  # nothing that is obeyed is; a probe asks this a hundred times
        return text
    cut = text[: most + 1]
    line = escaped(cut).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= most else line[: most - 1] + "…"


def whole_number(text: str, digits: int = 9) -> int:
    """A number of at most so many digits; 0: it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else 0


SECTION = "==farm:"  # starts a line that nothing a phone prints about itself starts with


def split_sections(output: bytes, *, last: str = "") -> dict[str, str]:
    """Split a command's output at its section lines.

    Args:
        output: standard output, as raw as the phone sent it.
        last: the section after which no other is taken for one; for text that is not ours to trust (property values).

    Returns:
        Section name -> its lines. What precedes the first section line (a login banner) is under an empty name.
    """
    sections: dict[str, list[str]] = {}
    name, lines = "", None
    for line in decode(output).split("\n"):
        if line.startswith(SECTION) and not (last and name == last):
            name, lines = line.removeprefix(SECTION).strip(), None
        else:
            if lines is None:
                lines = sections.setdefault(name, [])
            lines.append(line)
    return {name: "\n".join(lines) for name, lines in sections.items()}


# A property starts a line, or follows another one on the same line (dumps pasted through wide terminals join them).
_START = re.compile(r"(?:^|(?<=\])[ \t]+)\[([^\[\]\s]+)\]: \[", re.MULTILINE)

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(data: bytes) -> str:
    """Decode the text of a phone or of a saved dump: UTF-8, or as its byte order mark says; bad bytes become U+FFFD.

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


MAX_RECORD_CHARACTERS = 20_000  # of a record; a traceback has some thousand


class PlainFormatter(logging.Formatter):
    """Records that no terminal obeys. Lines after a record's first are indented, so that it does not look like two."""

    def format(self, record: logging.LogRecord) -> str:
        """As logging formats it, then made plain."""
        text = super().format(record)
        if len(text) > MAX_RECORD_CHARACTERS:
            text = f"{text[:MAX_RECORD_CHARACTERS]}… ({len(text)} characters)"
        return escaped(text).replace("\n", "\n    ")
