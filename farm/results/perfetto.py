"""Traces for Perfetto (https://ui.perfetto.dev): tracks of slices and of numbers over time, as a `.pftrace` file. Pure.

A trace is protocol buffers: perfetto/trace/perfetto_trace.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from farm.common.protobuf import message_classes

NS = 1e9
_BEGIN, _END, _NUMBER = 1, 2, 4  # TrackEvent.Type
_CLEARED = 1  # SEQ_INCREMENTAL_STATE_CLEARED: the sequence begins
_KNOWN = message_classes(
    "perfetto",
    Trace={"packet": (1, "repeated TracePacket")},
    TracePacket={
        "timestamp": (8, "uint64"), "trusted_packet_sequence_id": (10, "uint32"), "track_event": (11, "TrackEvent"),
        "sequence_flags": (13, "uint32"), "track_descriptor": (60, "TrackDescriptor"),
    },
    TrackDescriptor={
        "uuid": (1, "uint64"), "name": (2, "string"), "parent_uuid": (5, "uint64"), "counter": (8, "CounterDescriptor"),
    },
    CounterDescriptor={"unit_name": (6, "string")},
    TrackEvent={
        "type": (9, "int32"), "track_uuid": (11, "uint64"), "name": (23, "string"),
        "double_counter_value": (44, "double"),
    },
)  # fmt: skip


Rows = Sequence[Mapping[str, Any]]  # `session.opened` and `session.ended` of a phone, newest first


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took a time, seconds since the trace begins."""

    name: str
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SliceTrack:
    """Slices that follow one another."""

    name: str
    slices: Sequence[Slice]


@dataclass(frozen=True, slots=True)
class NumberTrack:
    """A number over time: seconds since the trace begins, and its value."""

    name: str
    unit: str
    values: Sequence[tuple[float, float]]


def trace_bytes(title: str, tracks: Iterable[SliceTrack | NumberTrack]) -> bytes:
    """The content of a trace file; its tracks stand below one of that title. Tracks without content are left out."""
    trace = _KNOWN["Trace"]()
    _add(trace, sequence_flags=_CLEARED, track_descriptor={"uuid": 1, "name": title})
    for uuid, track in enumerate(tracks, 2):
        if isinstance(track, NumberTrack):
            about = {"counter": {"unit_name": track.unit}}
            events = [(at_s, {"type": _NUMBER, "double_counter_value": float(value)}) for at_s, value in track.values]
        else:
            about, events = {}, [event for each in track.slices for event in _begin_and_end(each)]
        if events:
            _add(trace, track_descriptor={"uuid": uuid, "name": track.name, "parent_uuid": 1, **about})
        for at_s, event in events:
            _add(trace, timestamp=max(0, round(at_s * NS)), track_event={"track_uuid": uuid, **event})
    return bytes(trace.SerializeToString())


def session_tracks(events: Mapping[str, Rows], began_at: datetime, span_s: float) -> list[SliceTrack]:
    """The TVM sessions of other phones while one measured: a track for each phone that had one.

    Args:
        events: by phone, as `events.newest` answers.
        began_at: when the measurement began.
        span_s: how long it took.
    """
    tracks = []
    for phone, rows in events.items():
        inside = [(name, max(0.0, begun_s), min(span_s, ended_s)) for name, begun_s, ended_s in _spans(rows, began_at)]
        slices = [Slice(name, begun_s, ended_s - begun_s) for name, begun_s, ended_s in inside if begun_s < ended_s]
        if slices:
            tracks.append(SliceTrack(f"{phone}, on the same hub", slices[::-1]))
    return tracks


def _spans(rows: Rows, began_at: datetime) -> Iterator[tuple[str, float, float]]:
    """The name, begin and end of each session, seconds since `began_at`; only the newest may still be open."""
    newest = True
    for row in rows:
        at_s = (datetime.fromisoformat(row["at"]) - began_at).total_seconds()
        name = f"session of {row['data']['user']}"
        if row["kind"] == "session.ended":
            yield name, at_s - row["data"]["seconds"], at_s
        elif row["kind"] == "session.opened" and newest:
            yield name, at_s, float("inf")
        newest = False


def _begin_and_end(each: Slice) -> tuple[tuple[float, dict[str, Any]], ...]:
    return (each.start_s, {"type": _BEGIN, "name": each.name}), (each.start_s + each.seconds, {"type": _END})


def _add(trace: Any, **fields: Any) -> None:
    trace.packet.add(trusted_packet_sequence_id=1, **fields)
