"""Small networks, each around one operator, whose tensors may lie in textures: for tests and `make bench NAME=texture`.

Every operator stands between two convolutions of one pixel, so that it reads and writes what convolutions do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from farm.compiler.load import load
from farm.compiler.model import ImportedModel

CHANNELS, ROWS, COLUMNS = 8, 9, 10
SHAPE = (1, CHANNELS, ROWS, COLUMNS)
SEED = 11
OPSET, IR_VERSION = 17, 8


class Chain:
    """Nodes that follow each other; a method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(SEED)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Any ONNX operator."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, *shape: int) -> str:
        """Random weights."""
        return self.given(self._random.standard_normal(shape).astype(np.float32))

    def given(self, values: Any) -> str:
        """These numbers."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def convolution(
        self, x: str, channels: int, filters: int, kernel: int = 1, group: int = 1, **attributes: Any
    ) -> str:
        """With a bias; keeps the size if nothing else is given."""
        weights, bias = self.constant(filters, channels // group, kernel, kernel), self.constant(filters)
        given = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": group, **attributes}
        return self.node("Conv", x, weights, bias, **given)


def _pool(kind: str, **attributes: Any) -> Callable[[Chain, str], str]:
    return lambda chain, x: chain.node(kind, x, kernel_shape=[3, 3], **attributes)


def _each(kind: str, **attributes: Any) -> Callable[[Chain, str], str]:
    return lambda chain, x: chain.node(kind, x, **attributes)


def _convolved(**attributes: Any) -> Callable[[Chain, str], str]:
    return lambda chain, x: chain.convolution(x, CHANNELS, CHANNELS, 3, **attributes)


OPERATORS: Mapping[str, Callable[[Chain, str], str]] = {
    "convolution": _convolved(),
    "convolution with stride": _convolved(strides=[2, 2]),
    "convolution, dilated": _convolved(dilations=[2, 2], pads=[2, 2, 2, 2]),
    "convolution, padded on two sides": _convolved(pads=[0, 0, 2, 2]),
    "convolution, depthwise": _convolved(group=CHANNELS),
    "convolution in groups": _convolved(group=4),
    "convolution in groups of whole pixels": _convolved(group=2),
    "convolution of 6 channels": lambda chain, x: chain.convolution(chain.convolution(x, CHANNELS, 6), 6, CHANNELS, 3),
    "convolution, transposed": lambda chain, x: chain.node(
        "ConvTranspose", x, chain.constant(CHANNELS, CHANNELS, 2, 2), strides=[2, 2]
    ),
    "relu": _each("Relu"),
    "leaky relu": _each("LeakyRelu", alpha=0.1),
    "sigmoid": _each("Sigmoid"),
    "tanh": _each("Tanh"),
    "hard swish": _each("HardSwish"),
    "exp of minus square": lambda chain, x: chain.node("Exp", chain.node("Neg", chain.node("Mul", x, x))),
    "add": lambda chain, x: chain.node("Add", x, chain.convolution(x, CHANNELS, CHANNELS, 3)),
    "multiply by one per channel": lambda chain, x: chain.node("Mul", x, chain.constant(1, CHANNELS, 1, 1)),
    "multiply by one per column": lambda chain, x: chain.node("Mul", x, chain.constant(1, 1, 1, COLUMNS)),
    "squeeze and excite": lambda chain, x: chain.node(
        "Mul", x, chain.node("Sigmoid", chain.convolution(chain.node("GlobalAveragePool", x), CHANNELS, CHANNELS))
    ),
    "concatenate": lambda chain, x: chain.convolution(
        chain.node("Concat", x, chain.node("Relu", x), axis=1), 2 * CHANNELS, CHANNELS
    ),
    "concatenate 3 channels": lambda chain, x: chain.convolution(
        chain.node("Concat", x, chain.convolution(x, CHANNELS, 3), axis=1), CHANNELS + 3, CHANNELS
    ),
    "max pool": _pool("MaxPool", strides=[2, 2], pads=[1, 1, 1, 1]),
    "average pool": _pool("AveragePool", strides=[2, 2], pads=[1, 1, 1, 1]),
    "average pool that counts its padding": _pool("AveragePool", pads=[1, 1, 1, 1], count_include_pad=1),
    "global average": _each("GlobalAveragePool"),
    "mean of rows": _each("ReduceMean", axes=[2], keepdims=1),
    "softmax of channels": _each("Softmax", axis=1),
    "transpose": _each("Transpose", perm=[0, 1, 3, 2]),
    "pad": lambda chain, x: chain.node("Pad", x, chain.given([0, 0, 1, 1, 0, 0, 1, 1])),
    "upsample": lambda chain, x: chain.node("Resize", x, "", chain.given(np.float32([1, 1, 2, 2])), mode="nearest"),
    "instance normalisation": lambda chain, x: chain.node(
        "InstanceNormalization", x, chain.constant(CHANNELS), chain.constant(CHANNELS)
    ),
}


def model_around(operator: str) -> ImportedModel:
    """The network around one of OPERATORS."""
    chain = Chain()
    x = OPERATORS[operator](chain, chain.convolution("x", CHANNELS, CHANNELS))
    chain.convolution(x, CHANNELS, CHANNELS)
    chain.nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        chain.nodes,
        operator,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", "c", "h", "w"))],
        chain.weights,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return load(
        helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString(),
        name=f"{operator}.onnx",
    )
