"""A single convolution as ResNets have it, 64 channels to 64 in a window of 3 x 3: one operator to tune, for the demo.

Input 1x64x14x14 float32, output 1x12544; 7.2 million multiplications, 37,000 weights.
"""

from __future__ import annotations

from typing import Any

from farm.zoo.builder import INPUT, Network

CHANNELS = 64
SIZE = 14


def build() -> Any:
    """The network as an onnx.ModelProto; the same bytes on every call."""
    net = Network("one_conv", (1, CHANNELS, SIZE, SIZE))
    net.node("Flatten", net.convolution(INPUT, CHANNELS, CHANNELS, 3))
    return net.model(CHANNELS * SIZE * SIZE)
