"""The compare worker: two builds on one phone, both checked, then timed in turns. `main` is a zygote child's task."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from farm.compiler.build import Build
from farm.core.errors import FarmError
from farm.jobs.tasks import CompareTask, ModelTask
from farm.measure.comparison import compare
from farm.measure.conditions import Conditions
from farm.measure.statistics import summarise
from farm.worker.certificate import VIRTUAL, about_build, latency_ms, moment_from, plain
from farm.worker.daemon import Daemon
from farm.worker.model_run import FirstRun, first_run, prepare, session_to_phone
from farm.worker.session import PhoneSession
from farm.worker.timing import Pairs, find_effect_of, time_pairs, timer_of


def main(payload: Mapping[str, Any], daemon: Daemon) -> dict[str, Any]:
    """Compare two builds on one phone.

    Raises:
        ModelError: one of them or its inputs cannot be used, or TVM compiles it wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
    task = CompareTask.from_wire(payload)
    sides = sides_of(task)
    with _said("A"):
        a = prepare(sides[0], daemon, inputs=task.inputs, all_or_none=True)
    with _said("B"):
        b = prepare(sides[1], daemon, inputs=task.inputs, all_or_none=True)
    with session_to_phone(daemon) as session:
        with _said("A"):
            ran_a, about_a = _checked(a, sides[0], "a", session, daemon)
        with _said("B"):
            ran_b, about_b = _checked(b, sides[1], "b", session, daemon)
        before = moment_from(daemon.conditions())
        daemon.progress("timing both in turns")
        started_at = datetime.now(UTC)
        timer_a, timer_b = timer_of(ran_a.machine, ran_a.device), timer_of(ran_b.machine, ran_b.device)
        pairs = time_pairs(timer_a, timer_b, measure_s=task.measure_s, min_effect=task.min_effect)
        seconds = (datetime.now(UTC) - started_at).total_seconds()
        conditions = Conditions(before, (), moment_from(daemon.conditions()))
    effects = {"min_effect": task.min_effect, "find_effect": find_effect_of(task.min_effect)}
    compared = compare(pairs.a_s, pairs.b_s, **effects, conditions=conditions).to_wire()
    certificate = {
        "conditions": plain({"before": _told(conditions.before), "after": _told(conditions.after)}),
        "unknown": list(conditions.unknown()),
        "notes": [VIRTUAL] if task.virtual else [],
        "started_at": started_at.isoformat(),
        "seconds": seconds,
        "raw": daemon.put_artifact(_raw(pairs)),
    }
    return {
        "comparison": plain(compared),
        "a": {**about_a, "latency": latency_ms(summarise(pairs.a_s)), "number": pairs.number_a},
        "b": {**about_b, "latency": latency_ms(summarise(pairs.b_s)), "number": pairs.number_b},
        "certificate": certificate,
    }


def sides_of(task: CompareTask) -> tuple[ModelTask, ModelTask]:
    """The two builds a task names. What is not said of B is as of A, but for records: without, B is untuned."""
    a = ModelTask(**{each.name: getattr(task, each.name) for each in fields(ModelTask)})
    b = ModelTask(
        model=task.model_b,
        name=task.name_b,
        precision=task.precision_b or task.precision,
        shapes=task.shapes,
        dtypes=task.dtypes,
        records=task.records_b,
        target_name=task.target_b_name,
        target=task.target_b,
        cache=task.cache,
    )
    return a, b


def _checked(
    built: Build, task: ModelTask, side: str, session: PhoneSession, daemon: Daemon
) -> tuple[FirstRun, dict[str, Any]]:
    ran = first_run(built, session, daemon, side=side)
    return ran, {**built.judged(ran.outputs), **built.about(), **about_build(built, task)}


def _raw(pairs: Pairs) -> bytes:
    return json.dumps({"a_s": pairs.a_s, "b_s": pairs.b_s}).encode()


def _told(moment: Any) -> dict[str, Any]:
    return {each.name: getattr(moment, each.name) for each in fields(moment)}


@contextlib.contextmanager
def _said(side: str) -> Iterator[None]:
    """Which of the two an error is about."""
    try:
        yield
    except FarmError as error:
        error.args = (f"{side}: {error.message}",)
        raise
