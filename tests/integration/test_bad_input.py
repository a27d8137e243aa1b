"""Every mistake people make ends in one clear line, a hint and the documented exit code; the daemon goes on."""

import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from farm.common.errors import ExitCode
from farm.zoo import small_cnn as build
from tests.support.forked_commands import run_farm
from tests.support.whole_farm import refused

BASE = """
[adb]
usb = false
[tvm]
port = 0
"""

pytestmark = pytest.mark.farm("galaxy-s9", "oneplus-5t")


@pytest.fixture(scope="module")
def model():
    return build().SerializeToString(deterministic=True)


@pytest.fixture
def serve(tmp_path):
    """Run `farm serve` with a configuration that it must refuse."""

    def run(config, *flags, **environment):
        path = tmp_path / "farm.toml"
        path.write_text(config)
        folders = ["--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run")]
        return run_farm("serve", "--config", path, *folders, *flags, environ={**os.environ, **environment})

    return run


# -- the daemon's own configuration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (BASE + "hosst = '127.0.0.1'", ("tvm.hosst", "did you mean 'tvm.host'?")),
        ("[tmv]\nport = 0", ("'tmv'", "did you mean 'tvm'?")),
        ("[tvm]\nport = 'many'", ("tvm.port", "'many'")),
        ("[tvm]\nport = 70000", ("tvm.port must be 65535 or less (got 70000)",)),
        ("[tvm]\nhost = localhost", ("not valid TOML", "line 2")),
        (BASE + "[[adopt]]\nmatch = 'soc=='", ("adopt.0", "'soc=='")),
        (BASE + "[aliases]\nfast = 'gpu='", ("aliases.fast", "'gpu='")),
        (BASE + "[tvm.external]\nallow = ['10.0.0']", ("'10.0.0'", "10.0.0.0/8")),
        ("[adb]\nusb = false\nsocket = 'nonsense'\n[tvm]\nport = 0", ("'nonsense'", "tcp:localhost:PORT")),
    ],
    ids=["key", "table", "type", "port", "toml", "rule", "alias", "network", "socket"],
)
def test_a_mistake_in_the_configuration(serve, config, said):
    refused(serve(config), ExitCode.USAGE, *said)


def test_a_mistake_in_the_environment(serve):
    refused(serve(BASE, FARM_TVM__PROT="9190"), ExitCode.USAGE, "tvm.prot", "tvm.port")


@pytest.mark.parametrize("binary", ["/nonexistent/adb", "/bin/true"], ids=["absent", "another program"])
def test_no_adb(serve, binary):
    refused(serve(f"[adb]\nbinary = '{binary}'\n[tvm]\nport = 0"), ExitCode.FAILED, binary, "[adb] binary")


def test_a_port_that_is_taken(serve):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        refused(serve(BASE, "--port", str(port)), ExitCode.FAILED, f"port {port} on 127.0.0.1 is taken")


def test_an_address_that_is_not_ours(serve):
    refused(serve(BASE, "--host", "203.0.113.7"), ExitCode.FAILED, "cannot listen on 203.0.113.7", "0.0.0.0")


def test_a_damaged_database(serve, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "farm.db").write_bytes(b"no database" * 1000)
    refused(serve(BASE), ExitCode.FAILED, "farm.db is damaged", "mv ")
    assert (tmp_path / "state" / "farm.db").read_bytes() == b"no database" * 1000


def test_a_state_folder_that_is_a_file(serve, tmp_path):
    (tmp_path / "state").write_text("")
    refused(serve(BASE), ExitCode.FAILED, str(tmp_path / "state"), "--state-dir")


# -- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [False, True], ids=["nothing", "no socket"])
def test_no_daemon(tmp_path, made):
    path = tmp_path / "control.sock"
    if made:
        path.write_text("")
    done = run_farm("status", environ={**os.environ, "FARM_SOCKET": str(path)})
    refused(done, ExitCode.NO_DAEMON, str(path), "farm serve")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("device", "show", "sm-g96"), ExitCode.USAGE, ("'sm-g96'", "did you mean sm-g9600?")),
        (("device", "adopt", "pixel"), ExitCode.USAGE, ("'pixel'",)),
        (("explain", "device", "sm-g96"), ExitCode.USAGE, ("did you mean sm-g9600?",)),
        (("explain", "job", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (("lease", "release", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (("lease", "show", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (("job", "show", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (("job", "cancel", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (("job", "list", "--kind", "bnech"), ExitCode.USAGE, ("'bnech'", "did you mean bench?")),
        (("job", "list", "--before", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (("job", "list", "--array", "nosuch"), ExitCode.USAGE, ("no array 'nosuch'",)),
        (("job", "cancel"), ExitCode.USAGE, ("which jobs",)),
        (("logs", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (("reservation", "remove", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (
            ("usage", "--since", "1h", "--until", "2h"),
            ExitCode.USAGE,
            ("error: the time asked for ends before it begins",),
        ),
        (("shell", "--on", "andriod", "--", "true"), ExitCode.NO_PHONE, ("nearest is android",)),
        (("shell", "--on", "android", "--devices", "5", "--", "true"), ExitCode.NO_PHONE, ("nothing was submitted",)),
        (("device", "add", "10.0.0.7:99999"), ExitCode.USAGE, ("10.0.0.7:99999", "HOST:PORT")),
        (("explain", "key", "gpu="), ExitCode.USAGE, ("'gpu='",)),
        (("alias", "set", "fast", "gpu="), ExitCode.USAGE, ("'gpu='",)),
        (("alias", "remove", "fast"), ExitCode.USAGE, ("fast",)),
        (("bundle", "verify", "nosuch"), ExitCode.USAGE, ("nosuch", "virtual")),
        (("lease", "kick", "nobody"), ExitCode.USAGE, ("nobody",)),
        (("uninstall",), ExitCode.USAGE, ("--yes",)),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_command_about_something_that_is_not_there(farm, arguments, exit_code, said):
    refused(farm.farm(*arguments), exit_code, *said)


def test_an_unknown_command(farm):
    done = farm.farm("device", "frobnicate")
    assert done.returncode == ExitCode.USAGE
    assert "error: no such command 'frobnicate'" in done.stderr
    assert "Traceback" not in done.stderr


# -- models ----------------------------------------------------------------------------------------------------------


def unsupported():
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="odd", domain="lab")
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("lab", 1)]
    graph = helper.make_graph([node], "g", [given], [made])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def bench(farm, folder, model, *flags):
    (folder / "net.onnx").write_bytes(model)
    return farm.farm("bench", str(folder / "net.onnx"), "--on", "android", "--repeat", "2", *flags)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda model: b"no model at all", ("net.onnx is not an ONNX model",)),
        (lambda model: model[: len(model) // 2], ("net.onnx", "cut short or damaged")),
        (lambda model: b"", ("net.onnx is empty",)),
        (lambda model: unsupported(), ("Frobnicate", "'odd'")),
    ],
    ids=["text", "half", "empty", "operator"],
)
def test_a_model_that_cannot_be_used(farm, tmp_path, model, spoil, said):
    refused(bench(farm, tmp_path, spoil(model)), ExitCode.USAGE, *said)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"input": np.zeros((1, 3, 32), np.float32)}, ("'input' has shape 1x3x32", "1x3x32x32")),
        ({"picture": np.zeros((1, 3, 32, 32), np.float32)}, ("'picture', which is no input", "inputs: input")),
        ({"input": np.zeros((1, 3, 32, 32), complex)}, ("complex128", "float32")),
    ],
    ids=["shape", "missing", "type"],
)
def test_inputs_that_do_not_fit(farm, tmp_path, model, arrays, said):
    np.savez(tmp_path / "inputs.npz", **arrays)
    refused(bench(farm, tmp_path, model, "--input", str(tmp_path / "inputs.npz")), ExitCode.USAGE, *said)


def test_inputs_that_are_no_arrays(farm, tmp_path, model):
    (tmp_path / "inputs.npz").write_bytes(b"PK nonsense")
    refused(bench(farm, tmp_path, model, "--input", str(tmp_path / "inputs.npz")), ExitCode.USAGE, "numpy.savez")


@pytest.mark.parametrize("path", ["/nonexistent/net.onnx", "/tmp"])
def test_a_model_that_is_no_file(farm, path):
    refused(farm.farm("bench", path, "--on", "android"), ExitCode.USAGE, path)


@pytest.mark.parametrize(
    ("selector", "nearest"), [("gpu=adreno-631", "adreno-630"), ("andriod", "android"), ("sm8550", "")]
)
def test_no_phone_matches(farm, tmp_path, model, selector, nearest):
    (tmp_path / "net.onnx").write_bytes(model)
    done = farm.farm("bench", str(tmp_path / "net.onnx"), "--on", selector)
    refused(done, ExitCode.NO_PHONE, selector, nearest)


def test_a_target_that_no_phone_has(farm, tmp_path, model):
    done = bench(farm, tmp_path, model, "--target", "adreno")
    assert done.returncode == ExitCode.USAGE
    assert "no phone that matches android has the target 'adreno'" in done.stderr
    assert "targets: cpu" in done.stderr


# -- bundles ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(farm, tmp_path):
    """A copy of the farm's own bundle, to be spoilt."""
    return Path(shutil.copytree(farm.folder / "bundle", tmp_path / "bundle"))


def test_a_bundle_without_the_server(farm, folder):
    (folder / "tvm_rpc").unlink()
    refused(farm.farm("bundle", "add", str(folder)), ExitCode.USAGE, "there is no tvm_rpc", "docs/bundles.md")


def test_a_bundle_without_a_library(farm, folder):
    (folder / "libtvm_ffi.so").unlink()
    refused(farm.farm("bundle", "add", str(folder)), ExitCode.USAGE, "libtvm_ffi.so", "build/lib")


def test_a_bundle_of_two_architectures(farm, folder):
    library = folder / "libtvm_ffi.so"
    content = bytearray(library.read_bytes())
    content[18:20] = (183).to_bytes(2, "little")  # e_machine: AArch64
    library.write_bytes(content)
    refused(farm.farm("bundle", "add", str(folder)), ExitCode.USAGE, "libtvm_ffi.so", "arm64-v8a")


@pytest.mark.parametrize("path", ["/nonexistent", "/etc/passwd"])
def test_a_bundle_that_is_no_folder(farm, path):
    refused(farm.farm("bundle", "add", path), ExitCode.USAGE, path)


def test_a_toolchain_that_is_not_configured(farm, folder):
    refused(farm.farm("bundle", "add", str(folder), "--toolchain", "nightly"), ExitCode.USAGE, "nightly", "default")
