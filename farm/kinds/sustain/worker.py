"""The sustain worker: one build that runs without a pause. `main` runs in the zygote's fork."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from farm.common.durations import format_duration
from farm.kinds.sustain.course import MIN_BUCKETS, Course, report, run_through
from farm.kinds.sustain.power import run_power
from farm.kinds.sustain.spec import MINUTE_S, SustainTask
from farm.measure.conditions import Conditions
from farm.model.specs import task_from_wire
from farm.worker.certificate import VIRTUAL, plain
from farm.worker.channel import DaemonChannel
from farm.worker.checked_model import checked_model, circumstances
from farm.worker.placing import place

REPORT_EVERY = 4  # looks
SHORT_S = MIN_BUCKETS * MINUTE_S
SHORT = "a run below ten minutes: the phone may become warmer yet, and slower than this plateau"


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Run one model on one phone for as long as the spec says.

    Raises:
        UserError: the phone has no such threads or cores.
        ModelError: the model or its inputs cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
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
    certificate = {
        **circumstances(model, task, conditions, started_at),
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
    found = plain(report(course, task.spec.sustain_s))
    return {**model.numerics, **model.built.about(), **found, "certificate": certificate}


def _report_progress(daemon: DaemonChannel, sustain_s: float, course: Course) -> None:
    if len(course.looks) % REPORT_EVERY != 1:
        return
    at_s, now = course.looks[-1]
    warm = "" if now.temperature_c is None else f", battery {now.temperature_c:.1f} °C"
    daemon.progress(f"running, {format_duration(at_s)} of {format_duration(sustain_s)}{warm}")
