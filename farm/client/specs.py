"""From what people have (a model's path, arrays, class names) to a checked spec: wrong options first, uploads after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar

from farm.client.files import checked_file, upload
from farm.client.input_files import checked_inputs, checked_labels
from farm.client.model_files import check_models
from farm.client.outcomes import save_arrays
from farm.core.errors import UserError
from farm.jobs.specs import BenchSpec, CompareSpec, RunSpec, TuneSpec

if TYPE_CHECKING:
    import numpy.typing as npt

    from farm.client.door import Door, OnNotice

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


class ModelOptions(JobOptions, total=False):
    """Options of every kind that takes a model to a phone."""

    name: str
    target: str
    precision: Literal["float32", "float16", "float16_acc32"]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    records: Path | str  # tuning records to compile with: their .tar, or MetaSchedule's folder


class BenchOptions(ModelOptions, total=False):
    """Options of a bench."""

    half_width: float
    measure_s: float
    repeat: int
    number: int
    min_repeat_ms: int
    remeasure: int
    profile: bool
    quiet_hub: bool
    quiesce: Literal["off", "gentle", "full"] | None


class CompareOptions(ModelOptions, total=False):
    """Options of a comparison."""

    target_b: str
    precision_b: Literal["float32", "float16", "float16_acc32"]
    records_b: Path | str
    bundle: str  # with `bundle_b`: one model under two runtime bundles
    bundle_b: str
    min_effect: float
    measure_s: float
    quiet_hub: bool
    quiesce: Literal["off", "gentle", "full"] | None


class TuneOptions(ModelOptions, total=False):
    """Options of a tuning run."""

    early_stop: int | None
    cost_model: Literal["xgb", "random"]
    seed: int
    candidate_timeout_s: float
    quiesce: Literal["off", "gentle", "full"] | None


class RunOptions(ModelOptions, total=False):
    """Options of a run."""

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


async def compare_spec(
    door: Door,
    model: ModelSource,
    model_b: ModelSource,
    on: str,
    inputs: InputSource | None,
    options: Mapping[str, object],
) -> CompareSpec:
    """A comparison of two model files, or of one with itself built in two ways; all is uploaded.

    Raises:
        UserError: a file cannot be read, or an option is wrong.
    """
    path = checked_file(model_b)
    both = {"name_b": path.name, "model_b": NOT_YET, "on": on, **options}
    if found := packaged_target(path, {"target": options.get("target_b") or "cpu"}):
        both["target_b"] = found["target"]
    return await _with_files(door, CompareSpec, both, model, {"inputs": _inputs(inputs), "model_b": path})


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


async def tune_spec(
    door: Door, model: ModelSource, on: str, prior: Path | str | None, options: Mapping[str, object]
) -> TuneSpec:
    """A tuning run of a model file; it and the prior, if that is a file or folder, are uploaded.

    Raises:
        UserError: a file cannot be read, the prior is no set of records, or an option is wrong.
    """
    given: dict[str, object] = {"on": on, **options}
    data = _prior(prior, door.on_notice)
    if prior is not None and data is None:
        given["prior"] = (await door.call("records.show", set=str(prior)))["artifact"]
    return await _with_files(door, TuneSpec, given, model, {"prior": data})


M = TypeVar("M", BenchSpec, CompareSpec, RunSpec, TuneSpec)


async def _with_files(
    door: Door,
    cls: type[M],
    options: Mapping[str, object],
    model: ModelSource,
    files: Mapping[str, Path | bytes | None],
) -> M:
    path = checked_file(model)
    given = {"name": path.name, **options, **packaged_target(path, options)}
    records = {
        name: _records(given.pop(name), door.on_notice)
        for name in ("records", "records_b")
        if given.get(name) is not None
    }
    sources = {**files, **records}
    spec = cls.from_wire(
        {**given, "model": NOT_YET, **{name: NOT_YET for name in sources if sources[name] is not None}}
    )
    model_b = files.get("model_b")
    check_models(spec, path, model_b if isinstance(model_b, Path) else None, files.get("inputs"))
    artifacts = {name: await upload(door, source) for name, source in sources.items() if source is not None}
    return cls.from_wire({**given, "model": await upload(door, path), **artifacts})


def packaged_target(path: Path, given: Mapping[str, object]) -> dict[str, str]:
    """A package is for one device, which need not be said: the target of its name, unless another was asked for.

    Raises:
        PackageError: it is damaged, or of another version.
    """
    from farm.compiler.package import is_package, read_manifest

    if not is_package(path):
        return {}
    manifest = read_manifest(path)
    return {"target": manifest.device} if given.get("target", "cpu") == "cpu" else {}


def _inputs(source: InputSource | None) -> Path | bytes | None:
    if source is None:
        return None
    return checked_inputs(source) if isinstance(source, Path | str) else save_arrays(source)


def _records(source: object, tell: OnNotice) -> bytes:
    """What is wrong with them is said now, not when a phone is in hand; a folder becomes a .tar.

    Lines that cannot be read do not go to the farm: `tell` hears of them.
    """
    from farm.compiler.record_files import packed, read_records

    if not isinstance(source, Path | str):
        raise UserError(f"records are a file or a folder, not {type(source).__name__}")
    found = read_records(Path(source))
    for line in found.told(str(source)):
        tell(f"warning: {line}")
    return packed(found.set)


def _prior(source: Path | str | None, tell: OnNotice) -> bytes | None:
    """A prior's bytes; None when it is no file: then it is the name of a set that the farm keeps.

    Raises:
        UserError: it is a path, and nothing is there; or it is no set of records.
    """
    from farm.compiler.record_files import is_path

    if source is None:
        return None
    path = Path(source)
    if not is_path(path):
        return None
    if not path.exists():
        raise UserError(f"the prior {path} does not exist", hint="a folder, a .tar, or a set of `farm records list`")
    return _records(path, tell)


def _labels(source: LabelSource | None) -> Path | bytes | None:
    if source is None:
        return None
    if isinstance(source, Path | str):
        return checked_labels(source)
    lines = list(source)
    if any("\n" in line for line in lines):
        raise UserError("a label has two lines", hint="give one text per class")
    return "\n".join(lines).encode()
