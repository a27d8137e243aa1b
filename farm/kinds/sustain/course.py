"""The course of a sustained run: samples without a pause, looks at the phone between them, and what both say. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

from farm.measure.conditions import PhoneCondition
from farm.measure.interval import MedianEstimate
from farm.measure.series import series
from farm.measure.sustained import BUCKET_S, SustainedSpeed, sustained
from farm.worker.timing import Clock, Timer, first_runs, looks_to_wire, runs_per_sample

SAMPLE_S = 0.25  # 7,200 in half an hour
MIN_SAMPLES = 200  # of a short run, whose samples are shorter
MIN_BUCKETS = 10  # likewise
LOOK_EVERY_S = 15.0  # a look takes the phone a fifth of a second, in which it has nothing to do
MIN_LOOKS = 20


@dataclass(slots=True)
class Course:
    """What was seen, in the order of time. Seconds count from the beginning of the run."""

    number: int  # runs in a sample
    seconds: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    looks: list[tuple[float, PhoneCondition]] = field(default_factory=list)
    stopped: str = ""  # why it ended before its time
    watts: list[float | None] = field(default_factory=list)  # between one look and the next; None: not known

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "number": self.number,
            "seconds": [round(value, 10) for value in self.seconds],
            "start_s": [round(value, 3) for value in self.start_s],
            "looks": looks_to_wire(self.looks),
            "watts": self.watts,
        }


def run_through(
    timer: Timer,
    look: Callable[[], PhoneCondition],
    sustain_s: float,
    stop_c: float,
    *,
    clock: Clock = time.monotonic,
    on_look: Callable[[Course], None] = lambda _: None,
) -> Course:
    """Run a model without a pause for so long.

    Args:
        timer: the model.
        look: reads the phone's condition.
        sustain_s: seconds.
        stop_c: the run ends when the battery is so warm.
        clock: monotonic seconds.
        on_look: is called after each look.

    Raises:
        PhoneError: the phone failed.
    """
    course = Course(runs_per_sample(min(first_runs(timer)), min(SAMPLE_S, sustain_s / MIN_SAMPLES)))
    began_s, next_look_s = clock(), 0.0
    while not course.seconds or clock() - began_s < sustain_s:
        now_s = clock() - began_s
        if now_s >= next_look_s:
            course.looks.append((now_s, look()))
            on_look(course)
            next_look_s = now_s + min(LOOK_EVERY_S, sustain_s / MIN_LOOKS)
            celsius = course.looks[-1][1].temperature_c
            if celsius is not None and celsius >= stop_c and course.seconds:
                course.stopped = f"the battery reached {celsius:.1f} °C, and a run ends at {stop_c:g} °C"
                break
        course.start_s.append(clock() - began_s)
        course.seconds += timer(course.number, 1)
    course.looks.append((clock() - began_s, look()))
    return course


def report(course: Course, sustain_s: float) -> dict[str, Any]:
    """The fields of the result that the course gives."""
    bucket_s = min(BUCKET_S, sustain_s / MIN_BUCKETS)
    found = sustained(series(course.seconds, course.start_s), bucket_s)
    return {
        "buckets": [
            {"start_s": each.start_s, **_ms(each.estimate), **_during(course, each.start_s, each.start_s + bucket_s)}
            for each in found.buckets
        ],
        "bucket_s": bucket_s,
        "fresh": _ms(found.fresh),
        "throttled_after_s": found.throttled_after_s,
        "plateau": None if found.plateau is None else _plateau(course, found, found.plateau),
        "slowdown": found.slowdown,
        "seconds": course.looks[-1][0],
        "wanted_s": sustain_s,
        "stopped": course.stopped,
    }


def _plateau(course: Course, found: SustainedSpeed, plateau: MedianEstimate) -> dict[str, Any]:
    from_s = found.plateau_from_s or 0.0
    return {"from_s": from_s, **_ms(plateau), **_during(course, from_s, course.looks[-1][0])}


def _ms(estimate: MedianEstimate) -> dict[str, Any]:
    found = estimate.to_ms()
    return {**{name: found[name] for name in ("median_ms", "low_ms", "high_ms")}, "count": estimate.count}


def _during(course: Course, from_s: float, to_s: float) -> Mapping[str, Any]:
    return {**_state(course, from_s, to_s), **_power(course, from_s, to_s)}


def _power(course: Course, from_s: float, to_s: float) -> Mapping[str, Any]:
    """The mean power in a stretch, and the joules of a run: those of the idle phone are among them."""
    middles_s = [(begin + end) / 2 for (begin, _), (end, _) in pairwise(course.looks)]
    watts = [each for at_s, each in zip(middles_s, course.watts, strict=False) if from_s <= at_s < to_s and each]
    runs_s = [each for at_s, each in zip(course.start_s, course.seconds, strict=True) if from_s <= at_s < to_s]
    if not watts or not runs_s:
        return {"busy_w": None, "gross_j": None}
    return {"busy_w": fmean(watts), "gross_j": fmean(watts) * fmean(runs_s)}


def _state(course: Course, from_s: float, to_s: float) -> Mapping[str, Any]:
    """The highest temperature and thermal status that were read in a stretch, or last before it."""
    inside = [each for at_s, each in course.looks if from_s <= at_s <= to_s]
    seen = inside or [each for at_s, each in course.looks if at_s <= to_s][-1:]
    return {
        "celsius": max((each.temperature_c for each in seen if each.temperature_c is not None), default=None),
        "throttle_status": max(
            (each.throttle_status for each in seen if each.throttle_status is not None), default=None
        ),
    }
