"""Builds with textures: library, cache and package say what uses them; what a phone computes changes the build."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import tvm

from farm.common.errors import PhoneError, UserError
from farm.compiler.build import BuildRequest, build, make_package
from farm.compiler.compile import CHECKS, EXPECTED, Recipe, compile_library, compile_model
from farm.compiler.load import load
from farm.compiler.package import check_asked, read_package
from farm.compiler.targets import TargetRefusedError
from farm.compiler.texture.check import load_checks
from farm.worker.textures import checked_textures
from farm.zoo import onnx_bytes
from tests.support.compiling import ADRENO, HOST
from tests.support.opencl import opencl_source, syntax_errors
from tests.support.texture_models import model_around
from tests.support.tiny_model import tiny_onnx

DRIVER = "#define __OPENCL_VERSION__ 200\n"  # as a driver defines it
RECIPE = Recipe(ADRENO, texture=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def small():
    return load(tiny_onnx(), name="tiny.onnx")


@pytest.fixture(scope="module")
def made(small, cache):
    return compile_library(small, RECIPE, cache)


def test_convolutions_read_and_write_pixels():
    source = opencl_source(compile_model(load(onnx_bytes("small_cnn"), name="small_cnn.onnx"), RECIPE))
    assert syntax_errors(f"{DRIVER}{source}") == ""
    kernels = [each for each in source.split("__kernel void ")[1:] if "{" in each]
    packed = [each for each in kernels if each.startswith("fused_packed_conv2d")]
    assert len(packed) == 3
    for kernel in packed:
        assert kernel.count("write_imagef(") == 1
        assert kernel.count("READ_IMAGEF(") >= 2  # input and weights


def test_the_library_names_the_operators_that_use_textures_and_the_reason_of_each_other(made, cache, small):
    assert len(made.textures.textures) == 3
    assert made.textures.buffers == {}
    checks = load_checks(made.checks.with_name(EXPECTED))
    assert {each.function for each in checks} == set(made.textures.textures)
    assert all(np.isfinite(each.expected).all() for each in checks)
    again = compile_library(small, RECIPE, cache)
    assert (again.cached, again.textures, again.sha256) == (True, made.textures, made.sha256)


def test_an_operator_that_must_not_use_textures_uses_buffers_with_the_reason(made, small, cache):
    name = next(each for each in made.textures.textures if each.startswith("fused_packed_conv2d"))
    without = compile_library(small, Recipe(ADRENO, texture=True, refused=((name, "wrong numbers"),)), cache)
    assert without.key != made.key
    assert without.textures.buffers[name] == "wrong numbers"
    assert name not in without.textures.textures


def test_an_image_that_is_too_large_is_a_buffer_and_it_is_said(small, cache):
    target = {**ADRENO, "texture_spatial_limit": 4, "texture_depth_limit": 4}
    textures = compile_library(small, Recipe(target, texture=True), cache).textures
    assert "is no image of at most 4 pixels a side and 4 layers" in " ".join(textures.buffers.values())


def test_what_has_no_textures_is_refused(small, tmp_path):
    with pytest.raises(TargetRefusedError, match="farm makes no textures for llvm"):
        compile_library(small, Recipe(HOST, texture=True), tmp_path)
    with pytest.raises(TargetRefusedError, match=r"farm makes no textures for opencl \(adreno, texture\)"):
        compile_library(small, Recipe({**ADRENO, "tag": "qcom/adreno-opencl-texture"}, texture=True), tmp_path)
    with pytest.raises(TargetRefusedError, match="operators without textures"):
        compile_library(small, Recipe(ADRENO, records=tmp_path, texture=True), tmp_path)


def test_a_package_says_which_operators_use_textures(small, made, cache):
    package = read_package(make_package(small, RECIPE, cache)[0])
    assert package.manifest.textures == made.textures
    check_asked(package.manifest, "float32", {}, {}, records=False, texture=True)
    plain, _ = make_package(load(tiny_onnx(), name="tiny.onnx"), Recipe(ADRENO), cache)
    assert b'"textures"' not in plain  # a farm that knows none reads it
    with pytest.raises(UserError, match="--texture is not given, not given"):
        check_asked(read_package(plain).manifest, "float32", {}, {}, records=False, texture=True)


class Machine:
    """A VM on a phone that knows the results of the checks, and has one of them wrong."""

    def __init__(self, library, wrong, says):
        self.results = {each.entry: each.expected for each in load_checks(library.with_name(EXPECTED))}
        self.wrong = {each.entry for each in load_checks(library.with_name(EXPECTED)) if each.function in wrong}
        self.says = says
        self.entry = ""

    def set_input(self, entry, *_tensors):
        self.entry = entry

    def invoke_stateful(self, entry):
        assert entry == self.entry
        if self.says and entry in self.wrong:
            raise RuntimeError(self.says)

    def get_outputs(self, entry):
        return tvm.runtime.tensor(self.results[entry] + (1 if entry in self.wrong else 0))


class Phone:
    """A session with a phone that computes operators of these names wrongly, or fails over them with `says`."""

    suspect = ""

    def __init__(self, *wrong, says=""):
        self.wrong = wrong
        self.says = says
        self.loaded = []

    def device(self, _name):
        return tvm.cpu(0)

    def load(self, library, _name):
        self.loaded.append(library)
        return library

    def virtual_machine(self, library, _device):
        return Machine(library, self.wrong, self.says)


class Daemon:
    def __init__(self):
        self.lines = []

    def progress(self, step):
        self.lines.append(step)

    def log(self, text, _level="info"):
        self.lines.append(text)


@pytest.fixture
def gpu(monkeypatch, request):
    """The GPU that the phone's device states: a name of its own for each test."""
    name = f"GPU of {request.node.name}"
    monkeypatch.setattr("farm.worker.textures.gpu_of", lambda _device: name)
    return name


@pytest.fixture
def built(cache):
    def built(refused=()):
        recipe = replace(RECIPE, refused=tuple(refused))
        return build(tiny_onnx(), "tiny.onnx", BuildRequest(recipe=recipe, shapes={}, dtypes={}), cache)

    return built


def test_a_phone_that_computes_an_operator_wrongly_gets_a_build_without_it_and_that_is_kept(built, gpu):
    first = built()
    assert first.about()["compile"]["textures"]["checked"] == ""
    wrong = first.compiled.textures.textures[0]
    phone, daemon = Phone(wrong), Daemon()
    checked = checked_textures(first, phone, daemon, built)
    told = checked.about()["compile"]["textures"]
    assert wrong not in told["textures"]
    assert told["buffers"][wrong].startswith(f"wrong numbers on {gpu}: off by 1")
    assert told["checked"] == gpu
    assert len(phone.loaded) == 2
    assert any(line.startswith(f"{wrong} does without textures: wrong numbers") for line in daemon.lines)
    assert checked_textures(built(), again := Phone(), Daemon(), built).compiled.key == checked.compiled.key
    assert again.loaded == []


def test_a_lost_link_is_held_against_no_operator_and_nothing_is_kept_of_that_check(built, gpu):
    first = built()
    lost = Phone(first.compiled.textures.textures[0], says="Socket SockChannel::Recv Error: Connection reset by peer")
    with pytest.raises(PhoneError, match="Connection reset"):
        checked_textures(first, lost, Daemon(), built)
    assert checked_textures(first, again := Phone(), Daemon(), built).checked == gpu
    assert len(again.loaded) == 1


def test_nothing_is_kept_of_a_gpu_without_a_name(built):
    for _ in range(2):
        checked = checked_textures(built(), phone := Phone(), Daemon(), built)
        assert checked.checked == "a GPU that states no name or driver"
        assert len(phone.loaded) == 1


def test_a_build_whose_checks_are_lost_is_made_again(made, small, tmp_path):
    shutil.copytree(made.library.parent, tmp_path / made.key)
    (tmp_path / made.key / CHECKS).unlink()
    again = compile_library(small, RECIPE, tmp_path)
    assert not again.cached
    assert again.checks.is_file()


def test_a_build_without_textures_is_not_checked(cache):
    built = build(tiny_onnx(), "tiny.onnx", BuildRequest(recipe=Recipe(ADRENO), shapes={}, dtypes={}), cache)
    assert checked_textures(built, Phone(), Daemon(), None) is built
    assert built.about()["compile"]["textures"] is None


def test_tensors_that_are_put_together_stay_in_textures_unless_a_pixel_would_be_of_two(cache):
    whole, parted = (
        compile_library(model_around(name), RECIPE, cache).textures
        for name in ("concatenate", "concatenate 3 channels")
    )
    assert any("concat" in name for name in whole.textures)
    assert not any("concat" in name for name in parted.textures)
