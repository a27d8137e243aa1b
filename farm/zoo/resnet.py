"""ResNet-18 and ResNet-50 (He et al., 2015, table 1) as PyTorch has them: a bottleneck's stride is on its 3x3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farm.zoo.builder import BRANCH_SCALE, INPUT, Network

INPUT_SHAPE = (1, 3, 224, 224)
CLASSES = 1000
WIDTHS = (64, 128, 256, 512)

Branch = Callable[[Network, str, int, int, int], str]


def resnet18() -> Any:
    """ResNet-18 as an onnx.ModelProto; the same bytes on every call."""
    return _build("resnet18", (2, 2, 2, 2), _basic, 1)


def resnet50() -> Any:
    """ResNet-50 as an onnx.ModelProto; the same bytes on every call."""
    return _build("resnet50", (3, 4, 6, 3), _bottleneck, 4)


def _build(name: str, repeats: tuple[int, ...], branch: Branch, expansion: int) -> Any:
    net = Network(name, INPUT_SHAPE)
    x = net.convolution(INPUT, 3, WIDTHS[0], 7, stride=2)
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = WIDTHS[0]
    for stage, (width, times) in enumerate(zip(WIDTHS, repeats, strict=True)):
        for turn in range(times):
            stride = 2 if stage > 0 and turn == 0 else 1
            shortcut, wanted = x, width * expansion
            if stride > 1 or channels != wanted:
                shortcut = net.convolution(x, channels, wanted, 1, stride=stride, activation=None)
            x = net.activation(net.node("Add", branch(net, x, channels, width, stride), shortcut), "relu")
            channels = wanted
    net.classifier(x, channels, CLASSES)
    return net.model(CLASSES)


def _basic(net: Network, x: str, channels: int, width: int, stride: int) -> str:
    x = net.convolution(x, channels, width, 3, stride=stride)
    return net.convolution(x, width, width, 3, activation=None, scale=BRANCH_SCALE)


def _bottleneck(net: Network, x: str, channels: int, width: int, stride: int) -> str:
    x = net.convolution(x, channels, width, 1)
    x = net.convolution(x, width, width, 3, stride=stride)
    return net.convolution(x, width, width * 4, 1, activation=None, scale=BRANCH_SCALE)
