"""The outcome of a job of each kind, for Python clients: `<Kind>Outcome`. A kind without one has a plain `Outcome`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from farm.client.model import Outcome
from farm.common.durations import NO_INTERVAL, digits, in_one_unit, interval_words, time_unit
from farm.common.errors import ModelError, ProtocolError
from farm.measure.interval import SampleSummary
from farm.measure.quality import METRICS

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOutcome(Outcome):
    """Two builds timed in turns on one phone."""

    answer: str  # what B is: faster, slower, same, "cannot tell"; empty unless it succeeded
    ratio: float | None  # B's time over A's
    interval: tuple[float, float] | None  # of the ratio, 99 %
    quality: Mapping[str, Any] | None  # of the result; None unless labelled inputs were given

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        found = result.get("comparison") or {}
        return {
            "quality": result.get("quality"),
            "answer": found.get("answer", ""),
            "ratio": found.get("ratio"),
            "interval": (found["low"], found["high"]) if found else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One of an output's largest elements. `label` is empty when there were no labels."""

    index: int  # into the flattened output
    value: float
    label: str = ""
    at: tuple[int, ...] = ()  # the same place by axis, in an output of several rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome(Outcome):
    """A model run once on one phone."""

    file_field: ClassVar[str] = "outputs"

    outputs: Mapping[str, npt.NDArray[Any]] = field(repr=False)  # by name; empty unless it succeeded
    top_k: Mapping[str, tuple[Ranked, ...]]  # the largest elements of each output, when asked for
    quality: Mapping[str, Any] | None  # of the result; None unless labelled inputs were given
    located: Mapping[str, Any]  # blame, operator and more (docs/reference-jobs.md); empty unless it was asked for

    def brief(self) -> str:
        """Where its outputs are, what is wrong with them, or how right they are."""
        if self.located:
            return f"{self.located['blame'] or 'nobody'} to blame: {self.located['operator'] or self.located['reason']}"
        if self.quality:
            metric = METRICS[self.quality["metric"]]
            return f"{metric.name} {metric.words(self.quality['value'])}"
        return f"farm job show {self.job.id}" if self.ok else "-"

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        return {
            "outputs": {},
            "top_k": {name: tuple(map(_ranked, rows)) for name, rows in (result.get("top_k") or {}).items()},
            "quality": result.get("quality"),
            "located": result.get("located") or {},
        }

    def with_file(self, data: bytes) -> Self:
        """With its outputs, which are an artifact.

        Raises:
            ProtocolError: it is no .npz of plain arrays.
        """
        return replace(self, outputs=load_arrays(data))


def load_arrays(source: Path | bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz, never anything that runs code.

    Raises:
        ProtocolError: it is no .npz of plain arrays.
    """
    from farm.compiler.inputs import each_array

    try:
        return dict(each_array(source, "the outputs file"))
    except (OSError, ModelError) as error:
        raise ProtocolError("the outputs are no .npz file of plain arrays", evidence=str(error)) from error


def _ranked(row: Mapping[str, Any]) -> Ranked:
    return Ranked(
        index=int(row["index"]), value=float(row["value"]), label=row.get("label") or "", at=tuple(row.get("at") or ())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOutcome(Outcome):
    """A model tuned on one or several phones."""

    trials: int  # 0 unless it succeeded, as all that follows is empty
    speedup: float | None  # of the tuned build over the untuned one, on a phone of the pool
    interval: tuple[float, float] | None  # of the speed-up, 99 %
    package: str  # artifact: the tuned model, as `farm run` takes it
    records: str  # artifact

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        gain = result.get("speedup") or {}
        return {
            "trials": result.get("trials", 0),
            "speedup": gain.get("times"),
            "interval": (gain["low"], gain["high"]) if gain else None,
            "package": result.get("package", ""),
            "records": (result.get("records") or {}).get("artifact", ""),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOutcome(Outcome):
    """A line run in one phone's shell."""

    exit_code: int | None = None  # None when the line did not come to its end
    stdout: str = ""
    stderr: str = ""

    def brief(self) -> str:
        """The exit code."""
        return "-" if self.exit_code is None else f"exit code {self.exit_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOutcome(Outcome):
    """A personal lease that has ended."""

    held_s: float | None
    reason: str  # why it ended

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        return {"held_s": result.get("held_s"), "reason": result.get("ended", "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainOutcome(Outcome):
    """A model that ran on one phone for minutes."""

    buckets: Sequence[Mapping[str, Any]] = ()  # rows of the result, a minute each; empty unless it succeeded
    throttled_after_s: float | None = None  # None: it did not, or it failed
    plateau: Mapping[str, Any] | None = None  # None: it reached none
    stopped: str = ""  # why it ended early, or empty

    def brief(self) -> str:
        """The first minute's median and the last one's."""
        if not self.buckets:
            return "-"
        return ", then ".join(in_one_unit([self.buckets[place]["median_ms"] for place in (0, -1)], aligned=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome(Outcome):
    """One build under several settings on one phone."""

    settings: Sequence[Mapping[str, Any]]  # rows of the result; empty unless it succeeded
    recommended: str  # a setting in words; empty unless it succeeded

    def brief(self) -> str:
        """The recommended setting."""
        return self.recommended or "-"

    @classmethod
    def details(cls, _spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """The fields beside those that every kind has."""
        rows = result.get("settings", ())
        return {"settings": rows, "recommended": rows[result["recommended"]]["setting"] if rows else ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyOutcome(Outcome):
    """The joules of one inference on one phone."""

    energy: Mapping[str, Any] | None = None  # of the result; None unless the meter resolved it
    unresolved: Mapping[str, Any] | None = None  # why it did not

    def brief(self) -> str:
        """The joules."""
        return f"{digits(self.energy['net_j'] * 1e3)} mJ" if self.energy else "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOutcome(Outcome):
    """The phases of a model's life on one phone."""

    phases: Sequence[Mapping[str, Any]] = ()  # rows of the result; empty unless it succeeded
    peak_bytes: int = 0  # of memory and swap, over all phases; 0 unless it succeeded

    def brief(self) -> str:
        """The most memory that it needed."""
        return f"{self.peak_bytes / 1e6:.1f} MB" if self.phases else "-"


ProgramOutcome = BenchOutcome  # `target` is the program's runtime
UntetheredOutcome = EnergyOutcome  # of one run of the program
