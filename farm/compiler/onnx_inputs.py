"""What goes into an ONNX model, as its file says it. Imports no TVM: a client looks before it uploads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from farm.compiler.model import TensorSpec
from farm.core.errors import ModelError


def input_specs(proto: Any, name: str) -> tuple[TensorSpec, ...]:
    """The inputs of an `onnx.ModelProto`; `name` is for messages.

    Raises:
        ModelError: one is no tensor, or has no shape.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    return tuple(_spec(value, name) for value in proto.graph.input if value.name not in constants)


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
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(f"{name}: input {value.name!r} has the type {tensor.elem_type}, which ONNX has not") from error
    return TensorSpec(value.name, shape, dtype)
