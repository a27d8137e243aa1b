"""A bench as a trace: read back as protocol buffers, and by Perfetto's own where its package is installed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from typing import Any

import pytest

from farm.kinds.bench.trace import trace_of
from farm.kinds.sustain.trace import trace_of as sustained_trace
from farm.results.perfetto import NumberTrack, Slice, SliceTrack, session_tracks, trace_bytes

RESULT = {
    "target": "cpu",
    "certificate": {
        "model": "net.onnx", "device": "pixel", "tries": [{"seconds": 2.0}, {"seconds": 1.0}],
        "conditions": {
            "before": {"temperature_c": 30.0, "clock_hz": 2.4e9, "neighbours": 0}, "after": {"temperature_c": 31.5},
        },
    },
    "profile": {
        "run": [{"name": "conv", "start_us": 0.0, "us": 150.0}, {"name": "relu", "start_us": 150.0, "us": 5.0}],
    },
}  # fmt: skip
LOOK = {"at_s": 0.5, "temperature_c": 31.0, "clock_hz": 1.8e9}
FORMER = {"number": 10, "seconds": [1e-3, 2e-3], "start_s": [0.0, 0.5], "reference_s": [1e-3, None]}  # an older release
TRY = {"number": 5, "seconds": [1e-3], "start_s": [0.25], "reference_s": [2e-3], "looks": [LOOK]}
RAW = {"tries": [FORMER, TRY]}
BARE = {"target": "cpu", "certificate": {"model": "m", "device": "d", "tries": [{}]}}
LOOKS = [{"at_s": 0.0, "temperature_c": 30.0}, {"at_s": 15.0, "temperature_c": 34.0}, {"at_s": 30.0}]
SUSTAINED = {"number": 5, "seconds": [1e-3, 2e-3], "start_s": [0.2, 15.2], "looks": LOOKS, "watts": [2.5, None]}
SUSTAINED_FORMER = {"number": 5, "seconds": [1e-3], "start_s": [0.2], "celsius": [[0.0, 30.0]]}


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message, as protobuf's encoding has them."""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    at = 0
    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        elif kind == 1:
            yield number, struct.unpack("<d", data[at : at + 8])[0]
            at += 8
        else:
            assert kind == 2
            size = varint()
            yield number, data[at : at + size]
            at += size


def events(trace: bytes) -> dict[str, list[tuple[int, int, Any]]]:
    """By track: time in ns, type, name or value."""
    names: dict[int, str] = {}
    found: dict[str, list[tuple[int, int, Any]]] = {}
    for number, packet in fields(trace):
        assert number == 1
        parts = dict(fields(packet))
        assert parts[10] == 1
        if described := parts.get(60):
            track = dict(fields(described))
            names[track[1]] = track[2].decode()
        if event := parts.get(11):
            about = dict(fields(event))
            said = about[23].decode() if 23 in about else about.get(44)
            found.setdefault(names[about[11]], []).append((parts[8], about[9], said))
    return {names[1]: [], **found}


@pytest.mark.parametrize(
    ("name", "trace"),
    [
        ("a bench, one thing after the other", trace_of(RESULT, RAW)),
        ("a bench without a profile or conditions", trace_of(BARE, {"tries": [FORMER]})),
        ("a sustained run with its conditions and its power", sustained_trace(RESULT, SUSTAINED)),
        ("a sustained run of a former release", sustained_trace(RESULT, SUSTAINED_FORMER)),
    ],
)
def test_trace(snapshot, name, trace):
    """By track: time in ns, type, name or value."""
    snapshot("\n".join("\n  ".join([track, *map(str, found)]) for track, found in events(trace).items()), name)


def session(kind: str, minute: int, second: int, **data: Any) -> dict[str, Any]:
    at = f"2026-11-27T21:{minute:02}:{second:02}+00:00"
    return {"kind": f"session.{kind}", "at": at, "data": {"user": "ann", **data}}


def test_sessions_of_phones_on_the_same_hub_stand_beside() -> None:
    began_at = datetime.fromisoformat("2026-11-27T21:01:00+00:00")
    twin = [
        session("opened", 1, 50), session("ended", 1, 40, seconds=5.0), session("opened", 1, 35),
        session("ended", 1, 10, seconds=30.0), session("opened", 0, 40), session("ended", 0, 30, seconds=5.0),
    ]  # fmt: skip
    rows = {"twin": twin, "idle": [session("ended", 3, 0, seconds=5.0)], "none": []}
    (track,) = session_tracks(rows, began_at, 60.0)
    assert track.name == "twin, on the same hub"
    assert [(each.name, each.start_s, each.seconds) for each in track.slices] == [
        ("session of ann", 0.0, 10.0), ("session of ann", 35.0, 5.0), ("session of ann", 50.0, 10.0),
    ]  # fmt: skip
    for trace in (trace_of(RESULT, RAW, [track]), sustained_trace(RESULT, SUSTAINED_FORMER, [track])):
        assert track.name in events(trace)


@pytest.mark.skipif(find_spec("perfetto") is None, reason="perfetto not found: pip install perfetto")
def test_perfetto_reads_it() -> None:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    tracks = [SliceTrack("ünits", [Slice("a", 0.5, 0.25)]), NumberTrack("n", "ms", [(300.0, -1.5)])]
    trace = protos.Trace.FromString(trace_bytes("title", tracks))
    assert [each.track_descriptor.name for each in trace.packet if each.HasField("track_descriptor")] == [
        "title", "ünits", "n",
    ]  # fmt: skip
    kinds = protos.TrackEvent
    assert [
        (each.timestamp, each.track_event.type, each.track_event.track_uuid, each.track_event.name)
        for each in trace.packet
        if each.HasField("track_event")
    ] == [
        (500_000_000, kinds.TYPE_SLICE_BEGIN, 2, "a"),
        (750_000_000, kinds.TYPE_SLICE_END, 2, ""),
        (300_000_000_000, kinds.TYPE_COUNTER, 3, ""),
    ]
    assert trace.packet[-1].track_event.double_counter_value == -1.5
    assert trace.packet[-2].track_descriptor.counter.unit_name == "ms"
