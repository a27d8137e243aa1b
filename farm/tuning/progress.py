"""The progress of a search: its tasks, the estimated latency of the model, and which task is next. Pure.

The rule for the next task is Ansor's (Zheng et al., OSDI 2020, section 6) as MetaSchedule's gradient scheduler has it:
a task is worth what the next trial can be expected to take off the whole model's latency. It is written again here
because stock's scheduler can neither continue where a killed one stopped nor end at an exact number of trials.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.common.durations import format_duration, many, with_unit
from farm.compiler.records import Record, RecordSet, default_schedule_s

ETA_TRIALS = 8  # of this attempt, before there is a rate
FIRST_NEWS_S = 1.0  # between two
MAX_REASONS = 5  # of failed candidates, in a result
NEWS_PART = 0.01  # later, of the time spent: the log stays short


@dataclass(slots=True, kw_only=True)
class TaskProgress:
    """One task of a search."""

    name: str
    weight: int  # how often it runs in the model
    flop: float = 0.0  # floating-point operations of one run; 0: not known
    trials: int = 0
    failed: int = 0
    best_s: float = math.inf  # infinite: no candidate ran
    latest_s: float = math.inf  # of the latest candidate
    rounds: list[float] = field(default_factory=list)  # best seconds after each round
    empty: int = 0  # rounds in a row without a new candidate
    over: bool = False  # its search has nothing more to try
    busy: int = 0  # rounds under way

    def count(self, seconds: float) -> None:
        """Count a trial; `seconds` are infinite when it failed."""
        self.trials += 1
        self.latest_s = seconds
        self.failed += not math.isfinite(seconds)
        self.best_s = min(self.best_s, seconds)

    def to_wire(self, default_s: float) -> dict[str, Any]:
        """Plain JSON: rates in GFLOPS, times in milliseconds; null where nothing is known.

        `default_s`: as TVM schedules it by itself; 0: not known.
        """
        return {
            "name": self.name,
            "weight": self.weight,
            "trials": self.trials,
            "failed": self.failed,
            "default_ms": default_s * 1e3 or None,
            "best_ms": finite(self.best_s * 1e3),
            "best_gflops": _rate(self.flop, self.best_s),
            "latest_gflops": _rate(self.flop, self.latest_s),
        }


def standing_line(facts: Mapping[str, Any]) -> str:
    """How a search stands (farm.jobs.progress_schema.TuningFacts), for people."""
    parts = [f"trial {facts['trials']} of {facts['wanted']}"]
    if left_out := facts["left_out"]:  # a sum without them would rise with every task that joins it
        parts.append(f"{facts['of_tasks'] - left_out} of {facts['of_tasks']} tasks measured")
    elif facts["estimate_s"] is not None:
        parts.append(f"best {with_unit(facts['estimate_s'] * 1e3)}")
    parts.append(f"{facts['busy']} of {len(facts['phones'])} phones busy")
    if facts["eta_s"] is not None:
        parts.append(f"{format_duration(facts['eta_s'])} left")
    if facts["waits"]:
        parts.append(facts["waits"])
    return ", ".join(parts)


def failure_notes(records: RecordSet) -> list[str]:
    """Why candidates failed, a sentence for each task and reason; the most frequent ones first, five at most."""
    names = {each.key: records.tasks[each.workload].name for each in records.records if each.workload in records.tasks}
    errors = {key: each.error.strip() for key, each in records.origins.items() if key in names}
    found = Counter((names[key], error.splitlines()[0]) for key, error in errors.items() if error)
    shown = found.most_common(MAX_REASONS)
    notes = [f"{task}: {many(count, 'candidate')} failed: {why}" for (task, why), count in shown]
    rest = found.total() - sum(count for _, count in shown)
    return [*notes, f"{many(rest, 'candidate')} failed for other reasons"] if rest else notes


def eta_s(trials: int, wanted: int, begun_with: int, spent_s: float) -> float | None:
    """Seconds until the last trial at the pace of this attempt; None while there is no rate.

    Args:
        trials: so far.
        wanted: in all.
        begun_with: that this attempt found done.
        spent_s: of this attempt.
    """
    made = trials - begun_with
    return None if made < ETA_TRIALS else round((wanted - trials) * spent_s / made, 1)


def news_due(reported_s: float, now_s: float) -> bool:
    """Whether the next report is due; both count from the start of the search."""
    return now_s - reported_s >= max(FIRST_NEWS_S, NEWS_PART * now_s)


def finite(value: float) -> float | None:
    """The value as JSON: None where it is infinite or no number."""
    return value if math.isfinite(value) else None


def _rate(flop: float, seconds: float) -> float | None:
    return round(flop / seconds / 1e9, 3) if flop and seconds and math.isfinite(seconds) else None


Point = tuple[int, float, float]  # trial, seconds of search, estimated latency of the model in seconds
MAX_POINTS = 400  # of a curve in a result


@dataclass(slots=True)
class LatencyEstimate:
    """The model's latency as the sum of its tasks' best times, each as often as the task runs.

    The same during a search and afterwards. A task is left out until a candidate of it ran; then the curve's earlier
    points are raised by that time, so that a curve never rises because a task joined. Infinite while no candidate of
    any task ran.
    """

    weights: Mapping[str, int]  # by workload: the tasks that count
    best_s: dict[str, float] = field(default_factory=dict)
    trials: int = 0
    improved_at: int = 0  # the trial that made it better last
    curve: list[Point] = field(default_factory=list)
    raised: int = 0  # how often the points that were there have been raised

    @property
    def seconds(self) -> float:
        """The estimate."""
        return sum(self.weights[name] * seconds for name, seconds in self.best_s.items()) if self.best_s else math.inf

    def know(self, workload: str, seconds: float) -> None:
        """A result that is no trial of this run: a prior's."""
        if workload in self.weights and seconds < self.best_s.get(workload, math.inf):
            self.best_s[workload] = seconds

    def add(self, workload: str, seconds: float, spent_s: float) -> bool:
        """Count a trial; whether it made the estimate better."""
        self.trials += 1
        better = workload in self.weights and seconds < self.best_s.get(workload, math.inf)
        if better:
            first = workload not in self.best_s
            self.best_s[workload] = seconds
            self.improved_at = self.trials
            if first and self.curve:
                more_s = self.weights[workload] * seconds
                self.curve = [(trial, spent, before + more_s) for trial, spent, before in self.curve]
                self.raised += 1
            else:
                self.curve.append((self.trials, round(spent_s, 3), self.seconds))
        return better

    @property
    def stale_trials(self) -> int:
        """Trials since it became better last."""
        return self.trials - self.improved_at


def replayed(found: RecordSet, prior: Iterable[Record] = ()) -> LatencyEstimate:
    """The estimate after all of a set's records, in their order, as compiling uses them.

    A task counts with TVM's own schedule, where that was measured, until a candidate is faster. `prior`: records that
    were known before and are no trials.
    """
    estimate = LatencyEstimate({name: each.weight for name, each in found.tasks.items()})
    for record in prior:
        estimate.know(record.workload, min(record.seconds, default_schedule_s(found, record)))
    for record in found.records:
        origin = found.origins.get(record.key)
        seconds = min(record.seconds, default_schedule_s(found, record))
        estimate.add(record.workload, seconds, origin.spent_s if origin else 0.0)
    return estimate


def thinned(curve: list[Point], most: int = MAX_POINTS) -> list[Point]:
    """At most so many points: the first, the last, and evenly many between."""
    if len(curve) <= most:
        return curve
    step = (len(curve) - 1) / (most - 1)
    return [curve[round(step * number)] for number in range(most)]


ALPHA = 0.2  # how much the recent past counts against "the more was tried, the less is left": stock's value
WINDOW = 3  # rounds of recent past: stock's value
HOPELESS_ROUNDS = 3  # without one candidate that ran; other tasks go first then
MAX_PER_ROUND = 64  # stock's; the cost model learns between rounds
MIN_PER_ROUND = 8


def next_task(tasks: Sequence[TaskProgress]) -> int | None:
    """The task whose next round is worth most; None when there is none to begin now.

    Each gets one round first, in order. Of equals the first is taken: equal results make equal runs.
    A task with a round under way continues only when it is the only one left.
    """
    alone = sum(not task.over for task in tasks) == 1
    free = [number for number, task in enumerate(tasks) if not task.over and (alone or not task.busy)]
    for number in free:
        if not tasks[number].rounds:
            return number
    return max(free, key=lambda number: gain_s(tasks[number]), default=None)


def gain_s(task: TaskProgress) -> float:
    """Seconds of the model's latency that its next round is expected to save."""
    if not task.rounds or math.isinf(task.rounds[-1]):
        return 0.0 if len(task.rounds) >= HOPELESS_ROUNDS else math.inf
    count, best = len(task.rounds), task.rounds[-1]
    before = task.rounds[count - 1 - WINDOW] if count > WINDOW else math.inf
    lately = best if math.isinf(before) else (before - best) / WINDOW
    return task.weight * (ALPHA * lately + (1 - ALPHA) * best / count)


def per_round(trials: int, tasks: int) -> int:
    """How many candidates a round has: few enough that each task gets some, enough to learn something from."""
    fair = -(-trials // max(1, tasks))
    return max(1, min(MAX_PER_ROUND, max(min(MIN_PER_ROUND, fair), trials // (4 * max(1, tasks)))))
