"""A sustained run as a trace: its samples, the phone's condition between them, and its power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from farm.kinds.bench.trace import condition_tracks
from farm.results.perfetto import NumberTrack, Slice, SliceTrack, trace_bytes

MS = 1e3


def span_of(result: Mapping[str, Any]) -> tuple[datetime, float]:
    """When a run began, and its seconds."""
    return datetime.fromisoformat(result["certificate"]["started_at"]), float(result["seconds"])


def trace_of(result: Mapping[str, Any], raw: Mapping[str, Any], beside: Sequence[SliceTrack] = ()) -> bytes:
    """The trace file of a sustained run that is done.

    Args:
        result: of the run.
        raw: the certificate's artifact, with every sample; one of a former release has no conditions.
        beside: the sessions of other phones on its hub.
    """
    certificate, number = result["certificate"], raw["number"]
    samples = list(zip(raw["start_s"], raw["seconds"], strict=True))
    looks = [(float(look["at_s"]), look) for look in raw.get("looks") or ()]
    powers = zip(pairwise(at_s for at_s, _ in looks), raw.get("watts") or (), strict=False)
    return trace_bytes(
        f"{certificate['model']} on {certificate['device']}, {result['target']}",
        [
            SliceTrack("samples", [Slice(f"{number} runs", at_s, seconds * number) for at_s, seconds in samples]),
            NumberTrack("one run", "ms", [(at_s, seconds * MS) for at_s, seconds in samples]),
            *condition_tracks(looks),
            NumberTrack("power", "W", [(begun_s, watts) for (begun_s, _), watts in powers if watts is not None]),
            *beside,
        ],
    )
