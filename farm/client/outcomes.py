"""What came of a job, one frozen dataclass per kind. A failed job's error is kept, and raised on demand."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from farm.client.model import AttemptInfo, JobInfo, attempt_from, job_from
from farm.core.errors import FarmError, ProtocolError, UserError
from farm.core.job import JobState
from farm.measure.statistics import Summary

MS = 1000.0


class NotEndedError(UserError):
    """The job has not ended yet."""

    code = "not_ended"


class JobCancelledError(UserError):
    """The job was cancelled."""

    code = "job_cancelled"
    exit_code = FarmError.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One job with its attempts and, once it is done, its result. Failed jobs have an `error` instead."""

    job: JobInfo
    spec: Mapping[str, Any]  # as submitted
    attempts: tuple[AttemptInfo, ...]
    result: Mapping[str, Any] = field(repr=False)  # as the daemon keeps it; empty unless the job is done

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.job.state is JobState.DONE

    @property
    def device(self) -> str:
        """The phone of its latest attempt; empty when there was none."""
        return self.job.on or self.job.device

    @property
    def error(self) -> FarmError | None:
        """Why it did not succeed; None when it did, or has not ended yet."""
        if self.job.state is JobState.CANCELLED:
            return self.job.error or JobCancelledError(f"job {self.job.id} was cancelled")
        return self.job.error if self.job.state is JobState.FAILED else None

    def raise_for_error(self) -> Self:
        """Itself when the job succeeded.

        Raises:
            FarmError: what ended it, as the class that says whose fault it was.
            NotEndedError: it has not ended yet.
        """
        if self.ok:
            return self
        if not self.job.ended:
            raise NotEndedError(f"job {self.job.id} is {self.job.state}", hint=self.job.waits or "wait for it")
        raise self.error or FarmError(f"job {self.job.id} failed", hint=f"farm logs {self.job.id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOutcome(Outcome):
    """A model timed on one phone, its numbers checked against the host's reference."""

    samples_s: npt.NDArray[np.float64]  # empty unless it succeeded
    latency: Summary | None  # in seconds, as the clock showed it
    verdict: str  # trusted, suspect or rejected; empty unless it succeeded
    certificate: Mapping[str, Any] = field(repr=False)  # why, and the estimate at nominal speed: docs/measurement.md
    max_abs_error: float | None
    target: str
    soc: str
    gpu: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOutcome(Outcome):
    """Two builds timed in turns on one phone."""

    answer: str  # what B is: faster, slower, same, "cannot tell"; empty unless it succeeded
    ratio: float | None  # B's time over A's
    interval: tuple[float, float] | None  # of the ratio, 99 %


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOutcome(Outcome):
    """A model tuned on one or several phones."""

    trials: int  # 0 unless it succeeded, as all that follows is empty
    speedup: float | None  # of the tuned build over the untuned one, on a phone of the pool
    interval: tuple[float, float] | None  # of the speed-up, 99 %
    package: str  # artifact: the tuned model, as `farm run` takes it
    records: str  # artifact


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

    outputs: Mapping[str, npt.NDArray[Any]] = field(repr=False)  # by name; empty unless it succeeded
    top_k: Mapping[str, tuple[Ranked, ...]]  # the largest elements of each output, when asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOutcome(Outcome):
    """A line run in one phone's shell."""

    exit_code: int | None  # None when the line did not come to its end
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOutcome(Outcome):
    """A personal lease that has ended."""

    held_s: float | None
    reason: str  # why it ended


def outcome_from(shown: Mapping[str, Any], outputs: Mapping[str, npt.NDArray[Any]] | None = None) -> Outcome:
    """The answer of `job.show`; `outputs` are a run's arrays, already fetched."""
    job = job_from(shown["job"])
    result: Mapping[str, Any] = shown.get("result") or {}
    base: dict[str, Any] = {
        "job": job,
        "spec": shown["spec"],
        "attempts": tuple(map(attempt_from, shown["attempts"])),
        "result": result,
    }
    match job.kind:
        case "bench":
            return BenchOutcome(
                **base,
                samples_s=np.asarray(result.get("samples_s", ()), dtype=np.float64),
                latency=_latency(result["latency"]) if "latency" in result else None,
                verdict=result.get("verdict", ""),
                certificate=result.get("certificate") or {},
                max_abs_error=result.get("max_abs_error"),
                target=result.get("target") or shown["spec"].get("target", ""),
                soc=result.get("soc", ""),
                gpu=result.get("gpu", ""),
            )
        case "compare":
            compared = result.get("comparison") or {}
            return CompareOutcome(
                **base,
                answer=compared.get("answer", ""),
                ratio=compared.get("ratio"),
                interval=(compared["low"], compared["high"]) if compared else None,
            )
        case "tune":
            gain = result.get("speedup") or {}
            return TuneOutcome(
                **base,
                trials=result.get("trials", 0),
                speedup=gain.get("times"),
                interval=(gain["low"], gain["high"]) if gain else None,
                package=result.get("package", ""),
                records=(result.get("records") or {}).get("artifact", ""),
            )
        case "run":
            ranked = {name: tuple(map(_ranked, rows)) for name, rows in (result.get("top_k") or {}).items()}
            return RunOutcome(**base, outputs=outputs or {}, top_k=ranked)
        case "shell":
            return ShellOutcome(
                **base,
                exit_code=result.get("exit_code"),
                stdout=result.get("stdout", ""),
                stderr=result.get("stderr", ""),
            )
        case "lease":
            return LeaseOutcome(**base, held_s=result.get("held_s"), reason=result.get("ended", ""))
        case _:
            return Outcome(**base)


def outputs_of(result: Mapping[str, Any] | None) -> str:
    """The artifact with a run's outputs; empty when there is none."""
    return str((result or {}).get("outputs") or "")


def load_arrays(source: Path | bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz, never anything that runs code.

    Raises:
        ProtocolError: it is no .npz of plain arrays.
    """
    try:
        with np.load(io.BytesIO(source) if isinstance(source, bytes) else source, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, AttributeError, EOFError, BadZipFile) as error:
        raise ProtocolError("the outputs are no .npz file of plain arrays", evidence=str(error)) from error


def save_arrays(arrays: Mapping[str, npt.ArrayLike]) -> bytes:
    """An .npz with one array per model input.

    Raises:
        UserError: they have no names, or one of them is no array of numbers.
    """
    from farm.compiler.inputs import write_arrays

    if not isinstance(arrays, Mapping):
        raise UserError(
            f"inputs have no names ({type(arrays).__name__})",
            hint='a dict with an array per model input: {"input": array}',
        )
    checked: dict[str, npt.NDArray[Any]] = {}
    for name, given in arrays.items():
        array = np.asarray(given)
        if array.dtype.hasobject or array.dtype.kind in "USMm":
            raise UserError(f"input {name!r} is no array of numbers ({array.dtype})", hint="give a numpy array")
        checked[name] = array
    packed = io.BytesIO()
    write_arrays(packed, checked)
    return packed.getvalue()


def _latency(given: Mapping[str, Any]) -> Summary:
    seconds = {name.removesuffix("_ms") + "_s": value / MS for name, value in given.items() if name.endswith("_ms")}
    return Summary(count=int(given["count"]), **seconds)


def _ranked(row: Mapping[str, Any]) -> Ranked:
    return Ranked(
        index=int(row["index"]), value=float(row["value"]), label=row.get("label") or "", at=tuple(row.get("at") or ())
    )
