"""The sustain worker: one build that runs without a pause. `main` runs in the zygote's fork."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from farm.common.durations import format_duration
from farm.common.errors import FarmError
from farm.kinds.energy import PowerSource
from farm.kinds.energy.meter import Meter, opened_meter
from farm.kinds.sustain import MINUTE_S, SustainTask, doubts
from farm.measure.conditions import Conditions, PhoneCondition, verdict_fields
from farm.measure.energy import PowerReading, window
from farm.measure.interval import MedianEstimate
from farm.measure.metrics import END_LATENCY, SLOWDOWN, values_of
from farm.measure.series import series
from farm.measure.sustained import BUCKET_S, SustainedSpeed, sustained
from farm.model.specs import task_from_wire
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import VIRTUAL, checked_model, circumstances, plain
from farm.worker.session import place
from farm.worker.timing import MS, Clock, Timer, first_runs, looks_to_wire, runs_per_sample

REPORT_EVERY = 4  # looks
SHORT = "a run below ten minutes: the phone may become warmer yet, and slower than this plateau"
SAMPLE_S = 0.25  # 7,200 in half an hour
MIN_SAMPLES = 200  # of a short run, whose samples are shorter
MIN_BUCKETS = 10  # likewise
SHORT_S = MIN_BUCKETS * MINUTE_S
LOOK_EVERY_S = 15.0  # a look takes the phone a fifth of a second, in which it has nothing to do
MIN_LOOKS = 20


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Run one model on one phone for as long as the spec says."""
    task = task_from_wire(SustainTask, payload)
    with checked_model(task, daemon) as model, run_power(task.power, daemon) as power:
        threads = [place(model.session, daemon, each).words for each in task.placements]
        started_at = datetime.now(UTC)
        course = run_through(
            model.timer(), power.around(daemon.conditions), task.spec.sustain_s, task.stop_c,
            on_look=partial(_report_progress, daemon, task.spec.sustain_s),
        )  # fmt: skip
        power.end()
    course.watts, short = power.watts, task.spec.sustain_s < SHORT_S
    looks = [condition for _, condition in course.looks]
    conditions = Conditions(looks[0], tuple(looks[1:-1]), looks[-1])
    found = plain(report(course, task.spec.sustain_s))
    certificate = {
        **circumstances(model.built, task, conditions, started_at),
        **verdict_on(found),
        "method": f"for {format_duration(task.spec.sustain_s).replace(' ', '')}",
        "placement": "".join(threads),
        "meter": (meter := power.about()),
        "notes": [
            *threads,
            *([SHORT] if short else []),
            *(task.power.notes() if meter else ()),
            *power.notes(),
            *([VIRTUAL] if task.virtual else []),
        ],
        "raw": daemon.put_artifact(json.dumps(plain(course.to_wire())).encode()),
    }
    return {**model.numerics, **model.built.about(), **found, "certificate": certificate}


def _report_progress(daemon: DaemonChannel, sustain_s: float, course: Course) -> None:
    if len(course.looks) % REPORT_EVERY != 1:
        return
    at_s, now = course.looks[-1]
    warm = "" if now.temperature_c is None else f", battery {now.temperature_c:.1f} °C"
    daemon.progress(f"running, {format_duration(at_s)} of {format_duration(sustain_s)}{warm}")


class RunPower:
    """The mean power of each stretch between two looks, in `watts` once it has ended; None: it is not known.

    Of the readings it keeps those of stretches that a batch does not cover yet.
    """

    def __init__(self, meter: Meter | None, why_not: str = "", clock: Callable[[], float] = time.time) -> None:
        """`meter` None: nothing measures the power, for the reason `why_not`. `clock`: the one of the readings."""
        self.watts: list[float | None] = []
        self.period_s: float | None = None
        self._meter, self._why_not, self._clock = meter, why_not, clock
        self._begun_s: float | None = None
        self._stretches: deque[tuple[float, float]] = deque()  # that await their readings
        self._readings: list[PowerReading] = []
        if meter is not None:
            with self._noting_failure():
                self.period_s = meter.period_s()

    def around(self, look: Callable[[], PhoneCondition]) -> Callable[[], PhoneCondition]:
        """A look at the phone that ends a stretch before it, and begins the next one after it."""

        def looked() -> PhoneCondition:
            if self._begun_s is not None:
                self._stretches.append((self._begun_s, self._clock()))
                self._read(self._begun_s)  # what is there: the phone must not wait for a meter
                self._take(to_end=False)
            found = look()
            self._begun_s = self._clock()
            return found

        return looked

    def end(self) -> None:
        """Read what is left; the last look was the run's end."""
        if self._stretches:
            self._read(self._stretches[-1][1], rest=True)
        self._take(to_end=True)
        if self.period_s is not None and not self._why_not and not any(self.watts):
            self._why_not = f"a reading every {self.period_s:.3g} s is too rare between two looks at the phone"

    def about(self) -> dict[str, Any] | None:
        """What measured it, for the certificate; None: nothing."""
        if self._meter is None or self.period_s is None:
            return None
        return {**self._meter.about(), "period_s": self.period_s}

    def notes(self) -> list[str]:
        """Why the power is not known, or not to the end; nothing where the source did its part."""
        known = " to the end" if any(self.watts) else ""
        return [f"its power is not known{known}: {self._why_not}"] if self._why_not else []

    def _read(self, end_s: float, *, rest: bool = False) -> None:
        if self._meter is None or self._why_not:
            return
        with self._noting_failure():  # what was given before it stays
            self._readings += self._meter.until(end_s)
            if rest:
                self._readings += self._meter.rest()

    def _take(self, *, to_end: bool) -> None:
        """The watts of the stretches that readings cover; `to_end`: of all, as far as they do."""
        rails = [] if self._meter is None else self._meter.counted
        sources = [[each for each in self._readings if each.rail == rail] for rail in rails]
        told_s = min((each[-1].at_s if each else 0.0 for each in sources), default=0.0)
        while self._stretches and (to_end or self._stretches[0][1] <= told_s):
            self.watts.append(self._mean_w(sources, *self._stretches.popleft()))
        needed_s = self._stretches[0][0] if self._stretches else self._clock()
        self._readings = [each for each in self._readings if each.at_s > needed_s]

    def _mean_w(self, sources: list[list[PowerReading]], begun_s: float, ended_s: float) -> float | None:
        if self._meter is None or self.period_s is None or not sources:
            return None
        # Until it has settled, the power includes that of reading the phone.
        settled_s = begun_s + self._meter.settle_periods * self.period_s
        found = [window(each, settled_s, ended_s, 0.0) for each in sources]
        known = [each.watts for each in found if each is not None]
        return sum(known) if len(known) == len(found) else None

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except FarmError as error:
            self._why_not = error.message


@contextlib.contextmanager
def run_power(source: PowerSource, daemon: DaemonChannel) -> Iterator[RunPower]:
    """The power of a run by a source, whose commands end with the context."""
    if source.none:
        yield RunPower(None, source.none)
        return
    daemon.progress("reading the power")
    with contextlib.ExitStack() as stack:
        try:
            power = RunPower(stack.enter_context(opened_meter(source, daemon)))
        except FarmError as error:
            power = RunPower(None, error.message)
        yield power


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
        "end": _ms(found.end),
        "slowdown": found.slowdown,
        "form": str(found.form),
        "time_constant_s": found.time_constant_s,
        "period_s": found.period_s,
        "seconds": course.looks[-1][0],
        "wanted_s": sustain_s,
        "stopped": course.stopped,
    }


def verdict_on(found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a certificate by which a run is in histories, by what `report` gives: its end, and the slowdown."""
    end = (found["end"][f"{each}_ms"] for each in ("median", "low", "high"))
    values = values_of((END_LATENCY, *(each and each / MS for each in end)), (SLOWDOWN, found["slowdown"], None, None))
    return {**verdict_fields(list(doubts(found, "the run"))), "values": values}


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
