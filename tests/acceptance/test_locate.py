"""`farm run --locate` on a virtual phone: the operator, who is to blame, and a package that shows it again."""

import json

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax, te, tirx

from farm.compiler.package import read_package
from tests.support.onnx_files import onnx_model
from tests.support.whole_farm import Story, answer

pytestmark = pytest.mark.farm("oneplus-12")


def wrong_on_phones():
    """A module with a function that computes otherwise where there is a folder that phones have."""

    given = te.placeholder((8,), "float32", name="given")
    there = tirx.call_extern("int32", "access", "/data/local/tmp", 0).astype("float32")
    made = te.compute((8,), lambda at: given[at] + there, name="shifted")
    opaque = 8  # it is not fused with its neighbours
    shifted = te.create_prim_func([given, made]).with_attr("op_pattern", opaque)
    builder = relax.BlockBuilder(tvm.IRModule())
    function = builder.add_func(shifted.with_attr("global_symbol", "shifted"), "shifted")
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            begun = builder.emit(relax.op.exp(x), "begun")
            suspect = builder.emit(relax.call_tir(function, relax.Tuple([begun]), x.ty), "suspect")
            last = builder.emit_output(relax.op.sigmoid(suspect))
        builder.emit_func_output(last)
    return tvm.ir.save_json(builder.get())


def overflowing():
    nodes = [
        helper.make_node("Mul", ["x", "large"], ["a"], name="enlarge"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="dense"),
        helper.make_node("Mul", ["b", "small"], ["y"], name="shrink"),
    ]
    weights = {"large": 1e3, "w": np.full((64, 4), 50.0), "small": 1e-6}
    return onnx_model(nodes, {"x": (1, 64)}, {"y": (1, 4)}, weights).SerializeToString()


def test_a_kernel_that_is_wrong_on_the_phone_alone_is_named_and_packed(farm, phone, tmp_path):
    model, case = tmp_path / "net.relax.json", tmp_path / "case.farm.tar"
    model.write_text(wrong_on_phones())
    once = ("--on", phone.name, "--max-attempts", "1")
    wrong = farm.farm("run", str(model), *once)
    assert (wrong.returncode, "farm run MODEL --locate" in wrong.stderr) == (1, True), wrong.stderr
    found = farm.farm("run", str(model), *once, "--locate", "-o", str(case), "--json")
    assert found.returncode == 0, found.stderr
    (result,) = json.loads(found.stdout)["results"]
    located = result["located"]
    assert (located["blame"], located["operator"], located["kernel"]) == ("phone", "suspect", "shifted")
    assert (located["uploads"], result["file"]) == (3, str(case))
    package = read_package(case)
    assert [each.shape for each in package.inputs] == [(8,)]
    again = farm.farm("run", str(case), *once)
    assert (again.returncode, "wrong numbers, output 'output': off by 1 " in again.stderr) == (1, True), again
    job = farm.farm("job", "show", result["job"])
    assert f"farm job output {result['job']} -o case.farm.tar" in job.stdout, job


def test_an_overflow_of_half_precision_is_nobodys_phone(farm, phone, tmp_path):
    model, story = tmp_path / "large.onnx", Story(farm)
    model.write_bytes(overflowing())
    half = ("--on", phone.name, "--precision", "float16")
    failed = farm.farm("run", str(model), *half)
    assert failed.returncode == 2, failed
    assert "float16 is too coarse for this model" in failed.stderr
    story.read()
    assert [kind for kind in story.kinds(phone.name) if kind in ("device.recovering", "device.checking")] == []
    assert story.kinds().count("attempt.started") == 1
    (result,) = answer(farm.farm("run", str(model), *half, "--locate", "--json"))["results"]
    assert result["located"]["blame"] == "precision"
    assert result["located"]["operator"].startswith("MatMul (node 'dense')")
    assert result["located"]["problem"] == "4 of 4 numbers overflow"


def test_a_model_that_is_right_has_no_wrong_operator(farm, phone, model):
    (result,) = answer(farm.farm("run", str(model), "--on", phone.name, "--locate", "--json"))["results"]
    assert (result["located"]["blame"], result["located"]["reason"]) == ("", "all outputs are right")
    for arguments, said in (
        (["--on", "host", "--locate"], "--locate compares a phone with this host"),
        (["--on", phone.name, "--locate", "-o", "case.npz"], "a package is written as .farm.tar"),
    ):
        refused = farm.farm("run", str(model), *arguments)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused
