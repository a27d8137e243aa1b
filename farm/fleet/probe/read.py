"""Ask a phone for its health: one shell round trip, bounded, and what came before it got stuck is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from farm.adb.errors import AdbTimeout
from farm.adb.shell import ShellStream
from farm.core.health import Health
from farm.fleet.probe.command import SECTIONS, probe_command
from farm.fleet.probe.parse import health_of
from farm.fleet.probe.sections import cut_sections

READ_TIMEOUT_S = 15.0  # generous on purpose: two dumpsys calls of at most 4 s each, and no real phone was measured
MAX_OUTPUT_BYTES = 256 << 10  # twenty times what a phone with 79 zones prints
_MANY_BYTES = 32 << 10  # parsed beside the event loop: no phone keeps the others waiting


class Shells(Protocol):
    """The part of `farm.adb.client.AdbClient` that a probe needs."""

    async def open_shell(self, serial: str, command: str, *, timeout_s: float) -> ShellStream:
        """Start a command on the phone."""


@dataclass(frozen=True, slots=True)
class Probed:
    """One probe, and the section in which the phone got stuck ("" when it came to its end)."""

    health: Health
    stuck_in: str = ""


async def probe(
    client: Shells, serial: str, sections: Collection[str] = SECTIONS, *, timeout_s: float = READ_TIMEOUT_S
) -> Probed:
    """What a probe tells, in one shell round trip; sections that are not asked for are as unknown.

    Raises:
        AdbTimeout: the phone said nothing in time.
        AdbError: the phone or the adb server did not do its part.
    """
    output = await raw_probe(client, serial, sections, timeout_s=timeout_s)
    if len(output) > _MANY_BYTES:
        return await asyncio.to_thread(_read, output, sections)
    return _read(output, sections)


def _read(output: bytes, sections: Collection[str]) -> Probed:
    parts = cut_sections(output)
    return Probed(health_of(parts, sections), "" if parts.whole else parts.last)


async def raw_probe(
    client: Shells, serial: str, sections: Collection[str] = SECTIONS, *, timeout_s: float = READ_TIMEOUT_S
) -> bytes:
    """What the phone prints, as it came; cut where the phone got stuck.

    Raises:
        AdbTimeout: the phone said nothing in time.
        AdbError: the phone or the adb server did not do its part.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    output = bytearray()
    async with await client.open_shell(serial, probe_command(sections), timeout_s=timeout_s) as stream:
        await stream.close_stdin()
        try:
            while chunk := await stream.read(timeout_s=deadline - asyncio.get_running_loop().time()):
                output += chunk[: MAX_OUTPUT_BYTES - len(output)]
                if len(output) == MAX_OUTPUT_BYTES:
                    break
        except AdbTimeout:
            if not output:
                raise
    return bytes(output)
