"""A phone's words where people and logs get them: bounded, and without characters that a terminal obeys. Pure."""

from __future__ import annotations

import re

WORD = 80  # characters of a name or a figure
LINE = 200  # of a property
REASON = 400  # of a sentence that may quote one
# C0 (but tab and newline), DEL, C1, separators that some take for a line end, marks that turn the direction of text,
# and halves of surrogate pairs, which no UTF-8 has.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""The text with what a terminal would obey spelled out (`\x1b`); tabs and newlines stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def plain(text: str, most: int = LINE) -> str:
    """One line of at most `most` characters, with what a terminal would obey spelled out."""
    cut = text[: most + 1]
    line = escaped(cut).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= most else line[: most - 1] + "…"
