"""Power by a phone's own power rails: a trace of its `perfetto` in, readings of each rail out. Pure.

A rail is a wire from a regulator to a part of the chip, and the phone counts the energy that went through it (data
source `android.power`; protos/perfetto/trace/power/power_rails.proto). One rail may feed another, so their sum means
nothing: counted are the rails whose names say CPU, GPU, accelerator or memory, which are taken not to feed one another,
and never one whose name says that it is the battery's own voltage, from which all regulators are fed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

from farm.measure.energy import PowerReading

POLL_S = 0.25  # of the phone's perfetto; it polls ten times a second at most
MIN_CHANGES = 4  # of a rail's counter, from which its period is known
RAILS_SETTLE_PERIODS = (
    1.0  # a reading is exact from one count to the next; this covers how well two clocks are compared
)
MAX_W = 25.0  # of a phone
MAX_APART_S = 2.0  # between the counts' time and the phone's uptime
_COUNTED = re.compile(r"CPU|GPU|G3D|TPU|NPU|DDR|MEM|MIF|VDDQ|VDD2", re.IGNORECASE)
_FEEDS_OTHERS = re.compile(r"VSYS|VPH|VBAT|BATT", re.IGNORECASE)
_MAX_RAILS = 256
_MAX_MS, _MAX_MICROJOULES = 1 << 43, 1 << 63


@dataclass(slots=True)
class PowerRail:
    """A rail and what it counted; a count that the one before has too is left out."""

    index: int  # the phone's number of it
    name: str
    subsystem: str
    counts: list[tuple[float, int]] = field(default_factory=list)  # seconds of the phone's uptime, microjoules so far

    @property
    def counted(self) -> bool:
        """Whether it is one of those that make up the joules; phones name rails, too, that they do not count."""
        return bool(
            self.counts and _COUNTED.search(f"{self.subsystem} {self.name}") and not _FEEDS_OTHERS.search(self.name)
        )

    def watts(self) -> float:
        """The mean over all counts."""
        (begun_s, first), (ended_s, last) = self.counts[0], self.counts[-1]
        return (last - first) / 1e6 / (ended_s - begun_s)


@dataclass(frozen=True, slots=True)
class UptimeClock:
    """A phone's uptime against this host's clock, as compared at the begin of a trace and at its end."""

    begun: tuple[float, float]  # seconds since 1970 by this host, seconds of uptime
    ended: tuple[float, float]

    def host_s(self, uptime_s: float) -> float:
        """Seconds since 1970 by this host's clock; both clocks may drift apart evenly."""
        (begun_s, begun_up_s), (ended_s, ended_up_s) = self.begun, self.ended
        rate = (ended_s - begun_s) / (ended_up_s - begun_up_s) if ended_up_s > begun_up_s else 1.0
        return begun_s + (uptime_s - begun_up_s) * rate


def read_rails(trace: bytes, before: Sequence[PowerRail] = ()) -> list[PowerRail]:
    """The rails of a trace in the phone's order.

    `before`: those of the trace before it. Their last counts are the first ones here: phones count in between.

    Raises:
        ValueError: it is no trace, or a counter went back; the message is a clause.
    """
    rails = {each.index: replace(each, counts=each.counts[-1:]) for each in before}
    found = _power_rails(trace)
    for descriptor in (each for message in found for each in message.rail_descriptor):
        index = descriptor.index
        if index not in rails and len(rails) < _MAX_RAILS:
            name = _text(descriptor.rail_name)
            if not name or any(rail.name == name for rail in rails.values()):
                name = f"{name or 'rail'} {index}"
            rails[index] = PowerRail(index, name, _text(descriptor.subsys_name))
    for count in (each for message in found for each in message.energy_data):
        if (rail := rails.get(count.index)) is not None:
            _append(rail, count.timestamp_ms, count.energy)
    return list(rails.values())


def period_of(trace: bytes, uptime_s: float) -> float | str:
    """Seconds between two counts of the rails, by a trace of a few seconds; a str: why they do not serve, a clause.

    `uptime_s`: of the phone when the trace ended.
    """
    try:
        rails = read_rails(trace)
    except ValueError as error:
        return str(error)
    if not rails:
        return "its perfetto names none"
    counted = [rail for rail in rails if rail.counted]
    if not counted:
        names = ", ".join(rail.name for rail in rails[:8])
        return f"none is known as one of CPU, GPU, accelerator or memory alone: {names[:300]}"
    if fewest := next((rail for rail in counted if len(rail.counts) <= MIN_CHANGES), None):
        return f"{fewest.name} was counted {len(fewest.counts)} times in a few seconds"
    apart_s = max(abs(uptime_s - rail.counts[-1][0]) for rail in counted)
    if apart_s > MAX_APART_S:
        return f"their time is {apart_s:.0f} s from the phone's uptime"
    watts = sum(rail.watts() for rail in counted)
    if not 0 < watts <= MAX_W:
        return f"they add up to {watts:.3g} W, which is no phone's power"
    return max(median(after - before for (before, _), (after, _) in pairwise(rail.counts)) for rail in counted)


def readings_of(rail: PowerRail, clock: UptimeClock) -> list[PowerReading]:
    """Each count but the first as the mean power since the one before."""
    return [
        PowerReading(clock.host_s(after_s), (after - before) / 1e6 / (after_s - before_s), rail=rail.name)
        for (before_s, before), (after_s, after) in pairwise(rail.counts)
    ]


def _append(rail: PowerRail, at_ms: int, microjoules: int) -> None:
    if at_ms > _MAX_MS or microjoules > _MAX_MICROJOULES:
        raise ValueError(f"the counter of {rail.name} shows {microjoules} µJ at {at_ms} ms")
    at_s = at_ms / 1e3
    if rail.counts:
        before_s, before = rail.counts[-1]
        if at_s < before_s or microjoules < before:
            raise ValueError(f"the counter of {rail.name} went back")
        if at_s == before_s:
            return
    rail.counts.append((at_s, microjoules))


def _text(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return "".join(each if each.isprintable() else "?" for each in text)[:80]


@cache
def _trace_class() -> Any:
    from farm.common.protobuf import message_classes

    known = message_classes(
        "rails",
        Trace={"packet": (1, "repeated TracePacket")},
        TracePacket={"power_rails": (40, "PowerRails")},
        PowerRails={"rail_descriptor": (1, "repeated RailDescriptor"), "energy_data": (2, "repeated EnergyData")},
        RailDescriptor={"index": (1, "uint32"), "rail_name": (2, "bytes"), "subsys_name": (3, "bytes")},
        EnergyData={"index": (1, "uint32"), "timestamp_ms": (2, "uint64"), "energy": (3, "uint64")},
    )
    return known["Trace"]


def _power_rails(trace: bytes) -> list[Any]:
    """The messages of a trace that name rails or count."""
    from farm.common.protobuf import DecodeError

    try:
        packets = _trace_class().FromString(trace).packet
    except DecodeError as error:
        raise ValueError("its perfetto printed no trace") from error
    return [packet.power_rails for packet in packets if packet.HasField("power_rails")]
