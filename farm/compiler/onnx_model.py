"""ONNX files read with care: what is wrong with one is said in a sentence that names the place."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs in its wheel

from farm.core.errors import ModelError


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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
