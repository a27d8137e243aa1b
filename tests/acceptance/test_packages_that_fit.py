"""Packages made for phones by selector, by board and by tag; what does not fit is refused in one sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

from farm.compiler.package import read_package
from tests.support.alone import alone, package_for_here
from tests.support.tiny_model import tiny_onnx

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.farm("oneplus-12")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "open.onnx").write_bytes(tiny_onnx(batch="n"))
    return folder


@pytest.fixture(scope="module")
def here(place):
    return package_for_here(place)


def test_a_package_is_compiled_for_a_phone_by_its_selector(farm, place):
    output = place / "phone.farm.tar"
    options = ("--on", "soc=sm8650", "--shape", "x:[2,4,8,8]", "--precision", "float16", "--without-model")
    done = farm.farm("compile", str(place / "open.onnx"), *options, "-o", str(output))
    assert done.returncode == 0, done.stderr
    package = read_package(output)
    assert package.manifest.inputs[0].shape == (2, 4, 8, 8)
    assert (package.manifest.precision, package.model) == ("float16", None)
    run = farm.farm("run", str(output), "--on", "android", "--json")
    assert run.returncode == 0, run.stderr
    (result,) = json.loads(run.stdout)["results"]
    assert 1e-6 < result["max_abs_error"] < 1e-2
    inputs = place / "x2.npz"
    np.savez(inputs, x=np.ones((2, 4, 8, 8), np.float32))
    run = farm.farm("run", str(output), "--on", "android", "--input", str(inputs), "--json")
    (result,) = json.loads(run.stdout)["results"]
    assert result["max_abs_error"] is None
    assert "no model inside" in result["numerics"]["note"]


def test_what_does_not_fit_is_refused(farm, here, place):
    made = alone("compile", "open.onnx", "--target", "rpi4", "--shape", "x:[1,4,8,8]", "-o", "rpi.farm.tar",
                 cwd=place, cache=place / "cache")  # fmt: skip
    assert made.returncode == 0, made.stderr
    for arguments, said in (
        (["run", str(place / "rpi.farm.tar"), "--on", "android"], "compiled for arm64-v8a (linux-glibc), and this is"),
        (["run", str(here), "--on", "android", "--precision", "float16"], "--precision is float32, not float16"),
        (["run", str(place / "open.onnx"), "--on", "android"], "leaves dimension 0 ('n') open"),
        (["run", str(here), "--on", "android", "--target", "rpi4"], "has the target 'rpi4'"),
        (
            ["run", str(here), "--on", "android", "--target", '{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}'],
            "is for aarch64-linux-gnu, and",
        ),
        (["compile", str(here), "--target", "host"], "is a package already"),
        (["compile", str(place / "open.onnx"), "--target", "rpi44"], "no target 'rpi44' without a phone"),
        (["compile", str(place / "open.onnx"), "--target", "qcom/adreno-opencl-texture"], "wrong code for textures"),
    ):
        done = farm.farm(*arguments)
        assert (done.returncode, said in done.stderr) == (2, True), (arguments, done.stderr)
        assert "Traceback" not in done.stderr
