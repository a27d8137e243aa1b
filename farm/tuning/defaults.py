"""TVM's own schedule of each task, measured like a candidate: a search must beat it, or its records are not used.

A short search may find nothing better than what TVM does without one. These measurements are no trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tvm.s_tir import meta_schedule as ms

from farm.compiler.targets import device_of
from farm.compiler.tvm_errors import first_line
from farm.tuning.candidate import CandidateError, Measured
from farm.tuning.database import TuningDatabase
from farm.tuning.search import Runner

PATIENCE_S = 60.0  # beyond which what is not measured stays unknown
LOOK_S = 0.05


def measure_defaults(
    database: TuningDatabase,
    builder: Any,
    runner: Runner,
    schedule: Callable[[Any], Any],
    look: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda _: None,
    *,
    patience_s: float = PATIENCE_S,
) -> dict[str, float]:
    """Seconds of each task that has records, by workload, as TVM schedules it by itself; those that ran.

    Args:
        database: of the search.
        builder: ms.Builder.
        runner: measures.
        schedule: what compiling does to a function without a record (IRModule -> IRModule).
        look: called while it waits; may raise.
        tell: hears of tasks that TVM cannot schedule or build.
        patience_s: how long it may take.
    """
    tried = {record.workload for record in database.own()}
    asked: dict[str, Future[Measured]] = {}
    for each in database.tunables:
        if each.task.workload in tried and not each.task.default_s:
            try:
                module = schedule(each.module)
                [built] = builder.build([ms.builder.BuilderInput(module, database.target)])
                if not built.error_msg:
                    info = ms.arg_info.ArgInfo.from_prim_func(each.module["main"])
                    given = ms.runner.RunnerInput(built.artifact_path, device_of(database.target), info)
                    asked[each.task.workload] = runner.submit(given)
            except Exception as error:  # noqa: BLE001 - whatever TVM raises: the search is done, this is a bonus
                tell(f"TVM's own schedule of {each.task.name} is not known: {first_line(error)}")
    deadline_s = time.monotonic() + min(PATIENCE_S, patience_s)
    while not all(each.done() for each in asked.values()) and time.monotonic() < deadline_s:
        look()
        time.sleep(LOOK_S)
    return {name: seconds for name, each in asked.items() if (seconds := _seconds(each)) is not None}


def _seconds(answer: Future[Measured]) -> float | None:
    if not answer.done():
        return None
    try:
        runs = answer.result().scaled
    except CandidateError:
        return None
    return sum(runs) / len(runs)
