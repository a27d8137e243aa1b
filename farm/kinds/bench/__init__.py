"""Kind `bench`: time a model on phones until its median is known, with a certificate and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from farm.common.limits import MAX_NUMBER, MAX_REPEAT
from farm.model.identity import CpuCluster
from farm.model.placement import placed
from farm.model.specs import (
    MEASURING,
    Bounds,
    Cores,
    Flag,
    HalfWidth,
    Help,
    HistorySpec,
    MeasureSeconds,
    Remeasure,
    Threads,
    TopApp,
    Whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec(HistorySpec):
    """Compile a model, run it, check its numbers against the host's reference, time it until its median is known."""

    kind: ClassVar[str] = "bench"

    half_width: HalfWidth = 0.01
    measure_s: MeasureSeconds = 30.0
    remeasure: Remeasure = 1
    repeat: Annotated[
        Annotated[Whole, Bounds(ge=1, le=MAX_REPEAT)] | None,
        Help("Exactly so many timed samples instead, warm-up among them.", group=MEASURING),
    ] = None
    number: Annotated[
        Annotated[Whole, Bounds(ge=1, le=MAX_NUMBER)] | None,
        Help("Runs averaged into one sample; else as many as last 10 ms.", group=MEASURING),
    ] = None
    min_repeat_ms: Annotated[
        Whole, Bounds(ge=0, le=60_000), Help("A sample lasts at least this long.", option=False)
    ] = 10
    threads: Threads = None
    cores: Cores = None
    top_app: TopApp = False
    profile: Annotated[Flag, Help("Also time each operator in the model's own run.", group=MEASURING)] = False

    def check_cores(self, clusters: Sequence[CpuCluster], phone: str) -> None:
        """Refuse a phone that has not its cores, or too few for its threads."""
        placed(self.threads, self.cores, self.top_app, clusters, phone)
