"""A model on the attempt's phone, checked; its measurement, repeated while it is not trusted; its certificate."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from farm.compiler.build import Build
from farm.measure.amounts import UNKNOWN, Follows
from farm.measure.assess import Assessment, assess, best, measure_again
from farm.measure.conditions import Conditions, Reason, about_host, judge_conditions
from farm.measure.interval import SampleSummary, summarise
from farm.model.specs import ModelTask
from farm.worker.channel import DaemonChannel
from farm.worker.session import FirstRun, PhoneSession, first_run, prepare, session_to_phone
from farm.worker.textures import checked_textures
from farm.worker.timing import MS, SamplingPlan, TakenSamples, Timer, measure, timer_of

VIRTUAL = "virtual phones time this host"
SHOWN_SAMPLES = 200  # the latest, in a report of the interval so far: a histogram shows no more


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model on a phone that has run there once, with right numbers."""

    built: Build
    session: PhoneSession
    ran: FirstRun
    numerics: dict[str, Any]  # of a result: how its numbers differ from the reference

    def timer(self) -> Timer:
        """Times its runs by the phone's clock."""
        return timer_of(self.ran.machine, self.ran.device)


@contextlib.contextmanager
def checked_model(task: ModelTask[Any], daemon: DaemonChannel) -> Iterator[CheckedModel]:
    """A task's model in a session to its phone, until the end of the block. The task's spec has `inputs`."""
    build = partial(prepare, task, daemon, inputs=task.spec.inputs, require_all_inputs=True)
    built = build()
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        built = checked_textures(built, session, daemon, build)
        ran = first_run(built, session, daemon.progress)
        yield CheckedModel(built, session, ran, built.judged(ran.outputs))


def circumstances(built: Build, task: ModelTask[Any], conditions: Conditions, started_at: datetime) -> dict[str, Any]:
    """The fields of a certificate that say what was measured, when, and how the phone was meanwhile.

    Args:
        built: the measured model.
        task: the model's task.
        conditions: of the phone.
        started_at: the measurement; it has ended now.
    """
    return {
        **about_build(built, task),
        **about_conditions(conditions),
        "started_at": started_at.isoformat(),
        "seconds": (datetime.now(UTC) - started_at).total_seconds(),
    }


@dataclass(frozen=True, slots=True)
class MeasuringRun:
    """One run of the measuring loop."""

    taken: TakenSamples
    assessment: Assessment
    started_at: str  # ISO 8601
    seconds: float  # how long it took


def measured(
    tries: Sequence[MeasuringRun], reported: MeasuringRun, kernel: str, nominals: Mapping[str, float], raw: str
) -> dict[str, Any]:
    """The fields of a result that describe the measurement.

    Args:
        tries: all, in order.
        reported: the one whose numbers are given.
        kernel: the key of the reference kernel at whose nominal speed they are given.
        nominals: kernels' seconds in the phone's first benches since its last system update; without this one, the
            kernel's median in the run itself is its nominal speed.
        raw: the artifact with every sample of every try.
    """
    found, taken = reported.assessment, reported.taken
    wire = found.to_wire()
    reference = {
        "kernel": kernel,
        "nominal_s": found.nominal_s,
        "nominal_of": "history" if kernel in nominals else "this run",
        "median_s": found.reference_median_s,
    }
    estimate = wire["estimate"]
    fields: dict[str, Any] = plain(
        {
            "samples_s": taken.seconds,
            "latency": latency_ms(summarise(taken.seconds[found.warmup :])),
            "estimate": {
                **found.estimate.to_ms(),
                **{name: estimate[name] for name in ("confidence", "count")},
                "min_ms": found.fastest_s * MS,
                "max_ms": found.slowest_s * MS,
                "p90_ms": found.p90_s * MS,
                "p99_ms": found.p99_s * MS,
            },
            "verdict": wire["verdict"],
            "certificate": {
                **{name: value for name, value in wire.items() if name not in ("nominal_s", "reference_median_s")},
                "number": taken.number,
                "reference": reference,
                "tries": [_try_to_wire(each, reported=each is reported) for each in tries],
                "raw": raw,
            },
        }
    )
    return fields


def about_build(built: Build, task: ModelTask[Any]) -> dict[str, Any]:
    """The facts about the measured build."""
    return {
        "model": built.name,
        "model_sha256": built.sha256,
        "library_sha256": built.compiled.sha256,
        "target": task.spec.target,
        "precision": built.recipe.precision,
        "tuned": built.tuned,
        "textures": built.textured,
    }


def about_conditions(conditions: Conditions) -> dict[str, Any]:
    """The phone's condition before and after a measurement, and the conditions that are not known."""
    return {
        "conditions": plain({"before": asdict(conditions.before), "after": asdict(conditions.after)}),
        "unknown": list(conditions.unknown()),
    }


def doubts_about(conditions: Conditions) -> list[Reason]:
    """What the conditions say against a value that was measured under them."""
    found = judge_conditions(conditions)
    return [about_host(each) for each in found] if conditions.virtual else list(found)


def latency_ms(summary: SampleSummary) -> dict[str, float | None]:
    """A summary in milliseconds, with `count` beside it. One sample has no interval and no deviation: None."""
    fields = asdict(summary)
    count = fields.pop("count")
    found = {f"{name.removesuffix('_s')}_ms": value * MS for name, value in fields.items()}
    unknown = ("low_ms", "high_ms", "std_ms") if count == 1 else ()
    return {"count": count, **found, **dict.fromkeys(unknown)}


def plain(value: Any) -> Any:
    """The value as JSON data: NaN and infinite numbers become None."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _try_to_wire(each: MeasuringRun, *, reported: bool) -> dict[str, Any]:
    wire = each.assessment.to_wire()
    fields = {name: wire[name] for name in ("verdict", "reasons", "estimate", "count", "warmup")}
    return {**fields, "started_at": each.started_at, "seconds": each.seconds, "reported": reported}


@dataclass(frozen=True, slots=True)
class ReferenceTimer:
    """The reference kernel that runs beside a measurement and shows the phone's speed."""

    kernel: str  # its key
    read: Callable[[], float]  # takes one reading, seconds
    nominals: Mapping[str, float]  # the phone's seconds of reference kernels, by their keys
    follows: Follows = UNKNOWN  # how far the model follows the clock, by earlier benches


def measure_until_trusted(
    timer: Timer, reference: ReferenceTimer, plan: SamplingPlan, remeasure: int, daemon: DaemonChannel,
    *, virtual: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The fields of a result that describe its measurement, the best of at most `remeasure` + 1 tries."""
    nominal_s = reference.nominals.get(reference.kernel)
    tries: list[MeasuringRun] = []
    now = daemon.conditions()
    while measure_again([each.assessment for each in tries], remeasure):
        step = _step(tries, remeasure)
        daemon.progress(step)
        started_at, started_s, before = datetime.now(UTC), time.monotonic(), now
        on_assessed = partial(_report_standing, daemon, step, plan.half_width)
        taken, _ = measure(
            timer, reference.read, plan,
            nominal_s=nominal_s, follows=reference.follows, on_assessed=on_assessed, look=daemon.conditions,
        )  # fmt: skip
        seconds = time.monotonic() - started_s
        now = daemon.conditions()
        conditions = Conditions(before, tuple(look for _, look in taken.looks), now, virtual)
        found = assess(
            taken.series(), nominal_s,
            conditions=conditions, half_width=plan.half_width, follows=reference.follows,
        )  # fmt: skip
        tries.append(MeasuringRun(taken, found, started_at.isoformat(), seconds))
    chosen = best([each.assessment for each in tries])
    reported = next(each for each in tries if each.assessment is chosen)
    raw = json.dumps(plain({"tries": [each.taken.to_wire() for each in tries]})).encode()
    return {
        **measured(tries, reported, reference.kernel, reference.nominals, daemon.put_artifact(raw)),
        "environment": {
            "started_at": reported.started_at,
            "timing_s": sum(each.seconds for each in tries),
            "number": reported.taken.number,
            "host": platform.node(),
            "host_kernel": platform.release(),
            "host_cpus": os.cpu_count(),
            "host_load": os.getloadavg()[0],
        },
    }


def _report_standing(
    daemon: DaemonChannel, step: str, half_width: float, taken: TakenSamples, found: Assessment
) -> None:
    """Report the interval so far, and the latest samples as the clock showed them."""
    standing = {
        "count": found.count,
        **found.estimate.to_ms(),
        "wanted_half_width": half_width,
        "samples_ms": [round(seconds * MS, 6) for seconds in taken.seconds[-SHOWN_SAMPLES:]],
    }
    daemon.progress(step, timing=plain(standing))


def _step(tries: list[MeasuringRun], remeasure: int) -> str:
    """The words for the try that begins, with the reason if it is not the first."""
    if not tries:
        return "timing"
    why = tries[-1].assessment.reasons[0].cause
    return f"timing again ({len(tries)} of {remeasure}): {tries[-1].assessment.verdict}, {why}"
