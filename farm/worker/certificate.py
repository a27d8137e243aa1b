"""Certificates: how a number was measured, under which conditions, and whether to rely on it. As JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farm.compiler.build import Build
from farm.measure.assess import Assessment
from farm.measure.conditions import Conditions
from farm.measure.interval import SampleSummary, summarise
from farm.model.specs import ModelTask
from farm.worker.timing import MS, TakenSamples

VIRTUAL = "virtual phones time this host"


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
