"""TVM's own C++ server (apps/cpp_rpc of a checkout) on the farm's phones, in the place of farm's tvm_rpc."""

import shutil

import pytest

from farm.common.files import hash_file
from farm.runtime.server import Compiler
from farm.simulation.runtime import find_wheel
from tests.support.ndk import given_checkout
from tests.support.needs import need
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import Story, answer, until_ready

SOURCES = ("main.cc", "rpc_env.cc", "rpc_server.cc")
OPTIONS = ("-std=c++20", "-O1", "-s", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed")
LIMIT_S = 300.0
pytestmark = [pytest.mark.farm("galaxy-s9"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)  # before a farm is started
def program(tmp_path_factory):
    """TVM's server, linked to the installed libraries; skips where there is no checkout."""
    checkout, wheel = given_checkout(), find_wheel()
    need("g++")
    out = tmp_path_factory.mktemp("cpp") / "tvm_rpc"
    places = [f"-I{place}" for place in (*wheel.includes, checkout / "include")]
    sources = [str(checkout / "apps/cpp_rpc" / name) for name in SOURCES]
    libraries = [*map(str, wheel.libraries), "-ldl", "-lpthread"]
    Compiler("g++", (shutil.which("g++"),)).compile([*OPTIONS, *places, *sources, *libraries], out)
    return out


@pytest.fixture(scope="module")
def server(whole, program, tmp_path_factory):
    """A bundle with it is on every phone; the program."""
    folder = tmp_path_factory.mktemp("bundle") / "cpp"
    shutil.copytree(whole.folder / "bundle", folder)
    (folder / "tvm_rpc").unlink()
    shutil.copy(program, folder / "tvm_rpc")
    story = Story(whole)
    added = answer(whole.farm("bundle", "add", str(folder), "--name", "cpp", "--json", timeout_s=LIMIT_S))
    story.until("bundle.current", hash=added["hash"])
    until_ready(whole)
    return program


def test_it_serves_after_golden_kernels_and_stock_clients_use_it(farm, phone, server, clients):
    assert phone.shell(f"sha256sum /proc/{phone.server()}/exe").split()[0] == hash_file(server)
    assert phone.row["findings"] == []
    story = Story(farm)
    right, seconds, length = clients.result(
        """
        import numpy as np
        from tvm.runtime import tensor
        session = connect().request("android", session_timeout=60)
        right = add_one(session)
        session.upload(bytearray(b"x" * 5_000_000), "blob.bin")
        function = session.load_module("add_one.so")
        arrays = [tensor(np.zeros(1024, "float32"), session.cpu(0)) for _ in range(2)]
        timed = function.time_evaluator("add_one", session.cpu(0), number=10, repeat=3)(*arrays)
        tell([right, list(timed.results), len(session.download("blob.bin"))])
        close(session)
        """
    )
    assert (right, len(seconds), length) == (True, 3, 5_000_000)
    story.until("lease.released")
    assert story.kinds(rooms="lease session") == ["lease.granted", "session.opened", "session.ended", "lease.released"]


def test_run_bench_and_tune_measure_through_it(farm, phone, server, model, tmp_path):
    assert farm.farm("run", str(model), "--on", phone.name, timeout_s=LIMIT_S).returncode == 0
    bench = farm.farm("bench", str(model), "--on", phone.name, "--repeat", "3", timeout_s=LIMIT_S)
    assert "Outputs match the reference" in bench.stdout, bench
    (dense := tmp_path / "dense.onnx").write_bytes(dense_onnx(layers=1))
    tuned = farm.farm(
        "tune", str(dense), "--on", phone.name, "--trials", "4", "--cost-model", "random", timeout_s=LIMIT_S
    )
    assert "4 of 4" in tuned.stdout, tuned


def test_a_client_that_is_killed_and_a_server_that_is_killed(farm, phone, server, clients):
    """It has no SO_REUSEADDR: the next one takes another port."""
    story = Story(farm)
    with clients.running("session = connect().request('android'); tell(add_one(session)); wait()") as client:
        assert client.hear() is True
        client.kill()
        story.until("lease.released")
    phone.shell(f"kill -9 {phone.server()}")
    story.until("device.ready")
    assert clients.result("session = connect().request('android'); tell(add_one(session)); close(session)") is True
