"""`farm model` needs no daemon: a network of the zoo is written, looked at, imported, and read back."""

import json
import math
import os
from pathlib import Path

import onnx
import pytest

from farm.compiler.package import write_package
from farm.zoo import onnx_bytes
from tests.support.forked_commands import run_farm
from tests.support.packages import MADE
from tests.support.tiny_model import tiny_onnx


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    assert farm(path, "make", "small_cnn", "-o", "net.onnx").returncode == 0
    return path


def farm(folder, *arguments):
    environ = {**os.environ, "FARM_SOCKET": str(folder / "absent.sock")}
    return run_farm("model", *arguments, environ=environ, folder=folder)


def test_an_imported_model_is_the_same_model(folder):
    shown = farm(folder, "show", "net.onnx")
    assert "inputs: input 1x3x32x32 float32\n" in shown.stdout
    assert "MACs: 868,288\n" in shown.stdout  # the sum of its nine layers, by hand
    done = farm(folder, "import", "net.onnx", "-o", "net.relax.json", "--dtype", "input:float16")
    assert (done.returncode, done.stderr) == (0, "")
    before, after = (json.loads(farm(folder, "show", name, "--json").stdout) for name in ("net.onnx", "net.relax.json"))
    assert after["inputs"] == [{"name": "input", "shape": [1, 3, 32, 32], "dtype": "float16"}]
    assert after["outputs"] == before["outputs"]
    assert (after["macs"], after["parameters_bytes"]) == (before["macs"], before["parameters_bytes"])
    assert set(after["operators"]) - set(before["operators"]) == {"astype"}


def test_a_model_in_two_files_is_shown_and_imported_as_one(folder):
    onnx.save_model(
        onnx.load(folder / "net.onnx"), folder / "two.onnx", save_as_external_data=True, location="two.data",
        size_threshold=0,
    )  # fmt: skip
    one, two = (json.loads(farm(folder, "show", name, "--json").stdout) for name in ("net.onnx", "two.onnx"))
    size = (folder / "two.data").stat().st_size
    assert (one.pop("data_files"), two.pop("data_files")) == ({}, {"two.data": size})
    assert two == one | {"name": "two.onnx"}
    assert (
        f"\ntensors in other files, which go with it: two.data ({size:,} bytes)\n"
        in farm(folder, "show", "two.onnx").stdout
    )
    assert farm(folder, "import", "two.onnx", "-o", "two.relax.json").returncode == 0
    (folder / "two.data").write_bytes(b"cut short")
    cut = farm(folder, "show", "two.onnx")
    assert (cut.returncode, cut.stdout) == (2, "")
    assert "'two.data' has 9 bytes, and tensor" in cut.stderr


def test_of_an_open_model_is_said_what_is_known(folder):
    (folder / "open.onnx").write_bytes(tiny_onnx(batch="n"))
    shown = farm(folder, "show", "open.onnx")
    assert "inputs: x [n, 4, 8, 8] float32\n" in shown.stdout
    assert "parameters: 344 " in shown.stdout
    assert "1 GlobalAveragePool" in shown.stdout
    assert shown.stdout.endswith("give them: --shape 'x:[1,4,8,8]'\n")
    about = json.loads(farm(folder, "show", "open.onnx", "--json").stdout)
    assert (about["macs"], about["open"]) == (None, ["--shape 'x:[1,4,8,8]'"])


def test_a_package_says_what_it_is(folder):
    (folder / "net.farm.tar").write_bytes(write_package(MADE, {"model.so": b"library", "reference.npz": b"arrays"}))
    shown = farm(folder, "show", "net.farm.tar").stdout
    assert "net.onnx: a package, of onnx" in shown
    assert "inputs: x 1x4 float32\noutputs: y 1x2 bfloat16\n" in shown
    assert "by farm 1, TVM 0.27.0, linker ld.lld" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "/etc/passwd"], "passwd is of no known model format"),
        (["show", "absent.onnx"], "absent.onnx does not exist"),
        (["show", "net.onnx", "--shape", "inptu:[1]"], "did you mean 'input'?"),
        (["show", "net.onnx", "--shape", "input:1x3"], "is no list in brackets"),
        (["show", "net.onnx", "--shape", "input:[1,3,32,64]"], "dimension 3 is 32 in the file, and 64 is asked for"),
        (["show", "net.onnx", "--dtype", "input:flaot16"], "did you mean float16?"),
        (["import", "net.onnx", "-o", "absent/net.json"], "cannot write"),
        (["make", "resnet19", "-o", "net2.onnx"], "did you mean resnet18?"),
    ],
)
def test_a_mistake_is_one_clear_message(folder, arguments, said):
    done = farm(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_figures_in_the_guide_are_the_models():
    """docs/models.md shows what `farm model show` prints of MobileNetV2."""
    weights = onnx.load_from_string(onnx_bytes("mobilenet_v2")).graph.initializer
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert f"parameters: {sum(math.prod(each.dims) for each in weights):,} " in text
