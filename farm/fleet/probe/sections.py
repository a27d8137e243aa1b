"""What a probe printed, cut into its sections. Pure; never raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.fleet.probe.command import END
from farm.fleet.shell_output import split_sections

MAX_SECTION_CHARACTERS = 64 << 10  # ten times what the longest section of a phone with 79 zones has
MAX_LINE_CHARACTERS = 4 << 10


@dataclass(frozen=True, slots=True)
class Sections:
    """The text of each section, and whether the probe came to its end."""

    texts: Mapping[str, str]
    whole: bool
    last: str  # the section in which a probe that is not whole was cut; "" when it printed none
    too_long: Mapping[str, int] = field(default_factory=dict)  # characters that were not read, by section

    def get(self, name: str) -> str:
        """A section's text, "" when it is not there."""
        return self.texts.get(name, "")


def cut_sections(output: bytes) -> Sections:
    """Split what the phone printed; the last line of one that was cut is left out: half a number is a wrong one.

    Lines and sections that are longer than any phone's are left out too, so that no phone keeps a parser busy.
    """
    said = split_sections(_as_utf8(output))
    texts = {name: _bounded(text) for name, text in said.items()}
    too_long = {name: unread for name, text in said.items() if (unread := len(text) - len(texts[name])) > 0}
    names = [name for name in texts if name]
    if END in names:
        return Sections(texts, True, "", too_long)
    last = names[-1] if names else ""
    if last:
        head, newline, _ = texts[last].rpartition("\n")
        texts[last] = head + newline
    return Sections(texts, False, last, too_long)


def _bounded(text: str) -> str:
    """Its first lines that are not too long."""
    if len(text) > MAX_LINE_CHARACTERS:
        text = "\n".join(line for line in text.split("\n") if len(line) <= MAX_LINE_CHARACTERS)
    if len(text) > MAX_SECTION_CHARACTERS:
        text = text[: text.rfind("\n", 0, MAX_SECTION_CHARACTERS) + 1]
    return text


def _as_utf8(output: bytes) -> bytes:
    """UTF-16 without a byte order mark as UTF-8 (dumps that went through a Windows shell); anything else as it is."""
    for at, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(output) > 3 and not any(output[at:64:2]):
            return output.decode(encoding, "replace").encode("utf-8", "replace")
    return output
