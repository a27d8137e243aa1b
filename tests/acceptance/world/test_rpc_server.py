"""The phone's RPC server against the stock TVM client: both the compiled one and the Python launcher."""

import contextlib
import os
import queue
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

import pytest

pytest.importorskip("tvm")

from farm.bundle.model import Abi, Platform
from farm.compiler.link import exporter
from farm.simulation.runtime import build_bundle_folder, is_launcher
from farm.simulation.world import WorldSpec, boot
from tests.support.needs import need, needs_namespaces
from tests.support.tvm import free_port
from tests.support.waiting import HANG_S

from .conftest import run_commands, shell

SECRET = "s3cret"


class Server:
    """A running tvm_rpc, its log read by a thread."""

    def __init__(self, bundle, folder, *options):
        self.folder = folder
        self.process = subprocess.Popen(
            [bundle / "tvm_rpc", "server", "--host=127.0.0.1", f"--key={SECRET}", f"--work-dir={folder}", *options],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"FARM_VIRTUAL_STATE": str(folder / "state")},
        )
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        self.port = int(self.until(r"Bind to 127\.0\.0\.1:(\d+)$")[1])

    def _read(self):
        for line in self.process.stderr:
            self.lines.put(line.rstrip("\n"))

    def until(self, pattern):
        """The next log line with this in it."""
        while True:
            if match := re.search(pattern, self.lines.get(timeout=HANG_S)):
                return match

    def close(self):
        os.killpg(self.process.pid, 9)
        self.process.wait(HANG_S)
        self.reader.join(HANG_S)
        self.process.stderr.close()


@pytest.fixture(scope="session", params=["compiled", "launcher"])
def bundle(request, tmp_path_factory):
    """Built as on a host with and without g++."""
    if request.param == "compiled":
        need("g++")
    patch = pytest.MonkeyPatch()
    if request.param == "launcher":
        which = shutil.which
        patch.setattr("shutil.which", lambda name, *rest: None if name == "g++" else which(name, *rest))
    folder = build_bundle_folder(tmp_path_factory.mktemp("bundle"))
    patch.undo()
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """b[i] = a[i] + 1 for 16 floats, as a shared library for this host."""
    import tvm
    from tvm import te

    a = te.placeholder((16,), name="a")
    b = te.compute((16,), lambda i: a[i] + 1.0, name="b")
    path = tmp_path_factory.mktemp("library") / "add.so"
    compiled = tvm.compile(tvm.IRModule({"main": te.create_prim_func([a, b])}), target="llvm")
    compiled.export_library(str(path), fcompile=exporter(Abi.X86_64, Platform.LINUX))
    return path


@pytest.fixture
def server(bundle, tmp_path):
    running = Server(bundle, tmp_path, "--port=0", "--port-end=1")
    yield running
    running.close()


def connect(port, **options):
    from tvm import rpc

    return rpc.connect("127.0.0.1", port, key=SECRET, **options)


def hang_up(session):
    """Close for certain: the session object may be held by tensors and functions."""
    session._sess.get_function("CloseRPCConnection")()


def add_one(session, library):
    """Upload, load and run; returns the function, its arguments and the result."""
    import numpy as np
    import tvm

    session.upload(bytearray(library.read_bytes()), target=library.name)  # given a path, TVM leaks the open file
    function = session.load_module(library.name)["main"]
    a = tvm.runtime.tensor(np.arange(16, dtype="float32"), session.cpu(0))
    b = tvm.runtime.tensor(np.zeros(16, dtype="float32"), session.cpu(0))
    function(a, b)
    return function, a, b, b.numpy().tolist()


EXPECTED = [float(number) + 1 for number in range(16)]


def test_the_bundle_brings_everything_but_the_c_library(bundle):
    names = {entry.name for entry in bundle.iterdir()} - {"bundle.toml"}
    assert names == {
        "tvm_rpc", "libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_ffi.so", "libstdc++.so.6", "libgcc_s.so.1",
    }  # fmt: skip
    assert os.access(bundle / "tvm_rpc", os.X_OK)


def test_a_client_uploads_runs_and_downloads(server, library):
    session = connect(server.port)
    assert server.until("New session from")
    assert add_one(session, library)[3] == EXPECTED
    assert server.until(r"Load module from .*/\.cache/add\.so")
    assert (server.folder / ".cache" / "add.so").read_bytes() == library.read_bytes()
    assert bytes(session.download("add.so")) == library.read_bytes()
    session.get_function("tvm.contrib.random.random_fill_for_measure")
    hang_up(session)
    assert server.until(r"Finished serving .* after [\d.e-]+ sec")
    assert server.until(r"Child pid=\d+ exited, status =0")
    assert server.until("End session with")
    assert not (server.folder / ".cache").exists()


def test_a_wrong_key_is_refused_and_told_so(server, library):
    for wrong in ("other", SECRET + "x", "s"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S) as peer:
            header = f"client:{wrong}".encode()
            peer.sendall(struct.pack("<ii", 0xFF271, len(header)) + header)
            assert struct.unpack("<i", peer.recv(4)) == (0xFF273,)
        server.until("Mismatch key from")
    session = connect(server.port)
    assert add_one(session, library)[3] == EXPECTED
    hang_up(session)


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack("<ii", 0xFF271, -1)], ids=repr)
def test_garbage_does_not_hurt(server, garbage):
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S) as peer:
        peer.sendall(garbage)
        with contextlib.suppress(OSError):  # the server has closed the connection already
            peer.shutdown(socket.SHUT_WR)
        # A server that closes with unread bytes resets the connection.
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(4) == b""
    hang_up(connect(server.port))


def test_a_session_ends_at_its_time_limit(server):
    started = time.monotonic()
    session = connect(server.port, session_timeout=0.5)
    assert server.until(r"Child pid=\d+ killed \(timeout = 0.5 sec\), status = 15")
    assert time.monotonic() - started >= 0.5
    assert server.until("End session with")
    del session
    hang_up(connect(server.port))


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 0, "Command line usage"),
        (["server", "--host=example"], 1, "Wrong host address"),
        (["server", "--port=x"], 1, "Wrong port number"),
        (["server", "--key=a:b"], 1, "Wrong key"),
    ],
)
def test_options_are_checked(bundle, options, code, words):
    done = subprocess.run([bundle / "tvm_rpc", *options], capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, words in done.stderr, done.stdout) == (code, True, "")


def test_no_free_port_is_an_error(bundle, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [bundle / "tvm_rpc", "server", "--host=127.0.0.1", f"--port={port}", f"--port-end={port + 1}"],
            capture_output=True, text=True, timeout=HANG_S, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"Bind failed to 127.0.0.1:{port}" in done.stderr
    assert "No free port" in done.stderr


@pytest.fixture
def tracker():
    """A stock tracker."""
    from tvm.rpc.tracker import Tracker

    running = Tracker("127.0.0.1", 19190, 19990)
    yield running
    running.terminate()


def test_it_registers_at_a_stock_tracker_and_again_after_a_session(bundle, tracker, tmp_path, library):
    from tvm import rpc

    if is_launcher(bundle / "tvm_rpc"):
        pytest.skip("the launcher knows no tracker")
    server = Server(bundle, tmp_path, "--port=0", "--port-end=1", f"--tracker=127.0.0.1:{tracker.port}")
    try:
        server.until("Connected to tracker")
        client = rpc.connect_tracker("127.0.0.1", tracker.port)
        for _ in range(2):
            session = client.request(SECRET, session_timeout=60)
            assert add_one(session, library)[3] == EXPECTED
            hang_up(session)
        info = client.summary()["server_info"]
        assert [row["key"] for row in info] == [f"server:{SECRET}"]
    finally:
        server.close()


@needs_namespaces
def test_it_runs_on_a_phone_that_has_only_the_c_library(bundle, folder, library):
    """Through a socket made on the phone's own loopback: the host cannot even see the port."""
    launcher = is_launcher(bundle / "tvm_rpc")
    phone = boot(WorldSpec("a", folder / "a", "galaxy-s9", expose_python=launcher), run_commands)
    try:
        remote = folder / "a" / "data" / "local" / "tmp" / "farm"
        shutil.copytree(bundle, remote)
        remote.chmod(0o755)  # pytest keeps its folders to itself
        port = free_port()
        start = "cd /data/local/tmp/farm && LD_LIBRARY_PATH=$PWD exec ./tvm_rpc server --host=127.0.0.1"
        ports = f"--port={port} --port-end={port + 1}"
        log = "/data/local/tmp/log"
        shell(phone, f"({start} {ports} --key=k --work-dir=/data/local/tmp/w) >{log} 2>&1 </dev/null & echo")
        code, out, error = shell(
            phone, f"for i in $(seq 1000); do grep -q 'Bind to' {log} && break; sleep 0.01; done; cat {log}"
        )
        assert (code, error) == (0, "")
        assert f"Bind to 127.0.0.1:{port}" in out
        with socket.socket() as outside:
            assert outside.connect_ex(("127.0.0.1", port)) != 0
        if not launcher:
            (remote / "libstdc++.so.6").unlink()
            code, _, error = shell(phone, "cd /data/local/tmp/farm && LD_LIBRARY_PATH=$PWD ./tvm_rpc server")
            assert (code, "libstdc++.so.6" in error) == (127, True)
    finally:
        phone.close()
