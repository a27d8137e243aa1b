"""A model whose run needs a known number of bytes: it spreads one number over a matrix and multiplies that."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

ROW = 4096  # numbers
MIB = 1 << 20


def known_memory_onnx(megabytes: int) -> bytes:
    """ONNX; the matrix has so many MiB. Its product with a vector is no part of the operator that makes it."""
    rows = megabytes * MIB // (4 * ROW)
    nodes = [
        helper.make_node("Expand", ["x", "size"], ["matrix"]),
        helper.make_node("MatMul", ["matrix", "vector"], ["product"]),
        helper.make_node("ReduceMean", ["product"], ["y"], keepdims=1),
    ]
    constants = [
        numpy_helper.from_array(np.array([rows, ROW], np.int64), "size"),
        numpy_helper.from_array(np.full((ROW, 1), 1 / ROW, np.float32), "vector"),
    ]
    edge = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, f"known_memory_{megabytes}", edge[:1], edge[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    return model.SerializeToString(deterministic=True)
