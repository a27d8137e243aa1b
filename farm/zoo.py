"""Networks for tests, benchmarks and the demo: built from seeds, without a download.

`python -m farm.zoo NAME OUT.onnx` writes one. Each builder returns an onnx.ModelProto, with the same bytes on every
call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from farm.common.errors import UserError
from farm.common.selector import nearest

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


IMAGENET_SHAPE = (1, 3, 224, 224)
IMAGENET_CLASSES = 1000
SMALL_CNN_SHAPE = (1, 3, 32, 32)
# Expansion, output channels, repetitions, stride of the first.
MOBILENET_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
MOBILENET_FIRST, MOBILENET_LAST = 32, 1280  # channels of the first and of the last convolution
RESNET_WIDTHS = (64, 128, 256, 512)

Branch = Callable[[Network, str, int, int, int], str]


def onnx_bytes(name: str) -> bytes:
    """The network's ONNX file; the same bytes every time.

    Raises:
        UserError: there is no network of that name.
    """
    if name not in MODELS:
        near = nearest(name, MODELS)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(MODELS)}"
        raise UserError(f"the zoo has no network {name!r}", hint=hint)
    data: bytes = MODELS[name]().SerializeToString(deterministic=True)
    return data


def small_cnn() -> Any:
    """A small but real convolutional network for the demo, tests and benchmarks.

    Convolution, depthwise and pointwise convolution with batch normalisation, max and average pooling, dense layer and
    softmax; about 12,000 weights, input 1x3x32x32 float32, output 1x10 probabilities.
    """
    classes = 10
    net = Network("small_cnn", SMALL_CNN_SHAPE)
    x = net.convolution(INPUT, 3, 16, 3)
    x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.convolution(x, 16, 16, 3, group=16)
    x = net.convolution(x, 16, 32, 1)
    x = net.convolution(x, 32, 32, 3, stride=2, group=32)
    x = net.convolution(x, 32, 64, 1)
    x = net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.convolution(x, 64, 64, 3, group=64)
    x = net.convolution(x, 64, 96, 1)
    net.node("Softmax", net.classifier(x, 96, classes), axis=-1)
    return net.model(classes)


def one_conv() -> Any:
    """A single convolution as ResNets have it, 64 channels to 64 in a window of 3 x 3: one operator to tune.

    Input 1x64x14x14 float32, output 1x12544; 7.2 million multiplications, 37,000 weights.
    """
    channels, size = 64, 14
    net = Network("one_conv", (1, channels, size, size))
    net.node("Flatten", net.convolution(INPUT, channels, channels, 3))
    return net.model(channels * size * size)


def mobilenet_v2() -> Any:
    """MobileNetV2, width 1.0: inverted residuals with linear bottlenecks (Sandler et al., 2018, table 2)."""
    net = Network("mobilenet_v2", IMAGENET_SHAPE)
    x = net.convolution(INPUT, 3, MOBILENET_FIRST, 3, stride=2, activation="relu6")
    channels = MOBILENET_FIRST
    for expansion, wanted, times, first_stride in MOBILENET_STAGES:
        for turn in range(times):
            x = _inverted_residual(net, x, channels, wanted, expansion, first_stride if turn == 0 else 1)
            channels = wanted
    x = net.convolution(x, channels, MOBILENET_LAST, 1, activation="relu6")
    net.classifier(x, MOBILENET_LAST, IMAGENET_CLASSES)
    return net.model(IMAGENET_CLASSES)


def _inverted_residual(net: Network, x: str, channels_in: int, channels: int, expansion: int, stride: int) -> str:
    residual = stride == 1 and channels_in == channels
    inner = channels_in * expansion
    y = net.convolution(x, channels_in, inner, 1, activation="relu6") if expansion > 1 else x
    y = net.convolution(y, inner, inner, 3, stride=stride, group=inner, activation="relu6")
    y = net.convolution(y, inner, channels, 1, activation=None, scale=BRANCH_SCALE if residual else 1.0)
    return net.node("Add", x, y) if residual else y


def resnet18() -> Any:
    """ResNet-18 (He et al., 2015, table 1)."""
    return _resnet("resnet18", (2, 2, 2, 2), _basic, 1)


def resnet50() -> Any:
    """ResNet-50 as PyTorch has it: a bottleneck's stride is on its 3x3."""
    return _resnet("resnet50", (3, 4, 6, 3), _bottleneck, 4)


def _resnet(name: str, repeats: tuple[int, ...], branch: Branch, expansion: int) -> Any:
    net = Network(name, IMAGENET_SHAPE)
    x = net.convolution(INPUT, 3, RESNET_WIDTHS[0], 7, stride=2)
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = RESNET_WIDTHS[0]
    for stage, (width, times) in enumerate(zip(RESNET_WIDTHS, repeats, strict=True)):
        for turn in range(times):
            stride = 2 if stage > 0 and turn == 0 else 1
            shortcut, wanted = x, width * expansion
            if stride > 1 or channels != wanted:
                shortcut = net.convolution(x, channels, wanted, 1, stride=stride, activation=None)
            x = net.activation(net.node("Add", branch(net, x, channels, width, stride), shortcut), "relu")
            channels = wanted
    net.classifier(x, channels, IMAGENET_CLASSES)
    return net.model(IMAGENET_CLASSES)


def _basic(net: Network, x: str, channels: int, width: int, stride: int) -> str:
    x = net.convolution(x, channels, width, 3, stride=stride)
    return net.convolution(x, width, width, 3, activation=None, scale=BRANCH_SCALE)


def _bottleneck(net: Network, x: str, channels: int, width: int, stride: int) -> str:
    x = net.convolution(x, channels, width, 1)
    x = net.convolution(x, width, width, 3, stride=stride)
    return net.convolution(x, width, width * 4, 1, activation=None, scale=BRANCH_SCALE)


MODELS: Mapping[str, Callable[[], Any]] = {
    build.__name__: build for build in (mobilenet_v2, one_conv, resnet18, resnet50, small_cnn)
}


def main(arguments: list[str]) -> int:
    """Write the network to the path given."""
    if len(arguments) != 2:
        sys.stderr.write(f"usage: python -m farm.zoo NAME OUT.onnx\nNAME: {', '.join(MODELS)}\n")
        return 2
    name, path = arguments
    try:
        data = onnx_bytes(name)
        Path(path).write_bytes(data)
    except UserError as error:
        sys.stderr.write(f"error: {error.message}\n  {error.hint}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"error: cannot write {path}: {error.strerror}\n")
        return 2
    sys.stdout.write(f"wrote {path}: {len(data)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
