"""Small networks, each around one operator, whose tensors may lie in textures: for tests and `make bench NAME=texture`.

Every operator stands between two convolutions of one pixel, so that it reads and writes what convolutions do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from onnx import helper, numpy_helper
from tvm import relax

from farm.compiler.compile import EXPECTED, Compiled
from farm.compiler.inputs import all_inputs
from farm.compiler.load import load
from farm.compiler.model import Array, ImportedModel
from farm.compiler.reference import flatten
from farm.compiler.relax_passes import FLOAT32
from farm.compiler.texture.check import load_checks
from farm.worker.textures import wrong_operators
from tests.support.onnx_files import onnx_model

CHANNELS, ROWS, COLUMNS = 8, 9, 10
SHAPE = (1, CHANNELS, ROWS, COLUMNS)
SEED = 11


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


def model_around(*operators: str) -> ImportedModel:
    """The network around some of OPERATORS, one after the other; of several, each must keep the size."""
    chain = Chain()
    x = chain.convolution("x", CHANNELS, CHANNELS)
    for operator in operators:
        x = chain.convolution(OPERATORS[operator](chain, x), CHANNELS, CHANNELS)
    chain.nodes[-1].output[0] = "y"
    name = operators[0] if len(operators) == 1 else "operators"
    weights = {each.name: each for each in chain.weights}
    model = onnx_model(chain.nodes, {"x": SHAPE}, {"y": ("n", "c", "h", "w")}, weights)
    return load(model.SerializeToString(), name=f"{name}.onnx")


def outputs_on(device: Any, compiled: Compiled, model: ImportedModel) -> list[Array]:
    """What a library computes on a device of this process from farm's seeded inputs."""
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(compiled.library)), device)
    return flatten(machine["main"](*(tvm.runtime.tensor(array, device) for array in all_inputs(model, {}).values())))


def wrong_on(device: Any, compiled: Compiled, precision: str = FLOAT32) -> dict[str, str]:
    """The checks of a build with textures on a device of this process."""
    assert compiled.checks is not None
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(compiled.checks)), device)

    def run(entry: str, inputs: Sequence[Array]) -> Array:
        return flatten(machine[entry](*(tvm.runtime.tensor(array, device) for array in inputs)))[0]

    return wrong_operators(load_checks(compiled.checks.with_name(EXPECTED)), run, precision, "this device")
