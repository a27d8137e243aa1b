"""A virtual phone's power rails: what its parts took so far, in files that its `perfetto` copies into traces.

The names are those of a Pixel 6. One rail feeds the others, as on many phones: who adds all of them counts twice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from farm.common.protobuf import message_classes
from farm.simulation.state import state_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Name, subsystem, and the part of the physics; "": the sum of all.
RAILS = (
    ("VSYS_PWR_MAIN", "Battery", ""),
    ("S2M_VDD_CPUCL2", "CPU", "cpu"),
    ("S2S_VDD_G3D", "GPU", "gpu"),
    ("PPVAR_VSYS_PWR_DISP", "Display", "screen"),
)
MODES = ("there", "none", "reset", "refused", "garbage", "hang")
_TRACE = message_classes(  # protos/perfetto/trace/perfetto_trace.proto
    "virtual_rails",
    Trace={"packet": (1, "repeated TracePacket")},
    TracePacket={"trusted_packet_sequence_id": (10, "uint32"), "power_rails": (40, "PowerRails")},
    PowerRails={"rail_descriptor": (1, "repeated RailDescriptor"), "energy_data": (2, "repeated EnergyData")},
    RailDescriptor={
        "index": (1, "uint32"), "rail_name": (2, "string"), "subsys_name": (3, "string"),
        "sampling_rate": (4, "uint32"),
    },
    EnergyData={"index": (1, "uint32"), "timestamp_ms": (2, "uint64"), "energy": (3, "uint64")},
)["Trace"]  # fmt: skip
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
        rails = [
            {"index": index, "rail_name": name, "subsys_name": subsystem, "sampling_rate": 1023}
            for index, (name, subsystem, _) in enumerate(RAILS)
        ]
        self._write(_NAMES, b"" if mode == "none" else _packet(rail_descriptor=rails))
        self._write(_COUNTS, b"")

    def count(self, watts: Mapping[str, float], seconds: float, uptime_s: float) -> None:
        """So much went to each part in the seconds until `uptime_s`."""
        if self._joules is None:
            return
        for part in self._joules:
            self._joules[part] += (watts.get(part, 0.0) if part else sum(watts.values())) * seconds
        at_ms = round(uptime_s * 1e3)
        counts = [
            {"index": index, "timestamp_ms": at_ms, "energy": round(self._joules[part] * 1e6)}
            for index, (_, _, part) in enumerate(RAILS)
        ]
        self._write(_COUNTS, _packet(energy_data=counts))

    def _write(self, name: str, data: bytes) -> None:
        temporary = self._folder / f".{name}.{os.getpid()}"
        temporary.write_bytes(data)
        temporary.replace(self._folder / name)


def _packet(**power_rails: Sequence[Mapping[str, object]]) -> bytes:
    packet = {"trusted_packet_sequence_id": 1, "power_rails": power_rails}
    return bytes(_TRACE(packet=[packet]).SerializeToString())
