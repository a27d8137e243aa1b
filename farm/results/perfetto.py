"""Traces for Perfetto (https://ui.perfetto.dev): tracks of slices and of numbers over time, as a `.pftrace` file. Pure.

A trace is protocol buffers (perfetto/trace/perfetto_trace.proto): the dozen fields that are needed are written here, so
that a trace needs no further package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

NS = 1e9
_PACKET = 1  # Trace
_TIMESTAMP, _SEQUENCE, _EVENT, _FLAGS, _DESCRIPTOR = 8, 10, 11, 13, 60  # TracePacket
_UUID, _NAME, _PARENT, _COUNTER = 1, 2, 5, 8  # TrackDescriptor
_UNIT = 6  # CounterDescriptor
_EVENT_TYPE, _TRACK, _EVENT_NAME, _VALUE = 9, 11, 23, 44  # TrackEvent
_BEGIN, _END, _NUMBER = 1, 2, 4  # TrackEvent.Type
_CLEARED = 1  # SEQ_INCREMENTAL_STATE_CLEARED: the sequence begins
_WHOLE, _DOUBLE, _BYTES = 0, 1, 2  # wire types


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
    packets = [_packet(field_bytes(_DESCRIPTOR, _track(1, title)), field_bytes(_FLAGS, _CLEARED))]
    for uuid, track in enumerate(tracks, 2):
        if isinstance(track, NumberTrack):
            unit = field_bytes(_COUNTER, field_bytes(_UNIT, track.unit))
            events = [_event(at_s, uuid, _NUMBER, field_bytes(_VALUE, float(value))) for at_s, value in track.values]
        else:
            unit, events = b"", [packet for each in track.slices for packet in _slice(each, uuid)]
        if events:
            packets += [_packet(field_bytes(_DESCRIPTOR, _track(uuid, track.name, 1) + unit)), *events]
    return b"".join(packets)


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


def _track(uuid: int, name: str, parent: int = 0) -> bytes:
    below = field_bytes(_PARENT, parent) if parent else b""
    return field_bytes(_UUID, uuid) + field_bytes(_NAME, name) + below


def _slice(each: Slice, uuid: int) -> tuple[bytes, bytes]:
    return (
        _event(each.start_s, uuid, _BEGIN, field_bytes(_EVENT_NAME, each.name)),
        _event(each.start_s + each.seconds, uuid, _END),
    )


def _event(at_s: float, uuid: int, kind: int, more: bytes = b"") -> bytes:
    event = field_bytes(_EVENT_TYPE, kind) + field_bytes(_TRACK, uuid) + more
    return _packet(field_bytes(_TIMESTAMP, max(0, round(at_s * NS))), field_bytes(_EVENT, event))


def _packet(*fields: bytes) -> bytes:
    return field_bytes(_PACKET, b"".join(fields) + field_bytes(_SEQUENCE, 1))


def field_bytes(number: int, value: float | str | bytes) -> bytes:
    """A field of a message, as its wire type says."""
    match value:
        case int():
            return _varint(number << 3 | _WHOLE) + _varint(value)
        case float():
            return _varint(number << 3 | _DOUBLE) + struct.pack("<d", value)
        case _:
            data = value.encode() if isinstance(value, str) else value
            return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
