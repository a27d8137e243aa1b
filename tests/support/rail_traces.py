"""Traces of power rails, made by Perfetto's own protos."""

import pytest

pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="perfetto is not installed")
NAMES = (
    ("S2M_VDD_CPUCL2", "CPU(BIG)"),
    ("S2S_VDD_G3D", "GPU"),
    ("VSYS_PWR_DISPLAY", "Display"),
    ("VPH_PWR_CPU", "CPU"),
    ("S10M_VDD_TPU", "TPU"),
)
UPTIME_S = 5000.0


def trace(counts, names=NAMES):
    """A trace of packets, each of `counts`: (ms, microjoules of each rail); descriptors come in the first one."""
    made = pb2.Trace()
    made.packet.add().clock_snapshot.primary_trace_clock = 6
    for number, (at_ms, energies) in enumerate(counts):
        packet = made.packet.add(timestamp=at_ms * 10**6, trusted_packet_sequence_id=7)
        rails = packet.power_rails
        for index, (rail, subsystem) in enumerate(names if number == 0 else ()):
            rails.rail_descriptor.add(index=index, rail_name=rail, subsys_name=subsystem, sampling_rate=1023)
        for index, energy in enumerate(energies):
            rails.energy_data.add(index=index, timestamp_ms=at_ms, energy=energy)
    return made.SerializeToString()


def steady(watts, polls=16, begun_ms=4_996_000, poll_ms=250):
    """Counters that have counted for long, at that power of each rail."""
    return [
        (begun_ms + poll_ms * poll, [10**12 + round(each * poll_ms * 1e3) * poll for each in watts])
        for poll in range(polls + 1)
    ]
