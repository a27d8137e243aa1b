"""A model with a few tasks to tune that take next to no time."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def dense_onnx(size: int = 64, layers: int = 1, rows: int = 1) -> bytes:
    """Dense layers with relu: input `x`, rows x size, output `y`; layer widths differ, so that each is a task."""
    random = np.random.default_rng(5)
    nodes, weights, name, width = [], [], "x", size
    for layer in range(layers):
        wider = size + 16 * layer
        weight = (random.standard_normal((width, wider)) / size).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        out = "y" if layer == layers - 1 else f"h{layer}"
        nodes += [
            helper.make_node("MatMul", [name, f"w{layer}"], [f"m{layer}"], name=f"dense{layer}"),
            helper.make_node("Relu", [f"m{layer}"], [out], name=f"relu{layer}"),
        ]
        name, width = out, wider
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, width])
    graph = helper.make_graph(nodes, "dense", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString(deterministic=True))
