"""A checked spec from people's values (a model's path, arrays, class names): wrong options first, uploads after.

What is wrong with a model, a package, inputs or labels is found here as far as it shows without TVM.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from farm.client.files import upload
from farm.common.errors import ModelError, UserError
from farm.common.files import checked_file, hash_file
from farm.model.specs import JobSpec, ModelSpec, SpecField, fields_of
from farm.programs.packing import is_packed, packed_file

if TYPE_CHECKING:
    from farm.client.connection import DaemonConnection, OnNotice
    from farm.compiler.inputs import ModelWithInputs
    from farm.compiler.model import Array, TensorSpec

    ArraysFor = Callable[[ModelWithInputs, Mapping[str, Sequence[int]]], dict[str, Array]]

Source = Path | bytes
SpecT = TypeVar("SpecT", bound=JobSpec)
WRITE_HINT = "write it with numpy.savez(path, NAME=array, ...)"
MAX_PARSED_BYTES = 256 << 20  # of a file that is looked into: parsing an ONNX file takes about a second for each GB


async def spec_with_files(connection: DaemonConnection, cls: type[SpecT], given: Mapping[str, Any]) -> SpecT:
    """The spec of fields as people give them: paths, arrays and texts stand for artifacts, which are uploaded.

    Raises:
        UserError: a file cannot be read, or an option is wrong.
    """
    given = {name: value for name, value in cls.completed(given).items() if value is not None}
    sources: dict[str, Source] = {}
    for name, declared in fields_of(cls).items():
        if declared.artifact is None or name not in given:
            continue
        if declared.artifact.kept and not _is_path(given[name]):
            given[name] = (await connection.call("records.show", set=str(given[name])))["artifact"]
        else:
            sources[name] = _source(declared, given[name], connection.on_notice)
    contents = {name: await _whole(source, connection.on_notice) for name, source in sources.items()}
    hashes = {name: await asyncio.to_thread(file_hash, source) for name, source in contents.items()}
    spec = spec_of_files(cls, given, sources, hashes)
    if isinstance(spec, ModelSpec):
        check_models(spec, sources)
    for name, source in sources.items():
        if await upload(connection, contents[name]) != hashes[name]:
            raise UserError(f"{source!s:.200} changed while it was uploaded", hint="try again")
    return spec


def spec_of_files(
    cls: type[SpecT], given: Mapping[str, Any], sources: Mapping[str, Source], hashes: Mapping[str, str]
) -> SpecT:
    """The spec of fields whose files are known by their hashes. A model is called like its file, by default.

    A package is for one device, which may be left out: its target is that device's, unless another was asked for.

    Raises:
        UserError: an option is wrong; a model is empty; a package is damaged, or of another version.
    """
    fields = {**given, **hashes}
    for name, source in sources.items():
        if name.startswith("model") and isinstance(source, Path):
            if not source.stat().st_size:  # a program may take any file, but none that is empty
                raise ModelError(f"{source.name} is empty", hint="give a model file")
            side = name.removeprefix("model")
            fields.setdefault(f"name{side}", source.name)
            if fields.get(f"target{side}", "cpu") == "cpu" and (device := packaged_device(source)):
                fields[f"target{side}"] = device
    return cls.from_wire(fields)


def _source(declared: SpecField, given: Any, on_notice: OnNotice) -> Source:
    assert declared.artifact is not None
    match declared.artifact.content:
        case "model":
            return checked_file(given)
        case "arrays":
            return checked_inputs(given) if isinstance(given, Path | str) else packed_arrays(given)
        case "labels":
            return checked_labels(given) if isinstance(given, Path | str) else _joined(given)
        case "program":
            return given if isinstance(given, bytes) or is_packed(given) else packed_file(checked_file(given))
        case "records":
            return packed_records(declared.name, given, on_notice)


async def _whole(source: Source, on_notice: OnNotice) -> Source:
    """What is uploaded: the source, or the ONNX model in one piece whose tensors are in several files."""
    from farm.compiler.onnx_data import in_parts

    found = await asyncio.to_thread(in_parts, source) if isinstance(source, Path) else None
    if found is None:
        return source
    on_notice(found.sentence())
    return await asyncio.to_thread(found.whole)


def packed_records(name: str, given: object, on_notice: OnNotice) -> bytes:
    """Mistakes in records are reported before a phone is leased; a folder becomes a .tar.

    Lines that cannot be read are not uploaded; `on_notice` gets a warning about them.
    """
    from farm.compiler.record_files import packed, read_records

    if not isinstance(given, Path | str):
        raise UserError(f"records are a file or a folder, not {type(given).__name__}")
    if name == "prior" and not Path(given).exists():
        raise UserError(f"the prior {given} does not exist", hint="a folder, a .tar, or a set of `farm records list`")
    found = read_records(Path(given))
    for line in found.problems(str(given)):
        on_notice(f"warning: {line}")
    return packed(found.set)


def _is_path(given: object) -> bool:
    from farm.compiler.record_files import is_path

    return isinstance(given, Path | str) and is_path(Path(given))


def _joined(labels: Iterable[str]) -> bytes:
    lines = list(labels)
    if any("\n" in line for line in lines):
        raise UserError("a label has two lines", hint="give one text per class")
    return "\n".join(lines).encode()


def file_hash(source: Source) -> str:
    """The SHA-256 of a file or of bytes."""
    return hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else hash_file(source)


def checked_inputs(path: Path | str) -> Path:
    """`path` when it is an .npz of plain, finite arrays.

    Raises:
        UserError: it is not; the message names the file and the array.
    """
    from farm.compiler.inputs import each_array

    path = checked_file(path)
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is no .npz file", hint=WRITE_HINT)
    for name, array in each_array(path, str(path)):
        if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            raise UserError(f"{path}: the array {name!r} has NaN or infinity", hint="numbers only")
    return path


def packed_arrays(arrays: Mapping[str, npt.ArrayLike]) -> bytes:
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


def checked_labels(path: Path | str) -> Path:
    """`path` when it is text.

    Raises:
        UserError: it is not.
    """
    path = checked_file(path)
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no UTF-8 text", hint="one class name per line") from error
    return path


@dataclass(frozen=True, slots=True)
class _Edge:
    """A model file's inputs and outputs."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]  # empty: it does not give all their shapes


def check_models(spec: ModelSpec, sources: Mapping[str, Path | bytes]) -> None:
    """Look at a job's model files and at the arrays for them, by field. The farm has the others.

    Packages are read whole. A file that is no model of any format is refused. ONNX files are checked with what goes
    into them and the number of labels, when the package `onnx` is installed; the worker finds the rest.

    Raises:
        UserError: a package is damaged, or was made with other options; the kind takes no packages.
        ModelError: it is no model, a dimension stays open, or an array or the labels do not fit the model.
    """
    by_arrays = "inputs" in fields_of(type(spec))
    arrays_for = partial(_arrays_for, sources, getattr(spec, "metric", ""))
    for side, build in zip(("", "_b"), spec.builds(), strict=False):
        if getattr(spec, f"program{side}", None):
            continue  # another runtime's model
        if isinstance(path := sources.get(f"model{side}"), Path):
            edge = _check(build, path, arrays_for, packages=spec.packages, by_arrays=by_arrays)
            if edge is not None and (labels := sources.get("labels")) is not None:
                _check_labels(labels, edge)


def _arrays_for(
    sources: Mapping[str, Source], metric: str, model: ModelWithInputs, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Array]:
    """The arrays that a model is built with: those for its inputs, or the first batch of the labelled ones."""
    from farm.compiler.inputs import read_arrays

    if (labelled := sources.get("quality")) is not None:
        from farm.compiler.labelled import WHAT, read_labelled
        from farm.measure.quality import METRICS

        what = labelled.name if isinstance(labelled, Path) else WHAT
        found = read_labelled(labelled, model, METRICS[metric], shapes, what)
        for output in getattr(model, "outputs", ())[:1]:
            found.check_output(METRICS[metric], output, what)
        return found.first()
    npz = sources.get("inputs")
    return read_arrays(npz) if npz is not None else {}


def packaged_device(path: Path) -> str:
    """The device that a package is for; "" when the file is no package.

    Raises:
        UserError: it is damaged, or of another version.
    """
    from farm.compiler.package import is_package, read_manifest

    return read_manifest(path).device if is_package(path) else ""


def _check_labels(labels: Source, edge: _Edge) -> None:
    """Refuse labels that no output has so many classes for, when all outputs' sizes are known."""
    from farm.worker.outputs import check_labels, read_labels

    if edge.outputs and all(isinstance(spec.shape[-1], int) for spec in edge.outputs if spec.shape):
        check_labels(read_labels(labels if isinstance(labels, bytes) else labels.read_bytes()), edge.outputs)


def _check(spec: ModelSpec, path: Path, arrays_for: ArraysFor, *, packages: bool, by_arrays: bool) -> _Edge | None:
    from farm.compiler.model import check_format
    from farm.compiler.package import check_asked, is_package, read_package

    if is_package(path):
        if not packages:
            raise UserError(f"{path} is a package, compiled already", hint="tune the model file that it was made from")
        package = read_package(path)
        fixed = (package.manifest, spec.precision, spec.shapes, spec.dtypes)
        check_asked(*fixed, records=spec.records is not None, texture=spec.texture)
        _fitted(package, {}, {}, arrays_for, by_arrays=False)
        return None
    if path.stat().st_size <= MAX_PARSED_BYTES:
        check_format(path.read_bytes(), path.name)
    edge = _onnx_edge(path)
    if edge is not None:
        _fitted(edge, spec.shapes, spec.dtypes, arrays_for, by_arrays=by_arrays)
    return edge


def _fitted(
    edge: ModelWithInputs,
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, str],
    arrays_for: ArraysFor,
    *,
    by_arrays: bool,
) -> None:
    from farm.compiler.inputs import fitted, fixed_inputs, shapes_with

    arrays = arrays_for(edge, shapes)
    fixed_inputs(edge, shapes_with(edge, arrays, shapes), by_arrays=by_arrays)
    if not dtypes:  # else the arrays are for other types than the file's
        fitted(edge, arrays)


def _onnx_edge(path: Path) -> _Edge | None:
    """None: it is no ONNX file that can be looked at here."""
    if path.suffix != ".onnx" or path.stat().st_size > MAX_PARSED_BYTES or find_spec("onnx") is None:
        return None
    from farm.compiler.onnx_data import in_parts
    from farm.compiler.onnx_file import read_proto, tensors_in, tensors_out

    parts = in_parts(path)
    if parts is not None and parts.total_bytes > MAX_PARSED_BYTES:
        return None
    proto, _ = read_proto(path.read_bytes() if parts is None else parts.whole(), path.name)
    outputs = tensors_out(proto, path.name)
    return _Edge(path.name, tensors_in(proto, path.name), outputs if len(outputs) == len(proto.graph.output) else ())
