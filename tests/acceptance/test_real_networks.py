"""MobileNetV2 and ResNet-18 as the tutorials have them, from the ONNX file to the numbers that people read.

onnxruntime runs here, in the test, on the same input: what `farm run -o` wrote is compared with that, not with farm's
own check. Their OpenCL source for Adreno is checked by clang in test_compile_models.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from farm.zoo import onnx_bytes
from tests.support.whole_farm import answer

SHAPE = (1, 3, 224, 224)
MEBIBYTE = 1 << 20
NETWORKS = {"mobilenet_v2": 13 * MEBIBYTE, "resnet18": 44 * MEBIBYTE}  # the least that its weights take

onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.farm("oneplus-12", "galaxy-s9")


@pytest.fixture(scope="module", params=NETWORKS)
def network(request, tmp_path_factory):
    """The folder with a network, an input that has something of an image, and what onnxruntime makes of it."""
    folder = tmp_path_factory.mktemp(request.param)
    data = onnx_bytes(request.param)
    assert len(data) > NETWORKS[request.param]
    (folder / "net.onnx").write_bytes(data)
    image = np.random.default_rng(11).normal(size=SHAPE).astype(np.float32)
    np.savez(folder / "image.npz", input=image)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    [expected] = session.run(None, {"input": image})
    assert np.isfinite(expected).all()
    assert expected.std() > 0
    return folder, expected


def near(found, expected, part=1e-4):
    """Within a part of the largest element; float32 sums in another order differ by far less."""
    return found.shape == expected.shape and np.abs(found - expected).max() <= part * np.abs(expected).max()


def test_a_phone_computes_what_onnxruntime_does(farm, network):
    folder, expected = network
    done = farm.farm(
        "run", str(folder / "net.onnx"), "--on", "android", "--devices", "all", "--input", str(folder / "image.npz"),
        "-o", str(folder / "out.npz"), "--top-k", "5", "--json",
    )  # fmt: skip
    results = answer(done)["results"]
    assert len(results) == 2
    for result in results:
        with np.load(result["file"]) as arrays:
            [found] = arrays.values()
        assert near(found, expected)
        [[first, *_]] = result["top_k"].values()
        assert first["index"] == expected.argmax()


def test_its_package_does_too_and_is_timed(farm, network):
    folder, expected = network
    package = folder / "net.farm.tar"
    assert farm.farm("compile", str(folder / "net.onnx"), "--on", "android", "-o", str(package)).returncode == 0
    done = farm.farm(
        "run", str(package), "--on", "android", "--input", str(folder / "image.npz"), "-o", str(folder / "packed.npz")
    )
    assert done.returncode == 0, done
    with np.load(folder / "packed.npz") as arrays:
        [found] = arrays.values()
    assert near(found, expected)
    done = farm.farm("bench", str(package), "--on", "android", "--devices", "1", "--repeat", "3", "--json")
    [result] = answer(done)["results"]
    assert result["latency"]["count"] == 3
    assert result["numerics"]["reference"] == "onnx.reference"


def test_a_gpu_computes_what_onnxruntime_does(gpu_phone, network):
    """The same on `cl`."""
    folder, expected = network
    name, target = gpu_phone
    out = folder / "gpu.npz"
    done = on_gpu_farm(
        "run", str(folder / "net.onnx"), "--on", f"name={name}", "--target", target,
        "--input", str(folder / "image.npz"), "-o", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done
    with np.load(out) as arrays:
        [found] = arrays.values()
    assert near(found, expected, 1e-3)


@pytest.fixture(scope="module")
def gpu_phone():
    """A ready phone whose bundle has OpenCL, and its GPU's target; of the farm whose socket GPU_FARM is."""
    if "GPU_FARM" not in os.environ:
        pytest.skip("virtual phones have no GPU: GPU_FARM may name the socket of a farm with a bundle with OpenCL")
    able = {each["hash"] for each in answer(on_gpu_farm("bundle", "list", "--json"))["bundles"] if each["has_opencl"]}
    for row in answer(on_gpu_farm("device", "list", "--json"))["devices"]:
        if row["bundle"] in able and row["state"] == "ready":
            targets = answer(on_gpu_farm("device", "show", row["name"], "--json"))["targets"]
            return row["name"], "adreno" if "adreno" in targets else "opencl"
    pytest.skip("no ready phone of GPU_FARM has a bundle with OpenCL")


def on_gpu_farm(*words):
    command = [sys.executable, "-m", "farm", "--socket", os.environ["GPU_FARM"], *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
