"""Which task gets the next round of trials. Pure.

The rule is Ansor's (Zheng et al., OSDI 2020, section 6) as MetaSchedule's gradient scheduler has it: a task is worth
what the next trial can be expected to take off the whole model's latency. It is written again here because stock's
scheduler can neither go on where a killed one stopped nor end at an exact number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 0.2  # how much the recent past counts against "the more was tried, the less is left": stock's value
WINDOW = 3  # rounds of recent past: stock's value
HOPELESS_ROUNDS = 3  # without one candidate that ran; other tasks go first then
MOST_PER_ROUND = 64  # stock's; the cost model learns between rounds
LEAST_PER_ROUND = 8


@dataclass(frozen=True, slots=True)
class TaskState:
    """What the rule looks at."""

    weight: float  # so often it runs in the model
    rounds: tuple[float, ...] = ()  # its best seconds after each round; infinite while nothing ran
    over: bool = False  # its search has nothing more to try
    busy: bool = False  # a round of it is under way


def next_task(tasks: Sequence[TaskState]) -> int | None:
    """The task whose next round is worth most; None when there is none to begin now.

    Each gets one round first, in order. Of equals the first is taken, so that the same run is made of the same results.
    """
    free = [number for number, task in enumerate(tasks) if not task.over and not task.busy]
    for number in free:
        if not tasks[number].rounds:
            return number
    return max(free, key=lambda number: gain_s(tasks[number]), default=None)


def gain_s(task: TaskState) -> float:
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
    return max(1, min(MOST_PER_ROUND, max(min(LEAST_PER_ROUND, fair), trials // (4 * max(1, tasks)))))
