"""A small but real convolutional network for the demo, tests and benchmarks.

Convolution, depthwise and pointwise convolution with batch normalisation, max and average pooling, dense layer and
softmax; about 12,000 weights, input 1x3x32x32 float32, output 1x10 probabilities.
"""

from __future__ import annotations

from typing import Any

from farm.zoo.builder import INPUT, Network

INPUT_SHAPE = (1, 3, 32, 32)
CLASSES = 10


def build() -> Any:
    """The network as an onnx.ModelProto; the same bytes on every call."""
    net = Network("small_cnn", INPUT_SHAPE)
    x = net.convolution(INPUT, 3, 16, 3)
    x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.convolution(x, 16, 16, 3, group=16)
    x = net.convolution(x, 16, 32, 1)
    x = net.convolution(x, 32, 32, 3, stride=2, group=32)
    x = net.convolution(x, 32, 64, 1)
    x = net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.convolution(x, 64, 64, 3, group=64)
    x = net.convolution(x, 64, 96, 1)
    net.node("Softmax", net.classifier(x, 96, CLASSES), axis=-1)
    return net.model(CLASSES)
