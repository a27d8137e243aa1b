"""Several reads in one shell round trip: a command prints its parts under section lines, we split them again."""

from __future__ import annotations

from typing import Protocol

from farm.fleet.getprop import decode

SECTION = "==farm:"  # starts a line that nothing a phone prints about itself starts with


class Shell(Protocol):
    """The part of `farm.adb.client.AdbClient` that one-round-trip readers need."""

    async def shell(self, serial: str, command: str, *, timeout_s: float, most_bytes: int) -> ShellOutput:
        """Run a command on the phone to its end; one that prints more fails."""


class ShellOutput(Protocol):
    """What a command printed."""

    @property
    def stdout(self) -> bytes:
        """Bytes of standard output."""


def split_sections(output: bytes, *, last: str = "") -> dict[str, str]:
    """Split what a command printed at its section lines.

    Args:
        output: standard output, as raw as the phone sent it.
        last: the section after which no other is taken for one; for text that is not ours to trust (property values).

    Returns:
        Section name -> its lines. What precedes the first section line (a login banner) is under an empty name.
    """
    sections: dict[str, list[str]] = {}
    name = ""
    for line in decode(output).split("\n"):
        if line.startswith(SECTION) and not (last and name == last):
            name = line.removeprefix(SECTION).strip()
        else:
            sections.setdefault(name, []).append(line)
    return {name: "\n".join(lines) for name, lines in sections.items()}
