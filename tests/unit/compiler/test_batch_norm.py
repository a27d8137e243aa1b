"""A folded normalisation changes no number, and only what may be folded is."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from farm.compiler.load import load, summarise
from farm.compiler.relax_passes import fold_batch_norm
from farm.zoo import onnx_bytes
from tests.support.onnx_files import onnx_model

RANDOM = np.random.default_rng(5)
SHAPE = (2, 4, 6, 6)


def network(*after, bias=True, group=1, normalisation_given=False):
    """A convolution, a batch normalisation, and nodes that may use the convolution's output (`c`) too."""
    weights = {
        "w": RANDOM.standard_normal((4, 4 // group, 3, 3)), "b": RANDOM.standard_normal(4),
        "scale": RANDOM.uniform(0.5, 2, 4), "shift": RANDOM.standard_normal(4),
        "mean": RANDOM.standard_normal(4), "variance": RANDOM.uniform(0.1, 3, 4),
    }  # fmt: skip
    given = {"scale": [4]} if normalisation_given else {}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["c"], group=group, pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"], epsilon=0.01),
        *after,
    ]
    kept = {name: value for name, value in weights.items() if name not in given and (bias or name != "b")}
    return onnx_model(nodes, {"x": SHAPE, **given}, {nodes[-1].output[0]: list("NCHW")}, kept).SerializeToString()


def outputs(module, *arrays):
    machine = relax.VirtualMachine(tvm.compile(module, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def kinds(model, module):
    return summarise(replace(model, module=module))["operators"]


RELU = helper.make_node("Relu", ["n"], ["y"])
BOTH = helper.make_node("Add", ["n", "c"], ["y"])
JOINED = helper.make_node("Concat", ["c", "n"], ["y"], axis=1)


@pytest.mark.parametrize(
    ("data", "folded"),
    [
        (network(), True),
        (network(RELU), True),
        (network(RELU, bias=False), True),
        (network(RELU, group=4), True),
        (network(RELU, group=2, bias=False), True),
        (network(BOTH), False),
        (network(JOINED), False),
        (network(BOTH, bias=False), False),
        (network(JOINED, bias=False), False),
    ],
    ids=["last", "bias", "no bias", "depthwise", "grouped", "used", "joined", "used bare", "joined bare"],
)
def test_numbers_stay_and_what_else_is_used_is_left_alone(data, folded):
    model = load(data, name="net.onnx")
    module = fold_batch_norm(model.module)
    assert ("nn.batch_norm" not in kinds(model, module)) == folded
    assert kinds(model, module)["nn.conv2d"] == 1
    x = RANDOM.standard_normal(SHAPE).astype(np.float32)
    assert np.allclose(outputs(module, x), outputs(model.module, x), rtol=1e-5, atol=1e-5)


def test_a_normalisation_that_is_fed_is_left_alone():
    model = load(network(RELU, normalisation_given=True), name="net.onnx")
    assert kinds(model, fold_batch_norm(model.module))["nn.batch_norm"] == 1


def test_none_is_left_in_a_network_of_the_zoo():
    model = load(onnx_bytes("small_cnn"), name="small_cnn")
    found = kinds(model, fold_batch_norm(model.module))
    assert "nn.batch_norm" not in found
    assert found["nn.conv2d"] == summarise(model)["operators"]["nn.conv2d"]
