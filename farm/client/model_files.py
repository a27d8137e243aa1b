"""What is wrong with a model, its package or its inputs, as far as it shows without TVM: said before any upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from farm.core.errors import UserError
from farm.jobs.specs import CompareSpec, ModelSpec, TuneSpec

if TYPE_CHECKING:
    from farm.compiler.model import TensorSpec

MAX_PARSED_BYTES = 256 << 20  # of a file that is looked into: parsing an ONNX file takes about a second for each GB
Inputs = Path | bytes | None


@dataclass(frozen=True, slots=True)
class _Edge:
    """A model file's inputs."""

    name: str
    inputs: tuple[TensorSpec, ...]


def check_models(spec: ModelSpec, model: Path | None, model_b: Path | None, inputs: Inputs) -> None:
    """Look at a job's model files and at the arrays for them. `None`: the farm has that file already.

    Packages are read whole. A file that is no model of any format is refused. Of ONNX files it is seen what goes into
    them, when the package `onnx` is installed; the worker finds what is wrong with a graph.

    Raises:
        PackageError: a package is damaged, or was made with other options.
        ModelError: it is no model, a dimension stays open, or an array does not fit the model.
        UserError: a package is to be tuned.
    """
    if model is not None:
        _check(spec, model, spec.precision, inputs, records=spec.records is not None)
    if model_b is not None and isinstance(spec, CompareSpec):
        _check(spec, model_b, spec.precision_b or spec.precision, inputs, records=spec.records_b is not None)


def _check(spec: ModelSpec, path: Path, precision: str, inputs: Inputs, *, records: bool) -> None:
    from farm.compiler.formats import check_format
    from farm.compiler.package import check_asked, is_package, read_package

    if is_package(path):
        if isinstance(spec, TuneSpec):
            raise UserError(f"{path} is a package, compiled already", hint="tune the model file that it was made from")
        package = read_package(path)
        check_asked(package.manifest, precision, spec.shapes, spec.dtypes, records=records)
        _fitted(_Edge(package.name, package.inputs), {}, inputs, by_arrays=False)
        return
    if path.stat().st_size <= MAX_PARSED_BYTES:
        check_format(path.read_bytes(), path.name)
    if edge := _onnx_edge(path):
        _fitted(edge, spec.shapes, inputs, by_arrays=not isinstance(spec, TuneSpec))


def _fitted(edge: _Edge, shapes: Mapping[str, Sequence[int]], inputs: Inputs, *, by_arrays: bool) -> None:
    from farm.compiler.inputs import fixed_inputs, read_arrays, shapes_with

    npz = inputs.read_bytes() if isinstance(inputs, Path) else inputs
    arrays = read_arrays(npz) if npz is not None else {}
    fixed_inputs(edge, shapes_with(edge, arrays, shapes), by_arrays=by_arrays)


def _onnx_edge(path: Path) -> _Edge | None:
    """None: it is no ONNX file that can be looked at here."""
    if path.suffix != ".onnx" or path.stat().st_size > MAX_PARSED_BYTES or find_spec("onnx") is None:
        return None
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs in its wheel

    from farm.compiler.onnx_inputs import input_specs

    try:
        proto = onnx.load_model_from_string(path.read_bytes())
    except DecodeError:
        return None
    return _Edge(path.name, input_specs(proto, path.name)) if proto.graph.node else None
