"""The spec of a bench: its fields with bounds and help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from farm.common.limits import MAX_NUMBER, MAX_REPEAT
from farm.model.requests import LeaseClass
from farm.model.specs import ArtifactOf, Bounds, Flag, Help, ModelSpec, Quiesce, Seconds, Sha256, Whole

HalfWidth = Annotated[float, Bounds(strict=True, ge=0.0005, le=0.5)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec(ModelSpec):
    """Compile a model, run it, check its numbers against the host's reference, time it until its median is known."""

    kind: ClassVar[str] = "bench"
    lease_class: ClassVar[LeaseClass] = LeaseClass.BENCH

    half_width: Annotated[
        HalfWidth, Help("Sample until the 95 % interval of the median is at most +- this part of it.")
    ] = 0.01
    measure_s: Annotated[Seconds, Bounds(ge=0.1, le=3600), Help("But no longer, seconds.", flag="--measure")] = 30.0
    remeasure: Annotated[Whole, Bounds(ge=0, le=5), Help("Again so often while the result is not trusted.")] = 1
    repeat: Annotated[
        Annotated[Whole, Bounds(ge=1, le=MAX_REPEAT)] | None,
        Help("Exactly so many timed samples instead, warm-up among them."),
    ] = None
    number: Annotated[
        Annotated[Whole, Bounds(ge=1, le=MAX_NUMBER)] | None,
        Help("Runs averaged into one sample; else as many as last 10 ms."),
    ] = None
    min_repeat_ms: Annotated[
        Whole, Bounds(ge=0, le=60_000), Help("A sample lasts at least this long.", option=False)
    ] = 10
    profile: Annotated[Flag, Help("Also time each operator by itself, where TVM allows.")] = False
    quiet_hub: Annotated[Flag, Help("Give no other user a phone on the same hub meanwhile.")] = False
    quiesce: Quiesce = None
    inputs: Annotated[
        Sha256 | None,
        ArtifactOf("arrays"),
        Help(".npz with one array per model input; seeded random otherwise.", flag="--input"),
    ] = None
