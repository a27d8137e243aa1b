"""What the acceptance tests share."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.gate_process import running_gate
from tests.support.stock_client import Clients, compile_kernel
from tests.support.tvm import ROOT

BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    pytest.importorskip("hatchling", reason="what builds the wheel is not installed")
    dist = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", BUILD, str(dist)], cwd=ROOT, check=True, capture_output=True, timeout=60)
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    """A library with `add_one`, compiled by stock TVM for the machine that virtual phones are."""
    return compile_kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="module")
def gate():
    """A gate apart, for farms that name its socket."""
    with tempfile.TemporaryDirectory(prefix="farm-g-") as folder, running_gate(Path(folder)) as gate:
        yield gate


@pytest.fixture
def clients(farm, kernel):
    """Programs of stock TVM for it."""
    return Clients(farm, kernel)


@pytest.fixture
def open_socket(farm):
    """Strangers can reach the daemon, as an operator might allow."""
    before = {path: path.stat().st_mode for path in (farm.folder, farm.socket.parent, farm.socket)}
    for path in before:
        path.chmod(0o777)
    yield
    for path, mode in before.items():
        path.chmod(mode)
