"""Bad models and inputs are refused in one sentence that names the place; a phone's wrong numbers are seen."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from farm.core.errors import ModelError
from farm.worker.compile import TargetError, abi_of, compile_library, to_relax
from farm.worker.onnx_model import inputs_for, load, shapes_of
from farm.worker.reference import MiscompiledError, Reference, WrongNumbersError, compare, judge, reference_for
from farm.worker.small_cnn import INPUT_SHAPE, build

HOST = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
SMALL = build().SerializeToString(deterministic=True)


def tensor(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, weights=(), domain=""):
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, name=f"the_{kind.lower()}", **attributes)


def external():
    weight = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    return model([node("MatMul", ["x", "w"], ["y"])], [tensor("x", [1, 2])], [tensor("y", [1, 2])], [weight])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "net is empty"),
        (b"hello world, this is no model", "net is not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "net is not an ONNX model"),
        (SMALL[: len(SMALL) // 2], "cut short or damaged"),
        (SMALL[:3], "net is not an ONNX model|cut short"),
        (external(), "keeps the weights of 'w' in another file"),
        (
            model([node("MatMul", ["x", "q"], ["y"])], [tensor("x", [1, 2])], [tensor("y", [1, 2])]),
            "not a valid ONNX model: .*the_matmul",
        ),
        (
            model(
                [node("MatMul", ["x", "z"], ["y"])],
                [tensor("x", [1, 2]), tensor("z", [3, 2])],
                [tensor("y", [1, 2])],
            ),
            "not a valid ONNX model: .*the_matmul.*Incompatible",
        ),
        (
            model([node("Nonsense", ["x"], ["y"])], [tensor("x", [1])], [tensor("y", [1])]),
            "not a valid ONNX model: .*Nonsense.*the_nonsense",
        ),
    ],
    ids=["empty", "text", "png", "half", "stub", "external", "undefined", "shapes", "unknown operator"],
)
def test_a_file_that_is_no_model_is_refused(data, said):
    with pytest.raises(ModelError, match=said) as caught:
        load(data, "net")
    assert "\n" not in caught.value.message


def test_an_unsupported_operator_is_named_with_its_node():
    data = model(
        [node("Frobnicate", ["x"], ["h"], domain="lab"), node("Relu", ["h"], ["y"])],
        [tensor("x", [1, 2])],
        [tensor("y", [1, 2])],
        domain="lab",
    )
    with pytest.raises(ModelError, match=r"does not support Frobnicate \(node 'the_frobnicate'\)"):
        to_relax(load(data, "net"), {"x": [1, 2]})


def test_a_node_that_cannot_be_converted_is_named():
    data = model(
        [node("TopK", ["x", "k"], ["y", "i"])],
        [tensor("x", [1, 4]), tensor("k", [1], TensorProto.INT64)],
        [tensor("y", [1, "K"]), tensor("i", [1, "K"], TensorProto.INT64)],
    )
    with pytest.raises(ModelError, match=r"cannot convert it at TopK \(node 'the_topk'\): TopK k must be a constant"):
        to_relax(load(data, "net"), {"x": [1, 4], "k": [1]})


def open_shape():
    return load(model([node("Relu", ["x"], ["y"])], [tensor("x", ["N", 2])], [tensor("y", ["N", 2])]), "net")


def npz(tmp_path, **arrays):
    np.savez(tmp_path / "x.npz", **arrays)
    return (tmp_path / "x.npz").read_bytes()


def test_an_open_dimension_is_named_and_inputs_fix_it(tmp_path):
    with pytest.raises(ModelError, match="input 'x', shape Nx2, leaves dimension 0 open") as caught:
        inputs_for(open_shape(), None)
    assert "--input" in caught.value.hint
    inputs = inputs_for(open_shape(), npz(tmp_path, x=np.ones((5, 2), np.float32)))
    reference = reference_for(open_shape(), inputs, tmp_path)
    assert reference.outputs[0].shape == (5, 2)
    assert compare(reference.host_outputs, reference.outputs, ["y"]).ok


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"input": np.zeros((1, 3, 32))}, "has shape 1x3x32, the model wants 1x3x32x32"),
        ({"input": np.zeros((1, 3, 32, 33))}, "has shape 1x3x32x33"),
        ({"input": np.zeros(INPUT_SHAPE, complex)}, "is complex128, the model wants float32"),
        ({"x": np.zeros(INPUT_SHAPE)}, "lacks the array 'input'"),
        ({"input": np.zeros(INPUT_SHAPE), "y": np.zeros(1)}, "has the array 'y'"),
        ({"input": np.array([object()])}, "no .npz file of plain arrays"),
    ],
    ids=["rank", "shape", "type", "name", "extra", "pickle"],
)
def test_inputs_that_do_not_fit_are_refused(tmp_path, arrays, said):
    with pytest.raises(ModelError, match=said):
        inputs_for(load(SMALL, "net"), npz(tmp_path, **arrays))


def test_random_inputs_are_the_same_every_time():
    first, second = (inputs_for(load(SMALL, "net"), None)["input"] for _ in range(2))
    assert first.shape == INPUT_SHAPE
    assert np.array_equal(first, second)
    assert first.std() > 0.9


def test_the_small_network_is_the_same_every_time_and_both_references_agree(tmp_path):
    assert build().SerializeToString(deterministic=True) == SMALL
    small = load(SMALL, "net")
    assert {"Conv", "MaxPool", "AveragePool", "Gemm", "Softmax"} <= {n.op_type for n in small.proto.graph.node}
    inputs = inputs_for(small, None)
    reference = reference_for(small, inputs, tmp_path)
    assert reference.independent
    assert reference.outputs[0].shape == (1, 10)
    assert np.isclose(reference.outputs[0].sum(), 1.0)
    assert compare(reference.host_outputs, reference.outputs, ["output"]).max_abs_error < 1e-6
    again = reference_for(small, inputs, tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(again.outputs, reference.outputs, strict=True))


@pytest.mark.parametrize(
    ("triple", "machine"), [("x86_64-linux-gnu", 62), ("aarch64-linux-android", 183), ("aarch64-linux-gnu", 183)]
)
def test_libraries_are_linked_for_the_phone_without_an_ndk_and_kept(tmp_path, monkeypatch, triple, machine):
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    small = load(SMALL, "net")
    shapes = shapes_of(inputs_for(small, None))
    target = {"kind": "llvm", "mtriple": triple}
    first = compile_library(small, shapes, target, tmp_path)
    elf = first.library.read_bytes()
    assert elf[:4] == b"\x7fELF"
    assert int.from_bytes(elf[18:20], "little") == machine
    second = compile_library(small, shapes, target, tmp_path)
    assert (first.cached, second.cached, second.sha256) == (False, True, first.sha256)
    other = compile_library(small, shapes, target | {"num-cores": 4}, tmp_path)
    assert other.key != first.key


@pytest.mark.parametrize("target", ["no-such-kind", {"kind": "llvm", "mtriple": "sparc-sun"}, {}, 7])
def test_a_target_no_phone_has_is_refused(target):
    with pytest.raises(TargetError):
        abi_of(target)


def floats(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("got", "ok"),
    [
        (floats(1.0, 2.0, 0.0), True),
        (floats(1.0000001, 2.0, 1e-7), True),
        (floats(1.01, 2.0, 0.0), False),
        (floats(1.0, 2.0, 0.01), False),
        (floats(np.nan, 2.0, 0.0), False),
        (floats(np.inf, 2.0, 0.0), False),
        (floats(1.0, 2.0), False),
        (np.array([1.0, 2.0, 0.0]), False),
    ],
    ids=["equal", "rounding", "off", "off at zero", "nan", "infinity", "shape", "type"],
)
def test_what_is_too_far_off(got, ok):
    wanted = floats(1.0, 2.0, 0.0)
    assert compare([got], [wanted], ["y"]).ok is ok


def test_integers_must_be_equal_and_outputs_complete():
    assert compare([np.array([1, 2])], [np.array([1, 2])], ["y"]).ok
    assert not compare([np.array([1, 3])], [np.array([1, 2])], ["y"]).ok
    assert not compare([], [np.array([1])], ["y"]).ok
    assert compare([floats(np.nan, np.inf)], [floats(np.nan, np.inf)], ["y"]).ok
    worst = compare([floats(1), floats(9)], [floats(1), floats(2)], ["a", "b"])
    assert (worst.ok, worst.output) == (False, "b")


def test_the_blame_for_wrong_numbers_goes_where_it_belongs():
    right, wrong = (floats(1.0),), (floats(2.0),)
    with pytest.raises(MiscompiledError, match="TVM compiles the model wrongly"):
        judge(wrong, Reference(right, wrong, independent=True), ["y"])
    with pytest.raises(WrongNumbersError, match=r"output 'y': off by 1 \(") as caught:
        judge(wrong, Reference(right, right, independent=True), ["y"])
    assert caught.value.fault == "phone"
    assert judge(right, Reference(right, right, independent=True), ["y"])["max_abs_error"] == 0
    one_sided = judge(right, Reference(right, wrong, independent=True), ["y"])
    assert not one_sided["numerics"]["host_against_reference"]["ok"]
