"""The first wrong operator of real builds, each part run in this process as a phone would."""

import re
from functools import partial

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from farm.compiler.compile import Recipe
from farm.compiler.cut import OpenModel, run
from farm.compiler.inputs import all_inputs
from farm.compiler.load import import_model, read
from farm.compiler.package import read_package
from farm.compiler.reference import compare
from farm.compiler.targets import TargetRefusedError
from farm.kinds.run.locate import difference, first_imprecise, operator_words, search, shown_alone
from farm.zoo import onnx_bytes
from tests.support.compiling import HOST
from tests.support.texture_models import OPERATORS, model_around
from tests.support.tflite_files import convolution_and_dense
from tests.support.tiny_model import tiny_onnx
from tests.support.wrong_kernels import PhoneHere, kernels, with_noise, with_wrong_kernel

TFLITE = convolution_and_dense(
    *(np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in ((4, 3, 3, 2), (4,), (6, 100))), 5
)
LITTLE = 1 << 9  # bytes of a look: several are needed


def named(data, name="net.onnx"):
    source = read(data, name)
    with source.naming() as naming:
        return import_model(source), naming


def found_in(opened, folder, room=LITTLE):
    inputs, phone = all_inputs(opened.model, {}), PhoneHere(opened, folder)
    return search(opened, inputs, phone.run, lambda _: None, room), inputs, phone


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_each_wrong_kernel_is_named_by_its_nodes_and_no_right_one(tmp_path, precision):
    model, naming = named(tiny_onnx())
    opened = OpenModel(model, Recipe(HOST, precision))
    opened.change = with_noise
    noisy = found_in(opened, tmp_path)[0]
    assert noisy.search.first is None
    assert any(not np.array_equal(noisy.phone[place], right) for place, right in noisy.host.items())
    for place in (0, len(opened.operators) - 1):
        kernel = opened.operators[place].kernel
        opened.change = partial(with_wrong_kernel, kernel=kernel)
        found, inputs, phone = found_in(opened, tmp_path)
        assert (found.search.first, phone.uploads) == (place, found.search.looks)
        assert (1 if place else 2) <= found.search.looks <= 3  # the outputs show the last one
        blame, _, case = shown_alone(opened, place, found, inputs, phone.run, phone.library)
        package = read_package(case)
        assert (blame, package.manifest.precision) == ("phone", precision)
        assert package.outputs[0].shape == opened.operators[place].spec.shape
        assert operator_words(opened, naming, place).count("(node '") >= 1


def test_folded_nodes_are_named_with_what_they_are_folded_into():
    model, naming = named(tiny_onnx())
    opened = OpenModel(model, Recipe(HOST))
    assert [operator_words(opened, naming, at) for at in range(len(opened.operators))] == [
        "Conv (node 'conv'), BatchNormalization (node 'norm'), Relu (node 'relu')",
        "GlobalAveragePool (node 'pool')", "Flatten (node 'flatten')", "MatMul (node 'dense')",
    ]  # fmt: skip
    assert [node.name for node in model.source.proto.graph.node][:2] == ["conv", "norm"]
    assert str(import_model(model.source).module.script()).count("part") == 0


@pytest.mark.parametrize(
    "name", ["small_cnn", "squeeze and excite", "concatenate 3 channels", "instance normalisation"]
)
def test_each_tensor_is_what_onnx_computes_for_the_last_node_that_is_named(name):
    source = model_around(name).source if name in OPERATORS else read(onnx_bytes(name), name)
    with source.naming() as naming:
        model = import_model(source)
    opened, inputs = OpenModel(model, Recipe(HOST)), all_inputs(model, {})
    outputs = {each.name or each.output[0]: each.output[0] for each in source.proto.graph.node}
    wanted = ReferenceEvaluator(source.proto).run(None, inputs, intermediate=True)
    places = range(len(opened.operators))
    checked = 0
    for place, tensor in zip(places, run(opened.on_host(places), [*inputs.values()]), strict=True):
        words = operator_words(opened, naming, place)
        last = re.findall(r"'([^']+)'", words)[-1]
        if " before " in words:
            continue
        right = wanted[outputs[last]]
        if right.shape == tensor.shape:  # else it is a step within a node
            assert compare([tensor], [right], [last]).ok, last
            checked += 1
    assert checked > len(places) * 0.7


def test_operators_of_tensorflow_lite_have_their_places():
    model, naming = named(TFLITE, "net.tflite")
    opened = OpenModel(model, Recipe(HOST))
    words = [operator_words(opened, naming, place) for place in range(len(opened.operators))]
    assert any("CONV_2D (operator 0 that makes " in each for each in words), words
    assert "FULLY_CONNECTED (operator" in words[-1]


def test_what_this_host_computes_from_the_scheduled_function_is_the_compilers_fault(tmp_path):
    model, _ = named(tiny_onnx())
    opened = OpenModel(model, Recipe(HOST))
    wrong = kernels(opened.module)[0]
    opened.change = partial(with_wrong_kernel, kernel=wrong)
    found, inputs, phone = found_in(opened, tmp_path)
    opened.scheduled = with_wrong_kernel(opened.scheduled, wrong)
    opened.change = lambda module: module
    blame, _, case = shown_alone(opened, found.search.first, found, inputs, phone.run, phone.library)
    assert (blame, case is not None) == ("compiler", True)


def test_the_operator_that_overflows_is_found_on_this_host():
    model, naming = named(tiny_onnx())
    inputs = {name: array * 1e5 for name, array in all_inputs(model, {}).items()}
    place, words = first_imprecise(OpenModel(model, Recipe(HOST, "float16")), inputs)
    assert "overflow" in words
    exact = OpenModel(model, Recipe(HOST, "float16"))
    assert first_imprecise(exact, all_inputs(model, {})) is None
    assert operator_words(exact, naming, place)


def test_numbers_in_steps_may_be_off_by_one():
    wanted = np.float32([0.0, 0.05, 0.1, 0.2])
    off = np.float32([0.05, 0.05, 0.1, 0.2])
    assert difference(off, wanted, "float32", "fused_conv2d_quantize_dequantize1").ok
    assert not difference(off, wanted, "float32", "fused_conv2d_dequantize").ok
    assert not difference(off + np.float32(0.06), wanted, "float32", "fused_conv2d_quantize_dequantize1").ok


def test_a_target_that_tvm_schedules_at_once_is_refused():
    model, _ = named(tiny_onnx())
    with pytest.raises(TargetRefusedError, match="no operator can be looked at"):
        OpenModel(model, Recipe({"tag": "qcom/adreno-opencl-texture", "host": HOST}))
