"""ONNX files, read and checked without TVM: clients refuse a damaged model before they upload it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs in its wheel

from farm.common.errors import ModelError
from farm.compiler.model import ONNX_FIRST, TensorSpec


def read_proto(data: bytes, name: str) -> Any:
    """The `onnx.ModelProto` of a file; `name` is for messages.

    Raises:
        ModelError: it is no ONNX model, is cut short, keeps its weights elsewhere, or contradicts itself.
    """
    if not data:
        raise ModelError(f"{name} is empty", hint="give an ONNX file")
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError as error:
        is_onnx = data[:1] == ONNX_FIRST
        raise ModelError(
            f"{name} is an ONNX model that is cut short or damaged" if is_onnx else f"{name} is not an ONNX model",
            hint="copy or export it again" if is_onnx else "export the model as ONNX (torch.onnx.export, tf2onnx ...)",
            evidence=str(error),
        ) from error
    if not proto.graph.node or not proto.ir_version:
        raise ModelError(f"{name} is not an ONNX model: it has no graph", hint="is it another format, or cut short?")
    _refuse_external_data(proto, name)
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, check_type=True, data_prop=True)
    except Exception as error:  # ValidationError, InferenceError; of types and texts that do not exist, others too
        raise ModelError(
            f"{name} is not a valid ONNX model: {_one_line(error)}",
            hint="export it again, or correct that node",
            evidence=_text(error),
        ) from error
    return proto


def tensors_in(proto: Any, name: str) -> tuple[TensorSpec, ...]:
    """The inputs of an `onnx.ModelProto`; `name` is for messages.

    Raises:
        ModelError: one is no tensor, or has no shape.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    return tuple(_spec(value, name, "input") for value in proto.graph.input if value.name not in constants)


def tensors_out(proto: Any, name: str) -> tuple[TensorSpec, ...]:
    """The outputs of an `onnx.ModelProto`, as far as it gives their shapes."""
    given = (value for value in proto.graph.output if value.type.tensor_type.HasField("shape"))
    return tuple(_spec(value, name, "output") for value in given)


def _spec(value: Any, name: str, what: str) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{name}: {what} {value.name!r} is no tensor", hint="only models over tensors can be run")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelError(f"{name}: {what} {value.name!r} has no shape", hint="export the model with input shapes")
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or "?"
        for dim in tensor.shape.dim
    )
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, ValueError, TypeError) as error:
        kind = tensor.elem_type
        raise ModelError(f"{name}: {what} {value.name!r} has the type {kind}, which ONNX has not") from error
    return TensorSpec(value.name, shape, dtype)


def _refuse_external_data(proto: Any, name: str) -> None:
    """ONNX reads such data from the current folder; tensors are in initializers, attributes, subgraphs, functions."""
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ModelError(
                f"{name} keeps the weights of {tensor.name!r} in another file",
                hint="save it as one file: onnx.save_model(model, path, save_as_external_data=False)",
            )


def _tensors(message: Any) -> Iterator[Any]:
    """Every TensorProto in a protobuf message, however deep."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for described, value in message.ListFields():
        if described.type == described.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _tensors(inner)


def _one_line(error: BaseException) -> str:
    return " ".join(_text(error).split())[:300]


def _text(error: BaseException) -> str:
    """The error's text; ONNX's own errors may quote bytes that are no text."""
    try:
        return str(error)
    except UnicodeError:
        return type(error).__name__
