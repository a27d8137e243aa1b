"""A small but real convolutional network for the demo, tests and benchmarks.

    python -m farm.zoo.small_cnn OUT.onnx

Convolution, depthwise and pointwise convolution with batch normalisation, max and average pooling, dense layer and
softmax; about 12,000 seeded weights, input 1x3x32x32 float32, output 1x10 probabilities.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

INPUT_SHAPE = (1, 3, 32, 32)
CLASSES = 10
SEED = 7
OPSET = 17  # widely supported: onnx 1.12 and later, every TVM with a Relax front end
IR_VERSION = 8


class _Builder:
    """Appends nodes one after the other; each method returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(SEED)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def weight(self, shape: tuple[int, ...], fan_in: int) -> str:
        """He initialisation, so that activations keep their size from layer to layer."""
        return self._constant(self._random.standard_normal(shape) * np.sqrt(2.0 / fan_in))

    def convolution(
        self, x: str, channels_in: int, channels: int, kernel: int, *, stride: int = 1, group: int = 1
    ) -> str:
        per_group = channels_in // group
        weights = self.weight((channels, per_group, kernel, kernel), per_group * kernel * kernel)
        pads = [kernel // 2] * 4
        y = self.node("Conv", x, weights, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group)
        return self.node("Relu", self._normalised(y, channels))

    def _normalised(self, x: str, channels: int) -> str:
        scale, mean = self._random.uniform(0.8, 1.2, channels), self._random.standard_normal(channels) * 0.1
        shift, variance = self._random.standard_normal(channels) * 0.1, self._random.uniform(0.8, 1.2, channels)
        return self.node("BatchNormalization", x, *map(self._constant, (scale, shift, mean, variance)))

    def _constant(self, values: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype=np.float32), name))
        return name


def build() -> Any:
    """The network as an onnx.ModelProto; the same bytes on every call."""
    net = _Builder()
    x = net.convolution("input", 3, 16, 3)
    x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.convolution(x, 16, 16, 3, group=16)
    x = net.convolution(x, 16, 32, 1)
    x = net.convolution(x, 32, 32, 3, stride=2, group=32)
    x = net.convolution(x, 32, 64, 1)
    x = net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.convolution(x, 64, 64, 3, group=64)
    x = net.convolution(x, 64, 96, 1)
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    x = net.node("Gemm", x, net.weight((CLASSES, 96), 96), net.weight((CLASSES,), CLASSES), transB=1)
    net.node("Softmax", x, axis=-1)
    net.nodes[-1].output[0] = "output"
    graph = helper.make_graph(
        net.nodes,
        "small_cnn",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, INPUT_SHAPE)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, (1, CLASSES))],
        net.weights,
    )
    model = helper.make_model(
        graph, producer_name="farm", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    checker.check_model(model, full_check=True)
    return model


def main(arguments: list[str]) -> int:
    """Write the model to the path given."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m farm.zoo.small_cnn OUT.onnx\n")
        return 2
    data = build().SerializeToString(deterministic=True)
    try:
        Path(arguments[0]).write_bytes(data)
    except OSError as error:
        sys.stderr.write(f"error: cannot write {arguments[0]}: {error.strerror}\n")
        return 2
    sys.stdout.write(f"wrote {arguments[0]}: {len(data)} bytes, input 1x3x32x32 float32, output 1x10\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
