"""A model whose run needs a known number of bytes: it spreads one number over a matrix and multiplies that."""

from __future__ import annotations

import numpy as np
from onnx import checker, helper, numpy_helper

from tests.support.onnx_files import onnx_model

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
    size = numpy_helper.from_array(np.array([rows, ROW], np.int64), "size")
    model = onnx_model(
        nodes, {"x": [1, 1]}, {"y": [1, 1]}, {"size": size, "vector": np.full((ROW, 1), 1 / ROW, np.float32)}
    )
    checker.check_model(model)
    return model.SerializeToString(deterministic=True)
