"""Bad models and inputs are refused in one sentence that names the place; a phone's wrong numbers are seen."""

import hashlib
import io
import shutil
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper
from onnx.reference.ops import op_relu

from farm.common.errors import Code, ModelError
from farm.compiler import inputs as inputs_module
from farm.compiler import reference as reference_module
from farm.compiler.compile import Recipe, compile_library
from farm.compiler.inputs import all_inputs, filled, fitted, import_with, read_arrays
from farm.compiler.load import load, read
from farm.compiler.model import Reference, TensorSpec
from farm.compiler.reference import compare, judge, reference_for
from farm.compiler.targets import TargetError, abi_of
from farm.worker.outputs import check_labels, largest, read_labels, save_arrays
from farm.zoo import SMALL_CNN_SHAPE as INPUT_SHAPE
from farm.zoo import small_cnn as build
from tests.support.errors import raises_code
from tests.support.tiny_model import tiny_onnx

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
        (b"hello world, this is no model", "net is of no known model format"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "net is of no known model format"),
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
        read(data, "net")
    assert "\n" not in caught.value.message


def test_an_unsupported_operator_is_named_with_its_node():
    data = model(
        [node("Frobnicate", ["x"], ["h"], domain="lab"), node("Relu", ["h"], ["y"])],
        [tensor("x", [1, 2])],
        [tensor("y", [1, 2])],
        domain="lab",
    )
    with pytest.raises(ModelError, match=r"does not support Frobnicate \(node 'the_frobnicate'\)"):
        load(data, name="net")


def test_a_node_that_cannot_be_converted_is_named():
    data = model(
        [node("TopK", ["x", "k"], ["y", "i"])],
        [tensor("x", [1, 4]), tensor("k", [1], TensorProto.INT64)],
        [tensor("y", [1, "K"]), tensor("i", [1, "K"], TensorProto.INT64)],
    )
    with pytest.raises(ModelError, match=r"cannot convert it at TopK \(node 'the_topk'\): TopK k must be a constant"):
        load(data, name="net")


def open_shape():
    return read(model([node("Relu", ["x"], ["y"])], [tensor("x", ["N", 2])], [tensor("y", ["N", 2])]), "net")


def inputs_for(source, data):
    return all_inputs(*import_with(source, data))


def npz(**arrays):
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def zipped(**members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return packed.getvalue()


def header(shape):
    """The start of an .npy file that claims to hold so much."""
    packed = io.BytesIO()
    np.lib.format.write_array_header_1_0(packed, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return packed.getvalue()


def test_an_open_dimension_is_named_and_inputs_fix_it(tmp_path):
    with pytest.raises(ModelError, match=r"net: input 'x', shape Nx2, leaves dimension 0 \('N'\) open") as caught:
        inputs_for(open_shape(), None)
    assert "--shape 'x:[1,2]'" in caught.value.hint
    assert "--input" in caught.value.hint
    imported, given = import_with(open_shape(), npz(x=np.ones((5, 2), np.float32)))
    assert [(spec.name, spec.shape) for spec in (*imported.inputs, *imported.outputs)] == [("x", (5, 2)), ("y", (5, 2))]
    reference = reference_for(imported, all_inputs(imported, given), tmp_path)
    assert reference.outputs[0].shape == (5, 2)
    assert compare(reference.host_outputs, reference.outputs, ["y"]).ok


GOOD = np.zeros(INPUT_SHAPE, np.float32)


def with_one(value, dtype=np.float32):
    array = np.zeros(INPUT_SHAPE, dtype)
    array[0, 2, 0, 1] = value
    return array


@pytest.mark.parametrize(
    ("data", "said", "next_"),
    [
        (npz(input=np.zeros((1, 3, 32))), "'input' has shape 1x3x32, the model wants 1x3x32x32", "that shape"),
        (npz(input=np.zeros((1, 3, 32, 33))), "has shape 1x3x32x33", "that shape"),
        (npz(input=np.zeros(())), "has shape scalar, the model wants 1x3x32x32", "that shape"),
        (npz(input=np.zeros(INPUT_SHAPE, complex)), "is complex128, the model wants float32", ".astype('float32')"),
        (npz(x=GOOD), "has the array 'x', which is no input of net", "net has inputs: input"),
        (npz(input=GOOD, inptu=GOOD), "has the array 'inptu'", "did you mean 'input'?"),
        (npz(), "the inputs file holds no array", "numpy.savez"),
        (npz(input=with_one(np.nan)), r"input 'input' has nan at \[0, 2, 0, 1\]", "numbers only"),
        (npz(input=with_one(-np.inf)), r"has -inf at \[0, 2, 0, 1\]", "numbers only"),
        (npz(input=with_one(1e200, np.float64)), "has 1e[+]200 at", "float32 cannot hold it"),
        (npz(input=np.array([object()])), r"'input.npy' in the inputs file holds Python objects", "numpy.savez"),
        (GOOD.dumps(), "is a pickle", "numpy.savez"),
        (header(INPUT_SHAPE) + GOOD.tobytes(), r"is one array \(.npy\)", "numpy.savez"),
        (b"", "no .npz file of plain arrays", "numpy.savez"),
        (npz(input=GOOD)[:-40], "no .npz file of plain arrays", "numpy.savez"),
        (npz(input=GOOD).replace(b"\0" * 500, b"\1" * 500), "is damaged, or no array", "numpy.savez"),
        (zipped(input=b"text"), "is damaged, or no array", "numpy.savez"),
        (zipped(input=header(INPUT_SHAPE)), "is damaged, or no array", "numpy.savez"),
    ],
    ids=[
        "rank", "shape", "scalar", "type", "name", "near name", "none", "nan", "infinity", "overflow", "objects",
        "pickle", "npy", "empty", "cut", "damaged", "text", "short",
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(data, said, next_):
    with raises_code(Code.BAD_INPUTS, match=said) as caught:
        inputs_for(read(SMALL, "net"), data)
    assert next_ in caught.value.hint
    assert caught.value.fault == "user"
    assert "\n" not in caught.value.message


def test_an_empty_array_and_a_boastful_one_are_refused(monkeypatch):
    with raises_code(Code.BAD_INPUTS, match="input 'x' is empty: its shape is 0x2"):
        inputs_for(open_shape(), npz(x=np.zeros((0, 2))))
    monkeypatch.setattr(inputs_module, "MAX_ARRAY_BYTES", 100_000)
    with raises_code(Code.BAD_INPUTS, match="1,000,128 bytes"):
        inputs_for(open_shape(), zipped(x=header((125_000, 2)) + bytes(1_000_000)))


def test_integers_keep_their_value_or_are_refused():
    data = model(
        [node("Neg", ["x"], ["y"])], [tensor("x", [2], TensorProto.INT32)], [tensor("y", [2], TensorProto.INT32)]
    )
    counting = read(data, "net")
    assert inputs_for(counting, npz(x=np.array([1, 2])))["x"].dtype == np.int32
    with raises_code(Code.BAD_INPUTS, match=r"has 4294967297 at \[1\]"):
        inputs_for(counting, npz(x=np.array([1, 2**32 + 1])))
    with raises_code(Code.BAD_INPUTS, match="is float64, the model wants int32"):
        inputs_for(counting, npz(x=np.array([1.0, 2.0])))


def test_inputs_that_are_not_given_are_filled():
    data = model(
        [node("Add", ["a", "b"], ["c"])], [tensor("a", [2]), tensor("b", [2])], [tensor("c", [2])],
    )  # fmt: skip
    adding = read(data, "net")
    given = fitted(adding, read_arrays(npz(b=np.array([5.0, 6.0]))))
    made = {fill: filled(adding, given, fill) for fill in ("random", "zeros", "ones")}
    assert all(each["b"].tolist() == [5, 6] for each in made.values())
    assert (made["zeros"]["a"].tolist(), made["ones"]["a"].tolist()) == ([0, 0], [1, 1])
    everything = filled(adding, {}, "random")
    assert np.array_equal(made["random"]["a"], everything["a"])  # whatever else is given
    assert not np.array_equal(everything["a"], everything["b"])


def test_the_largest_elements_are_named_by_labels():
    output = np.array([[0.1, np.nan, 0.7, 0.7, np.inf]], np.float32)
    labels = read_labels("cat\ndog\nTaube\u00e9\nowl\nfox\n".encode())
    check_labels(labels, (TensorSpec("y", output.shape, output.dtype),))
    assert [(row["index"], row["label"]) for row in largest(output, 2, labels)] == [(2, "Taube\u00e9"), (3, "owl")]
    assert "at" not in largest(output, 1)[0]
    assert len(largest(output, 100)) == 3  # NaN and infinity are no ranks, and JSON has neither
    rows = largest(np.array([[1, 5], [9, 2]]), 2, ("a", "b"))
    assert rows == [
        {"index": 2, "value": 9.0, "at": [1, 0], "label": "a"}, {"index": 1, "value": 5.0, "at": [0, 1], "label": "b"},
    ]  # fmt: skip
    assert largest(np.float32(3).reshape(()), 5) == [{"index": 0, "value": 3.0}]


def test_labels_that_do_not_fit_are_refused():
    with raises_code(
        Code.BAD_LABELS, match="there are 2 labels, and no output has so many classes: 'y' has 3"
    ) as caught:
        check_labels(("a", "b"), (TensorSpec("y", (1, 3), np.dtype("float32")),))
    assert "one line per class" in caught.value.hint
    with raises_code(Code.BAD_LABELS, match=r"no UTF-8 text \(line 2\)"):
        read_labels(b"cat\n\xff\xfe\n")
    for nothing in (b"", b"\n \n"):
        with raises_code(Code.BAD_LABELS, match="empty"):
            read_labels(nothing)


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=6)), st.integers(1, 20))
def test_the_largest_are_those_that_sorting_finds(output, count):
    ranked = [row["value"] for row in largest(output, count)]
    finite = output[np.isfinite(output)].astype(float)
    assert ranked == sorted(finite.tolist(), reverse=True)[:count]


def test_outputs_are_stored_under_any_name(tmp_path):
    arrays = {"file": np.ones(2), "a/b:0": np.zeros((2, 0)), "arr": np.array(True)}
    save_arrays(tmp_path / "x.npz", list(arrays), list(arrays.values()))
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert set(found.files) == set(arrays)
        assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


def test_the_small_network_is_the_same_every_time_and_both_references_agree(tmp_path):
    assert build().SerializeToString(deterministic=True) == SMALL
    small = load(SMALL, name="net")
    inputs = all_inputs(small, {})
    reference = reference_for(small, inputs, tmp_path)
    assert (reference.independent, reference.by) == (True, "onnx.reference")
    assert reference.outputs[0].shape == (1, 10)
    assert np.isclose(reference.outputs[0].sum(), 1.0)
    assert compare(reference.host_outputs, reference.outputs, ["output"]).max_abs_error < 1e-6
    again = reference_for(small, inputs, tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(again.outputs, reference.outputs, strict=True))


@pytest.fixture(scope="module")
def tiny():
    return load(tiny_onnx(), name="net")


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[: len(whole) // 2], lambda _: b"PK\x03\x04"])
def test_a_reference_that_a_power_cut_left_is_computed_again(tiny, tmp_path, damage):
    inputs = all_inputs(tiny, {})
    reference = reference_for(tiny, inputs, tmp_path)
    (kept,) = tmp_path.glob("reference-*.npz")
    kept.write_bytes(damage(kept.read_bytes()))
    again = reference_for(tiny, inputs, tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(again.outputs, reference.outputs, strict=True))


@pytest.fixture(scope="module")
def compiled(tiny, tmp_path_factory):
    """A folder with a library, and the library's path in it."""
    folder = tmp_path_factory.mktemp("library")
    return folder, compile_library(tiny, Recipe(HOST), folder).library.relative_to(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda library, _: library.write_bytes(b""),
        lambda library, _: library.write_bytes(library.read_bytes()[:4096]),
        lambda library, _: library.write_bytes(library.read_bytes().replace(b"main", b"niam", 1)),
        lambda library, _: library.unlink(),
        lambda _, made: made.write_text(""),
        lambda _, made: made.write_text('["sha256"]'),
        lambda _, made: made.write_text('{"sha256": "0"}'),
    ],
)
def test_a_library_that_a_power_cut_left_is_made_again(tiny, compiled, tmp_path, damage):
    """It would be held against the phones that cannot load it, or against a model that seems to kill them."""
    folder, library = compiled
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    damage(tmp_path / library, (tmp_path / library).with_name("made.json"))
    again = compile_library(tiny, Recipe(HOST), tmp_path)
    assert (again.cached, again.sha256) == (False, hashlib.sha256(again.library.read_bytes()).hexdigest())
    assert again.library == tmp_path / library
    kept = compile_library(tiny, Recipe(HOST), tmp_path)
    assert (kept.cached, kept.kernels) == (True, again.kernels)
    assert {*kept.kernels} == {"cpu"}


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
    with raises_code(Code.MISCOMPILED, match="TVM compiles the model wrongly"):
        judge(wrong, Reference(right, wrong, independent=True, by="numpy"), ["y"])
    with raises_code(Code.WRONG_NUMBERS, match=r"output 'y': off by 1 \(") as caught:
        judge(wrong, Reference(right, right, independent=True, by="numpy"), ["y"])
    assert caught.value.fault == "phone"
    assert judge(right, Reference(right, right, independent=True, by="numpy"), ["y"])["max_abs_error"] == 0
    one_sided = judge(right, Reference(right, wrong, independent=True, by="numpy"), ["y"])
    assert not one_sided["numerics"]["host_against_reference"]["ok"]


def judged_half(got, precise, wanted=(1.0, 2.0)):
    right = (floats(*wanted),)
    reference = Reference(right, right, independent=True, by="numpy")
    return judge([floats(*got)], reference, ["y"], "float16", lambda: [floats(*each) for each in precise])


def test_what_this_host_computes_in_the_same_precision_is_no_phones_fault():
    assert judged_half((1.01, 2.0), [])["max_abs_error"] > 0
    with raises_code(Code.WRONG_PRECISION, match="float16 is too coarse for this model, output 'y': off by 1 ") as same:
        judged_half((1.0, 3.0), [(1.0, 3.01)])
    assert (same.value.fault, same.value.evidence) == ("user", "this host computes the same numbers in float16")
    with raises_code(Code.WRONG_PRECISION) as overflow:
        judged_half((np.nan, np.inf), [(np.inf, 2.0)])  # in another place: sums have another order
    assert overflow.value.evidence == "on this host, too, 1 of 2 numbers of output 'y' overflow in float16"
    for precise in ([(1.0, 2.0)], []):
        with raises_code(Code.WRONG_NUMBERS):
            judged_half((1.0, np.inf), precise)


def test_an_overflow_of_half_precision_is_found_by_this_host(tmp_path):
    weights = [numpy_helper.from_array(np.full((4, 2), 3e4, np.float32), "w")]
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Mul", ["h", "s"], ["y"])]
    weights.append(numpy_helper.from_array(np.float32(1e-4), "s"))
    big = load(model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 2])], weights), name="big.onnx")
    inputs = {"x": np.ones((1, 4), np.float32)}
    overflown = reference_module.host_outputs(big, inputs, "float16")
    assert not np.isfinite(overflown[0]).any()
    with raises_code(Code.WRONG_PRECISION):
        judge(overflown, reference_for(big, inputs, tmp_path), ["y"], "float16", lambda: overflown)


@pytest.mark.parametrize(
    ("dtype", "off", "ok", "said"),
    [
        ("int8", (1, 0, -1), True, "2 of 3 integers differ, by up to 1 step"),
        ("uint8", (0, 0, 2), False, "1 of 3 integers differ, by 2 steps"),
        ("int64", (0, 1, 0), False, "1 of 3 integers differ, by 1"),
        ("bool", (0, 1, 0), False, "1 of 3 integers differ, by 1"),
        ("uint8", (0, 0, 0), True, ""),
    ],
)
def test_integers_of_quantised_models_may_be_off_by_one_step(dtype, off, ok, said):
    wanted = np.array([0 if dtype == "bool" else 7] * 3)
    found = compare([(wanted + off).astype(dtype)], [wanted.astype(dtype)], ["y"])
    assert (found.ok, found.problem) == (ok, said)


def old_norm_and_softmax():
    """At opset 9, where onnx.reference takes BatchNormalization for training and Softmax for one axis."""
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["h"], momentum=0.9), node("Softmax", ["h"], ["y"])]
    weights = [numpy_helper.from_array(floats(*each), name) for name, each in {
        "s": (1, 2), "b": (0, 1), "m": (0.5, -0.5), "v": (1, 4)}.items()]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [tensor("x", [1, 2, 2, 2])], [tensor("y", [1, 2, 2, 2])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4).SerializeToString()


@pytest.mark.parametrize("installed", [True, False], ids=["onnxruntime", "none"])
def test_an_old_opset_has_a_right_reference(tmp_path, monkeypatch, installed):
    if not installed:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    old = load(old_norm_and_softmax(), name="net")
    reference = reference_for(old, all_inputs(old, {}), tmp_path)
    assert (reference.by, reference.disputed) == ("onnx.reference", False)
    assert np.isclose(reference.outputs[0].sum(), 1.0)
    assert compare(reference.host_outputs, reference.outputs, ["y"]).ok


@pytest.fixture
def wrong_relu(monkeypatch):
    """onnx.reference has a defect."""
    monkeypatch.setattr(op_relu.Relu, "_run", lambda _, x: (x,))


def test_a_wrong_evaluator_is_outvoted(tiny, tmp_path, wrong_relu):
    inputs = all_inputs(tiny, {})
    reference = reference_for(tiny, inputs, tmp_path)
    assert "onnxruntime" in reference.by
    assert judge(reference.host_outputs, reference, ["y"])["numerics"]["against_reference"]["ok"]


def test_without_a_second_evaluator_the_part_that_differs_is_named_and_nobody_is_blamed(
    tiny, tmp_path, wrong_relu, monkeypatch
):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    reference = reference_for(tiny, all_inputs(tiny, {}), tmp_path)
    with raises_code(Code.DISPUTED_NUMBERS, match=r"Relu \(node 'relu'\)") as caught:
        judge(reference.host_outputs, reference, ["y"])
    assert "onnxruntime" in caught.value.hint


def test_tvm_is_blamed_where_two_evaluators_agree_or_no_part_alone_differs(tiny, tmp_path, monkeypatch):
    inputs = all_inputs(tiny, {})
    monkeypatch.setattr(reference_module, "_on_host", lambda *_: [floats(1, 2, 3).reshape(1, 3)])
    for installed, by in ((True, "onnx.reference and onnxruntime"), (False, "onnx.reference")):
        if not installed:
            monkeypatch.setitem(sys.modules, "onnxruntime", None)
            next(tmp_path.glob("reference-*")).unlink()
        reference = reference_for(tiny, inputs, tmp_path)
        assert reference.by.startswith(by)
        with raises_code(Code.MISCOMPILED):
            judge(reference.host_outputs, reference, ["y"])
