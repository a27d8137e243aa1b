"""The TVM sessions of other phones while one measured, as tracks of its trace. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from farm.results.perfetto import Slice, SliceTrack

Rows = Sequence[Mapping[str, Any]]  # `session.opened` and `session.ended` of a phone, newest first


def session_tracks(events: Mapping[str, Rows], began_at: datetime, span_s: float) -> list[SliceTrack]:
    """A track for each phone that had a session then.

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
