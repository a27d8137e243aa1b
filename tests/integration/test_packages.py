"""A package runs on phones, on this host and in a plain TVM script; what does not fit is refused in one sentence."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.alone import alone, package_for_here

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.farm("oneplus-12")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return package_for_here(tmp_path_factory.mktemp("models"))


def test_a_package_runs_on_this_host_and_is_checked(here, tmp_path):
    done = alone(
        "run", here.name, "--on", "host", "--json", "-o", str(tmp_path / "y.npz"), cwd=here.parent, cache=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["max_abs_error"] < 1e-6
    assert result["numerics"]["reference"] == "onnx.reference"
    assert (result["device"], result["compile"]["packaged"]) == ("host", True)
    whose = (result["model"]["name"], result["model"]["sha256"])
    assert whose == (here.name, hashlib.sha256(here.read_bytes()).hexdigest())  # not those of the model it names
    with np.load(tmp_path / "y.npz") as arrays:
        assert np.isclose(arrays["output"].sum(), 1.0)


def test_the_documented_lines_load_it_in_a_plain_tvm_script(here, tmp_path):
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "packages.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", lines, str(here)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 10


def test_a_phone_takes_a_package_in_place_of_a_model(farm, here):
    run = farm.farm("run", str(here), "--on", "android", "--json")
    assert run.returncode == 0, run.stderr
    (result,) = json.loads(run.stdout)["results"]
    assert result["max_abs_error"] < 1e-5
    assert result["compile"]["packaged"]
    inputs = here.parent / "x.npz"
    np.savez(inputs, input=np.ones((1, 3, 32, 32), np.float32))
    run = farm.farm("run", str(here), "--on", "android", "--input", str(inputs), "--json")
    (result,) = json.loads(run.stdout)["results"]
    assert result["max_abs_error"] < 1e-5  # the model inside tells what these outputs should be
    assert result["given"] == ["input"]
