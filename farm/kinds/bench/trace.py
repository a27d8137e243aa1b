"""A bench as a trace: its samples, the reference kernel, the phone's condition, and the operators of one run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from farm.results.perfetto import NumberTrack, Slice, SliceTrack, trace_bytes

MS = 1e3
GHZ = 1e9
# Field of a phone's condition -> the track's name, the track's unit, and the divisor from the field's unit to that.
_CONDITIONS = {
    "temperature_c": ("temperature", "°C", 1.0),
    "clock_hz": ("highest clock of the fastest core", "GHz", GHZ),
    "gpu_clock_hz": ("highest clock of the GPU", "GHz", GHZ),
    "throttle_status": ("thermal status", "", 1.0),
    "battery_percent": ("battery", "%", 1.0),
    "neighbours": ("other phones at work on its hub", "", 1.0),
}


def span_of(result: Mapping[str, Any]) -> tuple[datetime, float]:
    """When the first try of a bench began, and the seconds of all of them."""
    tries = result["certificate"]["tries"]
    return datetime.fromisoformat(tries[0]["started_at"]), sum(each["seconds"] for each in tries)


def trace_of(result: Mapping[str, Any], raw: Mapping[str, Any], beside: Sequence[SliceTrack] = ()) -> bytes:
    """The trace file of a bench that is done.

    Args:
        result: of the bench.
        raw: the certificate's artifact, with every sample of every try.
        beside: the sessions of other phones on its hub.
    """
    certificate = result["certificate"]
    tries = [_try(said, taken) for said, taken in zip(certificate["tries"], raw["tries"], strict=True)]
    span_s = sum(each["span_s"] for each in tries)
    title = f"{certificate['model']} on {certificate['device']}, {result['target']}"
    return trace_bytes(
        title,
        [
            SliceTrack("samples", [each for one, at_s in _begun(tries) for each in _samples(one, at_s)]),
            NumberTrack("one run", "ms", [each for one, at_s in _begun(tries) for each in _times(one, at_s)]),
            NumberTrack("reference", "ms", [each for one, at_s in _begun(tries) for each in _readings(one, at_s)]),
            *condition_tracks(_moments(tries, certificate.get("conditions") or {}, span_s)),
            *beside,
            SliceTrack("operators of one run", list(_operators(result.get("profile") or {}, span_s))),
        ],
    )


def _try(said: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """The samples of one try, and how long it took."""
    last_s = taken["start_s"][-1] + taken["seconds"][-1] * taken["number"] if taken["seconds"] else 0.0
    return {**taken, "span_s": max(float(said.get("seconds") or 0.0), last_s)}


def _begun(tries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Each try with the time at which it began, seconds since the trace begins."""
    begun_s = 0.0
    for each in tries:
        yield each, begun_s
        begun_s += each["span_s"]


def _samples(taken: Mapping[str, Any], begun_s: float) -> Iterator[Slice]:
    for start_s, seconds in zip(taken["start_s"], taken["seconds"], strict=True):
        yield Slice(f"{taken['number']} runs", begun_s + start_s, seconds * taken["number"])


def _times(taken: Mapping[str, Any], begun_s: float) -> Iterator[tuple[float, float]]:
    for start_s, seconds in zip(taken["start_s"], taken["seconds"], strict=True):
        yield begun_s + start_s, seconds * MS


def _readings(taken: Mapping[str, Any], begun_s: float) -> Iterator[tuple[float, float]]:
    for start_s, seconds in zip(taken["start_s"], taken["reference_s"], strict=True):
        if seconds is not None and math.isfinite(seconds):
            yield begun_s + start_s, seconds * MS


def _moments(
    tries: Sequence[Mapping[str, Any]], conditions: Mapping[str, Any], span_s: float
) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """The phone's condition before, during and after all tries, with seconds since the trace begins."""
    yield 0.0, conditions.get("before") or {}
    for one, begun_s in _begun(tries):
        yield from ((begun_s + look["at_s"], look) for look in one.get("looks") or ())
    yield span_s, conditions.get("after") or {}


def condition_tracks(moments: Iterable[tuple[float, Mapping[str, Any]]]) -> Iterator[NumberTrack]:
    """A phone's conditions over time: seconds since the trace begins, and fields of a PhoneCondition."""
    looks = list(moments)
    for name, (title, unit, divisor) in _CONDITIONS.items():
        known = [(at_s, look[name] / divisor) for at_s, look in looks if look.get(name) is not None]
        yield NumberTrack(title, unit, known)


def _operators(profile: Mapping[str, Any], begun_s: float) -> Iterator[Slice]:
    """They were timed after the samples."""
    for each in profile.get("run") or ():
        yield Slice(each["name"], begun_s + each["start_us"] / 1e6, each["us"] / 1e6)
