"""The sweep worker: one build in one session, its threads placed again before each block of samples.

`main` runs in the zygote's fork. In every round each setting has one block, in an order that is drawn: a phone that
becomes warm, or is interrupted at a fixed rate, treats them alike. The median of a block is one time of its setting.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from farm.kinds.sweep import SweepSpec, SweepTask
from farm.measure.conditions import Conditions
from farm.measure.sweep import SettingEstimate, estimates, recommended
from farm.model.placement import ThreadPlacement
from farm.model.specs import task_from_wire
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import VIRTUAL, checked_model, circumstances, plain
from farm.worker.session import place
from farm.worker.timing import MIN_SAMPLE_S, MS, ORDER_SEED, Clock, Timer, first_runs, runs_per_sample

BLOCK_SAMPLES = 6
MIN_ROUNDS = 8  # fewer give no interval
MAX_ROUNDS = 400
ROUNDS_TO_ASSESS = 4  # between two looks at the intervals


@dataclass(frozen=True, slots=True)
class SweepRounds:
    """The times of each setting, a block's median in each round. Seconds."""

    placements: list[ThreadPlacement]  # as they were in force
    rounds_s: list[list[float]]  # of each setting
    numbers: list[int]  # runs in a sample of each

    def estimates(self) -> list[SettingEstimate]:
        """The estimate of each setting."""
        return estimates(self.rounds_s)


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Time one model under each setting on one phone."""
    task = task_from_wire(SweepTask, payload)
    with checked_model(task, daemon) as model:
        daemon.progress(f"timing {len(task.placements)} settings in turns")
        before, started_at = daemon.conditions(), datetime.now(UTC)
        taken = take_rounds(partial(place, model.session, daemon), model.timer(), task.placements, task.spec)
        conditions = Conditions(before, (), daemon.conditions())
    found = taken.estimates()
    raw = {"settings": [each.words for each in taken.placements], "seconds": taken.rounds_s}
    certificate = {
        **circumstances(model.built, task, conditions, started_at),
        "notes": [*task.left_out, *([VIRTUAL] if task.virtual else [])],
        "raw": daemon.put_artifact(json.dumps(plain(raw)).encode()),
    }
    rows = [_row(*each) for each in zip(taken.placements, found, taken.numbers, strict=True)]
    best = recommended(found, [each.threads for each in taken.placements])
    return {**model.numerics, **model.built.about(), "settings": rows, "recommended": best, "certificate": certificate}


def take_rounds(
    set_up: Callable[[ThreadPlacement], ThreadPlacement],
    timer: Timer,
    settings: Sequence[ThreadPlacement],
    spec: SweepSpec,
    clock: Clock = time.monotonic,
) -> SweepRounds:
    """Rounds until every setting's interval is as narrow as the spec wants, or its time is over.

    Args:
        set_up: places the threads, and returns what is in force.
        timer: the model.
        settings: at least one.
        spec: half width and seconds.
        clock: monotonic seconds.
    """
    taken = SweepRounds([], [[] for _ in settings], [])
    for each in settings:
        taken.placements.append(set_up(each))
        taken.numbers.append(runs_per_sample(min(first_runs(timer)), MIN_SAMPLE_S))
    order, began_s, rounds = np.random.default_rng(ORDER_SEED), clock(), 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and clock() - began_s < spec.measure_s):
        for setting in order.permutation(len(settings)):
            set_up(settings[setting])
            taken.rounds_s[setting].append(median(timer(taken.numbers[setting], BLOCK_SAMPLES)))
        rounds += 1
        if rounds >= MIN_ROUNDS and rounds % ROUNDS_TO_ASSESS == 0:
            widest = max(each.estimate.half_width for each in taken.estimates())
            if widest <= spec.half_width:
                break
    return taken


def _row(placement: ThreadPlacement, found: SettingEstimate, number: int) -> dict[str, Any]:
    row: dict[str, Any] = plain(
        {
            "setting": placement.words,
            "threads": placement.threads,
            "mask": placement.mask,
            **{f"{name}_ms": getattr(found.estimate, f"{name}_s") * MS for name in ("median", "low", "high")},
            "ratio": found.ratio.median_s,
            "ratio_low": found.ratio.low_s,
            "ratio_high": found.ratio.high_s,
            "slower": found.slower,
            "rounds": found.estimate.count,
            "number": number,
        }
    )
    return row
