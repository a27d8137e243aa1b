"""A virtual phone's power rails: what its parts took so far, in files that its `perfetto` copies into traces.

The names are those of a Pixel 6. One rail feeds the others, as on many phones: who adds all of them counts twice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from farm.results.perfetto import field_bytes
from farm.simulation.state import state_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Name, subsystem, and the part of the physics; "": the sum of all.
RAILS = (
    ("VSYS_PWR_MAIN", "Battery", ""),
    ("S2M_VDD_CPUCL2", "CPU", "cpu"),
    ("S2S_VDD_G3D", "GPU", "gpu"),
    ("PPVAR_VSYS_PWR_DISP", "Display", "screen"),
)
MODES = ("there", "none", "reset", "refused", "garbage", "hang")
_PACKET, _SEQUENCE, _POWER_RAILS = 1, 10, 40  # of Trace, TracePacket (perfetto/trace/perfetto_trace.proto)
_NAMES, _COUNTS, _PERFETTO = "power_rails.names", "power_rails.counts", "perfetto"


class PowerRails:
    """Of one phone; it has none until it is told to."""

    def __init__(self, phone_directory: Path) -> None:
        self._folder = state_folder(phone_directory)
        self._joules: dict[str, float] | None = None

    def set_mode(self, mode: str) -> None:
        """One of MODES; `reset`: the counters begin at 0 again, the last three are `perfetto`'s."""
        self._write(_PERFETTO, mode.encode() + b"\n")
        if mode == "none":
            self._joules = None
        elif mode == "reset" or self._joules is None:
            self._joules = dict.fromkeys((part for _, _, part in RAILS), 0.0)
        names = b"" if mode == "none" else _packet(*(_descriptor(*each) for each in enumerate(RAILS)))
        self._write(_NAMES, names)
        self._write(_COUNTS, b"")

    def count(self, watts: Mapping[str, float], seconds: float, uptime_s: float) -> None:
        """So much went to each part in the seconds until `uptime_s`."""
        if self._joules is None:
            return
        for part in self._joules:
            self._joules[part] += (watts.get(part, 0.0) if part else sum(watts.values())) * seconds
        counts = (
            field_bytes(2, _fields(index, round(uptime_s * 1e3), round(self._joules[part] * 1e6)))
            for index, (_, _, part) in enumerate(RAILS)
        )
        self._write(_COUNTS, _packet(*counts))

    def _write(self, name: str, data: bytes) -> None:
        temporary = self._folder / f".{name}.{os.getpid()}"
        temporary.write_bytes(data)
        temporary.replace(self._folder / name)


def _descriptor(index: int, rail: tuple[str, str, str]) -> bytes:
    return field_bytes(1, _fields(index, rail[0], rail[1], 1023))


def _packet(*messages: bytes) -> bytes:
    return field_bytes(_PACKET, field_bytes(_SEQUENCE, 1) + field_bytes(_POWER_RAILS, b"".join(messages)))


def _fields(*values: int | str) -> bytes:
    """A message whose fields have the numbers 1, 2 ..."""
    return b"".join(field_bytes(number, value) for number, value in enumerate(values, 1))
