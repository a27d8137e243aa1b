"""How a model's estimated latency fell while it was tuned. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from farm.compiler.records import Record, RecordSet, own_s

Point = tuple[int, float, float]  # trial, seconds of search, estimated latency of the model in seconds
MOST_POINTS = 400  # of a curve in a result


@dataclass(slots=True)
class Estimate:
    """The model's latency as the sum of its tasks' best times, each as often as the task runs.

    The one definition, while a run goes on and afterwards: a task without a candidate that ran is left out. Before its
    first one a task counts with the time of that: when it comes the curve is raised by it up to there, so that a curve
    never rises because more became known. Infinite while no candidate of any task ran.
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


def replayed(found: RecordSet, prior: Iterable[Record] = ()) -> Estimate:
    """The estimate after all of a set's records, in their order, as compiling uses them.

    A task counts with TVM's own schedule, where that was measured, until a candidate is faster. `prior`: records that
    were known before and are no trials.
    """
    estimate = Estimate({name: each.weight for name, each in found.tasks.items()})
    for record in prior:
        estimate.know(record.workload, min(record.seconds, own_s(found, record)))
    for record in found.records:
        origin = found.origins.get(record.key)
        seconds = min(record.seconds, own_s(found, record))
        estimate.add(record.workload, seconds, origin.spent_s if origin else 0.0)
    return estimate


def thinned(curve: list[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many points: the first, the last, and evenly many between."""
    if len(curve) <= most:
        return curve
    step = (len(curve) - 1) / (most - 1)
    return [curve[round(step * number)] for number in range(most)]
