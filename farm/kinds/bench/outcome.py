"""The outcome of a bench."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.client.model import Outcome
from farm.common.durations import NO_INTERVAL, digits, interval_words, time_unit
from farm.measure.interval import SampleSummary

MS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOutcome(Outcome):
    """A model timed on one phone, its numbers checked against the host's reference."""

    samples_s: npt.NDArray[np.float64]  # empty unless it succeeded
    latency: SampleSummary | None  # as measured, in seconds; NaN is what one sample has not
    verdict: str  # trusted, suspect or rejected; empty unless it succeeded
    certificate: Mapping[str, Any] = field(repr=False)  # reasons of the verdict, and the estimate: docs/bench.md
    max_abs_error: float | None
    target: str
    soc: str
    gpu: str

    def brief(self) -> str:
        """The median at nominal speed with its interval, and the verdict."""
        if not (found := self.certificate.get("estimate")):
            return "-"
        unit, scale = time_unit(found["median_s"] * MS)
        words = interval_words(found, "s", MS * scale)
        median = digits(found["median_s"] * MS * scale)
        return f"median {median} {unit} ({NO_INTERVAL if words == '-' else words}), {self.verdict}"

    @classmethod
    def details(cls, spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        return {
            "samples_s": np.asarray(result.get("samples_s", ()), dtype=np.float64),
            "latency": _latency(result["latency"]) if "latency" in result else None,
            "verdict": result.get("verdict", ""),
            "certificate": result.get("certificate") or {},
            "max_abs_error": result.get("max_abs_error"),
            "target": result.get("target") or spec.get("target", ""),
            "soc": result.get("soc", ""),
            "gpu": result.get("gpu", ""),
        }


def _latency(given: Mapping[str, Any]) -> SampleSummary:
    times = {name.removesuffix("_ms"): value for name, value in given.items() if name.endswith("_ms")}
    seconds = {f"{name}_s": math.nan if value is None else value / MS for name, value in times.items()}
    return SampleSummary(count=int(given["count"]), **seconds)
