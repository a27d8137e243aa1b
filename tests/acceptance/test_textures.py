"""Operators with textures on a real OpenCL driver: each computes what the host does, alone and in a network."""

from functools import partial

import pytest

from farm.compiler.compile import Recipe, compile_library, compile_model
from farm.compiler.cut import OpenModel
from farm.compiler.inputs import all_inputs
from farm.compiler.load import load
from farm.compiler.package import read_package
from farm.compiler.reference import compare
from farm.kinds.run.locate import search, shown_alone
from farm.zoo import onnx_bytes
from tests.support.compiling import HOST, outputs_of
from tests.support.opencl import has_float16, load_opencl
from tests.support.texture_models import model_around, outputs_on, wrong_on
from tests.support.tiny_model import tiny_onnx
from tests.support.wrong_kernels import PhoneHere, with_wrong_kernel

ADRENO_HERE = {"tag": "qcom/adreno-opencl", "host": HOST}
RECIPE = Recipe(ADRENO_HERE, texture=True)
ALIKE = (  # they keep the size, so that one network has them all: each kernel is compiled once
    "convolution",
    "convolution, dilated",
    "convolution, depthwise",
    "convolution in groups",
    "convolution in groups of whole pixels",
    "hard swish",
    "squeeze and excite",
    "concatenate",
    "concatenate 3 channels",
    "average pool that counts its padding",
    "softmax of channels",
)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def device():
    return load_opencl()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def check(device, model, cache):
    compiled = compile_library(model, RECIPE, cache)
    assert wrong_on(device, compiled) == {}
    host = outputs_of(compile_model(model, Recipe(HOST)), model)
    found = compare(outputs_on(device, compiled, model), host, [each.name for each in model.outputs])
    assert (found.ok, found.max_rel_error < 1e-5) == (True, True), found
    return compiled.textures


def test_operators_compute_what_the_host_does_alone_and_one_after_the_other(device, cache):
    textures = check(device, model_around(*ALIKE), cache)
    assert len(textures.textures) > 10


def test_a_network_computes_what_the_host_does(device, cache):
    textures = check(device, load(onnx_bytes("small_cnn"), name="small_cnn.onnx"), cache)
    assert len(textures.textures) == 9
    assert textures.buffers == {}


@pytest.mark.parametrize("texture", [False, True])
def test_half_precision_is_right_where_the_driver_has_it(device, cache, texture):
    if not has_float16():
        pytest.skip("the host's OpenCL driver has no float16 (cl_khr_fp16); docs/virtual-phone.md names one that has")
    model = load(tiny_onnx(), name="tiny.onnx")
    compiled = compile_library(model, Recipe(ADRENO_HERE, "float16", texture=texture), cache)
    if texture:
        assert len(compiled.textures.textures) == 3
        assert wrong_on(device, compiled, "float16") == {}
    host = outputs_of(compile_model(model, Recipe(HOST)), model)
    found = compare(outputs_on(device, compiled, model), host, ["y"], "float16")
    assert found.ok, found
    assert found.max_rel_error > 1e-6  # it is not float32 after all


def test_tensors_that_fit_no_image_are_buffers_and_the_numbers_are_right(device, cache):
    model = model_around("max pool")
    limited = Recipe({**ADRENO_HERE, "texture_spatial_limit": 6, "texture_depth_limit": 2}, texture=True)
    compiled = compile_library(model, limited, cache)
    assert any("is no image of at most 6 pixels" in reason for reason in compiled.textures.buffers.values())
    host = outputs_of(compile_model(model, Recipe(HOST)), model)
    assert compare(outputs_on(device, compiled, model), host, ["y"]).ok


@pytest.mark.parametrize("texture", [False, True])
def test_a_wrong_kernel_is_named_and_shown_alone(device, tmp_path, texture):
    model = model_around("add")
    opened, inputs = OpenModel(model, Recipe(ADRENO_HERE, texture=texture)), all_inputs(model, {})
    here = PhoneHere(opened, tmp_path, device)
    assert search(opened, inputs, here.run, lambda _: None).search.first is None
    place = 1
    opened.change = partial(with_wrong_kernel, kernel=opened.operators[place].kernel)
    found = search(opened, inputs, here.run, lambda _: None)
    blame, _, case = shown_alone(opened, place, found, inputs, here.run, here.library)
    assert (found.search.first, blame) == (place, "phone")
    assert len(read_package(case).inputs) == 1
