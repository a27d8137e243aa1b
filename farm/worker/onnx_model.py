"""ONNX files read with care: what is wrong with one is said in a sentence that names the place."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs in its wheel

from farm.core.errors import ModelError

INPUT_SEED = 20260801  # fixed: the same model gets the same random inputs on every phone and every day
SAFE_INTEGER = 2  # random integers stay below: they are often indices, and every axis is likely to have two places


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the graph's edge. A dimension that the file does not fix is its name, or "?"."""

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A checked model."""

    name: str
    proto: Any = field(repr=False)  # onnx.ModelProto
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]


def load(data: bytes, name: str) -> OnnxModel:
    """Parse and check an ONNX file; `name` is for messages.

    Raises:
        ModelError: it is no ONNX model, is cut short, keeps its weights elsewhere, or contradicts itself.
    """
    if not data:
        raise ModelError(f"{name} is empty", hint="give an ONNX file")
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError as error:
        looks = data[:1] == b"\x08"  # every ONNX file begins with ir_version, field 1 of ModelProto
        raise ModelError(
            f"{name} is an ONNX model that is cut short or damaged" if looks else f"{name} is not an ONNX model",
            hint="copy or export it again" if looks else "export the model as ONNX (torch.onnx.export, tf2onnx ...)",
            evidence=str(error),
        ) from error
    if not proto.graph.node or not proto.ir_version:
        raise ModelError(f"{name} is not an ONNX model: it has no graph", hint="is it another format, or cut short?")
    _refuse_external_data(proto, name)
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, check_type=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"{name} is not a valid ONNX model: {_one_line(error)}",
            hint="export it again, or mend that node",
            evidence=str(error),
        ) from error
    constants = {tensor.name for tensor in proto.graph.initializer}
    return OnnxModel(
        name,
        proto,
        hashlib.sha256(data).hexdigest(),
        tuple(_spec(value, name) for value in proto.graph.input if value.name not in constants),
        tuple(value.name for value in proto.graph.output),
    )


def inputs_for(model: OnnxModel, npz: bytes | None) -> dict[str, np.ndarray[Any, Any]]:
    """The model's inputs by name: from an .npz file's bytes, or seeded random ones.

    Raises:
        ModelError: the file is no .npz; an array is missing, unknown, or of the wrong shape or type; or a dimension is
            open and nothing fixes it.
    """
    return _random_inputs(model) if npz is None else _given_inputs(model, npz)


def _random_inputs(model: OnnxModel) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(INPUT_SEED)
    made = {}
    for spec in model.inputs:
        for position, size in enumerate(spec.shape):
            if not isinstance(size, int):
                raise ModelError(
                    f"{model.name}: input {spec.name!r}, shape {_shown(spec.shape)}, leaves dimension {position} open",
                    hint="give --input FILE.npz, whose arrays fix the shapes, or export the model with fixed shapes",
                )
        shape = tuple(int(size) for size in spec.shape)
        if np.issubdtype(spec.dtype, np.floating):
            made[spec.name] = generator.standard_normal(shape).astype(spec.dtype)
        else:
            made[spec.name] = generator.integers(0, SAFE_INTEGER, shape).astype(spec.dtype)
    return made


def _given_inputs(model: OnnxModel, npz: bytes) -> dict[str, np.ndarray[Any, Any]]:
    try:
        with np.load(io.BytesIO(npz), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, EOFError) as error:
        raise ModelError(
            "the --input file is no .npz file of plain arrays", hint="write it with numpy.savez"
        ) from error
    wanted = [spec.name for spec in model.inputs]
    for kind, names in (
        ("lacks", [n for n in wanted if n not in arrays]),
        ("has", [n for n in arrays if n not in wanted]),
    ):
        if names:
            raise ModelError(
                f"the --input file {kind} the array {names[0]!r}", hint=f"{model.name} has inputs: {', '.join(wanted)}"
            )
    return {spec.name: _fitting(spec, arrays[spec.name]) for spec in model.inputs}


def _fitting(spec: TensorSpec, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    fits = len(array.shape) == len(spec.shape) and all(
        wanted == size or not isinstance(wanted, int) for wanted, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise ModelError(
            f"input {spec.name!r} has shape {_shown(array.shape)}, the model wants {_shown(spec.shape)}",
            hint="give an array of that shape in the --input file",
        )
    if not np.can_cast(array.dtype, spec.dtype, casting="same_kind"):
        raise ModelError(
            f"input {spec.name!r} is {array.dtype}, the model wants {spec.dtype}",
            hint=f"convert the array: .astype('{spec.dtype}')",
        )
    return np.ascontiguousarray(array, dtype=spec.dtype)


def shapes_of(inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, list[int]]:
    """Shapes by input name."""
    return {name: list(array.shape) for name, array in inputs.items()}


def _spec(value: Any, name: str) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{name}: input {value.name!r} is no tensor", hint="only models over tensors can be run")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelError(f"{name}: input {value.name!r} has no shape", hint="export the model with input shapes")
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or "?"
        for dim in tensor.shape.dim
    )
    return TensorSpec(value.name, shape, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))


def _refuse_external_data(proto: Any, name: str) -> None:
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                f"{name} keeps the weights of {tensor.name!r} in another file",
                hint="save it as one file: onnx.save_model(model, path, save_as_external_data=False)",
            )


def _shown(shape: tuple[int | str, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
