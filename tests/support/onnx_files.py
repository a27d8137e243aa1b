"""ONNX models from a few nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def onnx_model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Mapping[str, Sequence[int | str | None]],
    weights: Mapping[str, Any] | None = None,
    *,
    functions: Sequence[Any] = (),
    **more: Any,
) -> ModelProto:
    """A model of these nodes; inputs and outputs are float32 with these shapes, weights are arrays or tensors."""
    x, y = (
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in each.items()]
        for each in (inputs, outputs)
    )
    tensors = [
        value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value, np.float32), name)
        for name, value in (weights or {}).items()
    ]
    graph = helper.make_graph(nodes, "g", x, y, tensors, **more)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, functions=functions, producer_name="tests"
    )
