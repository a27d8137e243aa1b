"""Cut-off values stay what they are, and a network with ReLU6 compiles in half precision."""

import numpy as np
import pytest
import tvm
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from farm.compiler.compile import Recipe, compile_model
from farm.compiler.load import import_model, load, summarise
from farm.compiler.relax_model import run_script
from tests.support.needs import needs
from tests.support.onnx_files import onnx_model

SCRIPT = """@R.function
def main(x: R.Tensor((2, 4), dtype="float32")):
    with R.dataflow():
        y = R.clip(x, 0, 6)
        z = R.add(y, y)
        R.output(z)
    return z
"""
VALUES = np.array([[-7.0, 0.5, 6.0, 9.0], [-0.0, 5.9, 6.1, -1e30]], np.float32)


def run(model, *arrays, precision="float32"):
    executable = compile_model(model, Recipe({"kind": "llvm"}, precision))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("precision", ["float32", "float16", "float16_acc32"])
def test_a_clip_of_relax_compiles_in_every_precision(precision, tmp_path):
    script = tmp_path / "clip.py"
    script.write_text(SCRIPT)
    model = import_model(run_script(script))
    assert summarise(model)["operators"] == {"maximum": 1, "minimum": 1, "add": 1}
    assert np.allclose(run(model, VALUES, precision=precision), 2 * VALUES.clip(0, 6), rtol=1e-3)


def clip(*bounds, given=()):
    """An ONNX Clip; a bound is a number, None (left out), or an input of the model when its name is in `given`."""
    names = ["low", "high"]
    said = dict(zip(names, bounds, strict=False))
    clip_ = helper.make_node("Clip", ["x", *("" if each is None else name for name, each in said.items())], ["y"])
    weights = {name: each for name, each in said.items() if each is not None and name not in given}
    return onnx_model([clip_], {"x": [2, 4], **{name: [] for name in given}}, {"y": [2, 4]}, weights)


@needs("g++")  # TVM links what has constants only
@pytest.mark.parametrize("bounds", [(0, 6), (None, 6), (0, None), (None, None), (0.5,), (), (6, 0)])
def test_clips_of_onnx_compute_what_onnx_says(bounds):
    proto = clip(*bounds)
    model = load(proto.SerializeToString(), name="clip.onnx")
    assert not any(kind.startswith("tir.") for kind in summarise(model)["operators"])
    assert np.array_equal(run(model, VALUES), ReferenceEvaluator(proto).run(None, {"x": VALUES})[0])


def test_a_bound_that_is_no_number_bounds_nothing():
    model = load(clip(np.nan, 6).SerializeToString(), name="clip.onnx")
    assert np.array_equal(run(model, VALUES), np.minimum(VALUES, 6))


def test_bounds_that_are_inputs_are_left_to_tvm():
    model = load(clip(0, 6, given=("high",)).SerializeToString(), name="clip.onnx")
    assert np.array_equal(run(model, VALUES, np.array(3, np.float32)), VALUES.clip(0, 3))
