"""What the networks of the zoo are built with: ONNX nodes one after the other, with seeded weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

SEED = 7
OPSET = 17  # widely supported: onnx 1.12 and later, every TVM with a Relax front end
IR_VERSION = 8
INPUT, OUTPUT = "input", "output"
RELU_GAIN = 2.0  # He initialisation: keeps the size of activations where a ReLU drops half of them
LINEAR_GAIN = 1.0  # where none follows
# The last normalisation of a residual branch: with 1 each of ResNet-50's 16 blocks would double the variance.
BRANCH_SCALE = 0.4

Activation = str | None  # "relu", "relu6" or none


class Network:
    """Appends nodes; each method returns the name of its output. Weights come from one seeded generator, in order."""

    def __init__(self, name: str, input_shape: tuple[int, ...]) -> None:
        self.name = name
        self.input_shape = input_shape
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._random = np.random.default_rng(SEED)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Any ONNX operator."""
        output = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def convolution(
        self,
        x: str,
        channels_in: int,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        group: int = 1,
        activation: Activation = "relu",
        scale: float = 1.0,
    ) -> str:
        """Convolution of a square kernel that keeps the size at stride 1, batch normalisation, activation.

        The normalisation is a node of its own, as exporters write it; `scale` is the middle of its factors.
        """
        per_group = channels_in // group
        gain = LINEAR_GAIN if activation is None else RELU_GAIN
        weights = self._weight((channels, per_group, kernel, kernel), per_group * kernel * kernel, gain)
        pads = [kernel // 2] * 4
        y = self.node("Conv", x, weights, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group)
        return self.activation(self._normalised(y, channels, scale), activation)

    def activation(self, x: str, kind: Activation) -> str:
        """ReLU, ReLU6 or nothing."""
        if kind == "relu6":
            return self.node("Clip", x, self._constant(0.0), self._constant(6.0))
        return self.node("Relu", x) if kind == "relu" else x

    def classifier(self, x: str, channels: int, classes: int) -> str:
        """Global average and one dense layer."""
        x = self.node("Flatten", self.node("GlobalAveragePool", x))
        weights, bias = self._weight((classes, channels), channels), self._weight((classes,), classes)
        return self.node("Gemm", x, weights, bias, transB=1)

    def model(self, classes: int) -> Any:
        """The checked onnx.ModelProto, whose output is the last node's: `1 x classes`."""
        self._nodes[-1].output[0] = OUTPUT
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, self.input_shape)],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, (1, classes))],
            self._weights,
        )
        model = helper.make_model(
            graph, producer_name="farm", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        checker.check_model(model, full_check=True)
        return model

    def _weight(self, shape: tuple[int, ...], fan_in: int, gain: float = RELU_GAIN) -> str:
        return self._constant(self._random.standard_normal(shape) * np.sqrt(gain / fan_in))

    def _normalised(self, x: str, channels: int, scale: float) -> str:
        factors, mean = self._random.uniform(0.8, 1.2, channels), self._random.standard_normal(channels) * 0.1
        shift, variance = self._random.standard_normal(channels) * 0.1, self._random.uniform(0.8, 1.2, channels)
        return self.node("BatchNormalization", x, *map(self._constant, (factors * scale, shift, mean, variance)))

    def _constant(self, values: Any) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(values, dtype=np.float32), name))
        return name
