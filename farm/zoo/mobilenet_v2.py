"""MobileNetV2, width 1.0: inverted residuals with linear bottlenecks (Sandler et al., 2018, table 2)."""

from __future__ import annotations

from typing import Any

from farm.zoo.builder import BRANCH_SCALE, INPUT, Network

INPUT_SHAPE = (1, 3, 224, 224)
CLASSES = 1000
# Expansion, output channels, repetitions, stride of the first.
STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
FIRST, LAST = 32, 1280  # channels of the first and of the last convolution


def build() -> Any:
    """The network as an onnx.ModelProto; the same bytes on every call."""
    net = Network("mobilenet_v2", INPUT_SHAPE)
    x = net.convolution(INPUT, 3, FIRST, 3, stride=2, activation="relu6")
    channels = FIRST
    for expansion, wanted, times, first_stride in STAGES:
        for turn in range(times):
            x = _block(net, x, channels, wanted, expansion, first_stride if turn == 0 else 1)
            channels = wanted
    x = net.convolution(x, channels, LAST, 1, activation="relu6")
    net.classifier(x, LAST, CLASSES)
    return net.model(CLASSES)


def _block(net: Network, x: str, channels_in: int, channels: int, expansion: int, stride: int) -> str:
    residual = stride == 1 and channels_in == channels
    inner = channels_in * expansion
    y = net.convolution(x, channels_in, inner, 1, activation="relu6") if expansion > 1 else x
    y = net.convolution(y, inner, inner, 3, stride=stride, group=inner, activation="relu6")
    y = net.convolution(y, inner, channels, 1, activation=None, scale=BRANCH_SCALE if residual else 1.0)
    return net.node("Add", x, y) if residual else y
