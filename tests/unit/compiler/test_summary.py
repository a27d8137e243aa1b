"""A summary's counts are those that one gets by hand."""

import json

import numpy as np
import pytest
from onnx import helper

from farm.compiler.load import load, summarise
from farm.zoo import onnx_bytes
from tests.support.onnx_files import FLOAT, onnx_model


def summary_of(kind, shape, weight, out, **attributes):
    node = helper.make_node(kind, ["x", "w"], ["y"], **attributes)
    model = onnx_model([node], {"x": shape}, {"y": out}, {"w": np.ones(weight)})
    return summarise(load(model.SerializeToString(), name="one.onnx"))


@pytest.mark.parametrize(
    ("kind", "shape", "weight", "out", "attributes", "macs"),
    [
        ("Conv", (1, 3, 8, 8), (4, 3, 3, 3), (1, 4, 6, 6), {}, 4 * 6 * 6 * 3 * 3 * 3),
        ("Conv", (2, 4, 8, 8), (4, 1, 3, 3), (2, 4, 6, 6), {"group": 4}, 2 * 4 * 6 * 6 * 3 * 3),
        ("Conv", (1, 4, 8, 8), (8, 2, 1, 1), (1, 8, 4, 4), {"group": 2, "strides": [2, 2]}, 8 * 4 * 4 * 2),
        ("Conv", (1, 3, 9), (5, 3, 2), (1, 5, 8), {}, 5 * 8 * 3 * 2),
        ("ConvTranspose", (1, 3, 4, 4), (3, 5, 2, 2), (1, 5, 5, 5), {}, 3 * 4 * 4 * 5 * 2 * 2),
        ("MatMul", (7, 6), (6, 5), (7, 5), {}, 7 * 6 * 5),
        ("MatMul", (2, 7, 6), (2, 6, 5), (2, 7, 5), {}, 2 * 7 * 6 * 5),
        ("Add", (7, 6), (7, 6), (7, 6), {}, 0),
    ],
    ids=["convolution", "depthwise", "grouped", "1d", "transposed", "dense", "batched", "none"],
)
def test_macs_are_those_counted_by_hand(kind, shape, weight, out, attributes, macs):
    found = summary_of(kind, shape, weight, out, **attributes)
    assert found["macs"] == macs
    assert (found["parameters"], found["parameters_bytes"]) == (int(np.prod(weight)), 4 * int(np.prod(weight)))


# By hand, layer by layer, from the papers' tables; the numbers that go round are 300 million, 1.8 and 4.1 billion.
@pytest.mark.parametrize(
    ("name", "macs", "convolutions"),
    [("mobilenet_v2", 300_774_272, 52), ("resnet18", 1_814_073_344, 20), ("resnet50", 4_089_184_256, 53)],
)
def test_the_zoos_networks_have_the_papers_macs(name, macs, convolutions):
    found = summarise(load(onnx_bytes(name), name=f"{name}.onnx"))
    assert found["macs"] == macs
    assert found["operators"]["nn.conv2d"] == found["operators"]["nn.batch_norm"] == convolutions
    assert found["operators"]["matmul"] == 1
    assert json.loads(json.dumps(found))["inputs"] == [{"name": "input", "shape": [1, 3, 224, 224], "dtype": "float32"}]


def test_what_data_decides_is_not_counted():
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["numbers"], to=FLOAT),
        helper.make_node("MatMul", ["numbers", "w"], ["y"]),
    ]
    model = onnx_model(nodes, {"x": [3, 4]}, {"y": ["found", 5]}, {"w": np.ones((2, 5))})
    found = summarise(load(model.SerializeToString(), name="net.onnx"))
    assert (found["macs"], found["operators"]["matmul"]) == (0, 1)
    assert isinstance(found["outputs"][0]["shape"][0], str)
