"""From what people have (a model's path, arrays, class names) to a checked spec: wrong options first, uploads after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar

from farm.client.files import checked_file, upload
from farm.client.input_files import checked_inputs, checked_labels
from farm.client.outcomes import save_arrays
from farm.core.errors import UserError
from farm.jobs.specs import BenchSpec, RunSpec

if TYPE_CHECKING:
    import numpy.typing as npt

    from farm.client.door import Door

NOT_YET = "0" * 64  # stands for an artifact while the other options are checked

ModelSource = Path | str
Arrays = Mapping[str, "npt.ArrayLike"]
InputSource = Path | str | Arrays
LabelSource = Path | str | Iterable[str]


class JobOptions(TypedDict, total=False):
    """Options of every kind of job: docs/clients.md."""

    devices: int | Literal["all"]
    priority: int
    timeout_s: float
    deadline_s: float | None
    max_attempts: int
    after: tuple[str, ...]
    hold: bool


class BenchOptions(JobOptions, total=False):
    """Options of a bench."""

    name: str
    target: str
    repeat: int
    number: int
    min_repeat_ms: int


class RunOptions(JobOptions, total=False):
    """Options of a run."""

    name: str
    target: str
    fill: Literal["random", "zeros", "ones"]
    top_k: int


async def bench_spec(
    door: Door, model: ModelSource, on: str, inputs: InputSource | None, options: Mapping[str, object]
) -> BenchSpec:
    """A bench of a model file; it and the inputs are uploaded.

    Raises:
        UserError: a file cannot be read, or an option is wrong.
    """
    return await _with_files(door, BenchSpec, {"on": on, **options}, model, {"inputs": _inputs(inputs)})


async def run_spec(
    door: Door,
    model: ModelSource,
    on: str,
    inputs: InputSource | None,
    labels: LabelSource | None,
    options: Mapping[str, object],
) -> RunSpec:
    """A run of a model file; it, the inputs and the labels are uploaded.

    Raises:
        UserError: a file cannot be read, or an option is wrong.
    """
    files = {"inputs": _inputs(inputs), "labels": _labels(labels)}
    return await _with_files(door, RunSpec, {"on": on, **options}, model, files)


M = TypeVar("M", BenchSpec, RunSpec)


async def _with_files(
    door: Door,
    cls: type[M],
    options: Mapping[str, object],
    model: ModelSource,
    files: Mapping[str, Path | bytes | None],
) -> M:
    path = checked_file(model)
    given = {"name": path.name, **options}
    cls.from_wire({**given, "model": NOT_YET})
    artifacts = {name: await upload(door, source) for name, source in files.items() if source is not None}
    return cls.from_wire({**given, "model": await upload(door, path), **artifacts})


def _inputs(source: InputSource | None) -> Path | bytes | None:
    if source is None:
        return None
    return checked_inputs(source) if isinstance(source, Path | str) else save_arrays(source)


def _labels(source: LabelSource | None) -> Path | bytes | None:
    if source is None:
        return None
    if isinstance(source, Path | str):
        return checked_labels(source)
    lines = list(source)
    if any("\n" in line for line in lines):
        raise UserError("a label has two lines", hint="give one text per class")
    return "\n".join(lines).encode()
