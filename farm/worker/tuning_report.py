"""What a tuning run tells: how it stands, what it came to, what is kept beside its records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from farm.compiler.records import RecordSet, best
from farm.compiler.tuning_curve import replayed, thinned
from farm.tuning.identical import Judge
from farm.tuning.progress import Standing, TaskRow, eta_s, news_due
from farm.tuning.runner import PoolRunner
from farm.tuning.search import Search
from farm.worker.model_run import Hears

_SECONDS = re.compile(r"[0-9.]+")  # in why a phone is waited for


class Tell(Hears, Protocol):
    """Who hears how it goes: the daemon, or a terminal."""

    def log(self, text: str, level: str = "info") -> None:
        """Keep a line."""
        ...


@dataclass(slots=True)
class News:
    """Tells how the search stands when it has changed, not too often: each time is a line of the job's log."""

    tell_to: Tell
    runner: PoolRunner
    look: Callable[[], None]
    began_s: float = field(default_factory=time.monotonic)
    told_s: float = -1e9
    told: tuple[object, ...] = ()  # what had changed then
    curve: int = 0  # points told
    raised: int = 0  # as the estimate's when they were told

    def heard(self, search: Search) -> None:
        """Called often; tells when it is time to."""
        self.look()
        now_s = time.monotonic() - self.began_s
        if not news_due(self.told_s, now_s):
            return
        status = self.runner.status()
        news = search.done, status.phones, _SECONDS.sub("", status.waits)
        if news != self.told:
            self.told_s, self.told = now_s, news
            self.tell(search)

    def tell(self, search: Search) -> None:
        """Tell now."""
        status, now_s = self.runner.status(), time.monotonic() - self.began_s
        standing = Standing(
            trials=search.done,
            wanted=search.options.trials,
            estimate_s=search.estimate.seconds,
            phones=status.phones,
            busy=status.busy,
            waits=status.waits,
            spent_s=round(search.spent_s, 1),
            eta_s=eta_s(search.done, search.options.trials, search.earlier, now_s),
            left_out=len(search.estimate.weights) - len(search.estimate.best_s),
            tasks=len(search.estimate.weights),
        )
        estimate = search.estimate
        first = self.curve if self.raised == estimate.raised else 0
        self.curve, self.raised = len(estimate.curve), estimate.raised
        rows = [each.to_wire() for each in task_rows(search)]
        told = {**standing.to_wire(), "tasks": rows, "points": estimate.curve[first:], "points_from": first}
        self.tell_to.progress(standing.line(), tuning=told)


def task_rows(search: Search) -> list[TaskRow]:
    """The search's tasks."""
    defaults = search.database.defaults()
    return [
        TaskRow(
            name=each.tunable.task.name,
            weight=each.tunable.task.weight,
            trials=each.trials,
            failed=each.failed,
            flop=each.tunable.task.flop,
            default_s=defaults.get(each.tunable.task.workload, 0.0),
            best_s=each.best_s,
            latest_s=each.latest_s,
        )
        for each in search.tasks
    ]


def report(search: Search, reason: str, own: RecordSet, judge: Judge, notes: list[str]) -> dict[str, Any]:
    """What a search came to, as a result's fields."""
    measured: dict[str, int] = {}
    for each in own.origins.values():
        if each.device:
            measured[each.device] = measured.get(each.device, 0) + 1
    everything = search.database.everything()
    kept_own = {each.workload: each.kept_own for each in best(everything)}
    estimate = replayed(replace(own, tasks=everything.tasks), search.database.prior())
    return {
        "trials": search.done,
        "earlier_trials": search.earlier,
        "wanted_trials": search.options.trials,
        "ended": reason,
        "search_s": round(search.spent_s, 3),
        "tasks": [
            {**row.to_wire(), "kept_own": kept_own.get(each.tunable.task.workload, True)}
            for each, row in zip(search.tasks, task_rows(search), strict=True)
        ],
        "estimate_s": estimate.seconds if estimate.best_s else None,
        "curve": [list(point) for point in thinned(estimate.curve)],
        "phones": [
            {
                "device": device,
                "trials": measured.get(device, 0),
                "factor": round(judge.scales[device].now, 4) if device in judge.scales else None,
                "left_out": judge.left_out.get(device, ""),
            }
            for device in sorted(measured.keys() | judge.scales.keys())
        ],
        "notes": notes,
    }


def summary(records: RecordSet) -> dict[str, Any]:
    """What is kept of a set beside it: the best of each task."""
    rows = [
        {
            "name": each.name,
            "weight": each.weight,
            "trials": each.trials,
            "failed": each.failed,
            "seconds": each.seconds,
            "gflops": round(each.gflops, 3) if each.gflops else None,
            "default_s": each.default_s or None,
            "device": each.device,
            "kept_own": each.kept_own,
        }
        for each in best(records)
    ]
    estimate = replayed(records)
    return {"tasks": rows, "estimate_s": estimate.seconds if estimate.best_s else None}
