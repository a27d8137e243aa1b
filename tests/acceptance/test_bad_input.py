"""Every mistake people make ends in one clear line, a hint and the documented exit code; the daemon continues."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from farm.common.errors import ExitCode
from tests.support.forked_commands import run_farm
from tests.support.whole_farm import refused

BASE = """
[adb]
usb = false
[tvm]
port = 0
"""

pytestmark = pytest.mark.farm("galaxy-s9", "oneplus-5t")


@pytest.fixture
def serve(tmp_path):
    """Run `farm serve` with a configuration that it must refuse."""

    def run(config, *flags, **environment):
        path = tmp_path / "farm.toml"
        path.write_text(config)
        folders = ["--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run")]
        return run_farm("serve", "--config", path, *folders, *flags, environ={**os.environ, **environment})

    return run


@pytest.mark.parametrize(
    ("config", "environment", "said"),
    [
        (BASE + "hosst = '127.0.0.1'", {}, ("tvm.hosst", "did you mean 'tvm.host'?")),
        ("[tvm]\nhost = localhost", {}, ("not valid TOML", "line 2")),
        (BASE, {"FARM_TVM__PROT": "9190"}, ("tvm.prot", "tvm.port")),
    ],
    ids=["key", "toml", "environment"],
)
def test_a_mistake_in_the_configuration(serve, config, environment, said):
    refused(serve(config, **environment), ExitCode.USAGE, *said)


@pytest.mark.parametrize("binary", ["/nonexistent/adb", "/bin/true"], ids=["absent", "another program"])
def test_no_adb(serve, binary):
    refused(serve(f"[adb]\nbinary = '{binary}'\n[tvm]\nport = 0"), ExitCode.FAILED, binary, "[adb] binary")


def test_a_port_that_cannot_be_had_is_known_before_anything_is_written(serve, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        refused(serve(BASE, "--port", str(port)), ExitCode.FAILED, f"port {port} on 127.0.0.1 is taken")
    refused(serve(BASE, "--host", "203.0.113.7"), ExitCode.FAILED, "cannot listen on 203.0.113.7", "0.0.0.0")
    assert not (tmp_path / "state" / "farm.db").exists()


def test_a_state_folder_that_is_a_file(serve, tmp_path):
    (tmp_path / "state").write_text("")
    refused(serve(BASE), ExitCode.FAILED, str(tmp_path / "state"), "--state-dir")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("device", "show", "sm-g96"), ExitCode.USAGE, ("'sm-g96'", "did you mean sm-g9600?")),
        (("job", "list", "--kind", "bnech"), ExitCode.USAGE, ("'bnech'", "did you mean bench?")),
        (("job", "list", "--before", "nosuch"), ExitCode.USAGE, ("'nosuch'",)),
        (("usage", "--since", "1h", "--until", "2h"), ExitCode.USAGE, ("ends before it begins",)),
        (("shell", "--on", "android", "--devices", "5", "--", "true"), ExitCode.NO_PHONE, ("nothing was submitted",)),
        (("device", "add", "10.0.0.7:99999"), ExitCode.USAGE, ("10.0.0.7:99999", "HOST:PORT")),
        (("bundle", "verify", "nosuch"), ExitCode.USAGE, ("nosuch", "virtual")),
        (("bundle", "add", "/etc/passwd"), ExitCode.USAGE, ("/etc/passwd",)),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_command_about_something_that_is_not_there(farm, arguments, exit_code, said):
    refused(farm.farm(*arguments), exit_code, *said)


def test_no_phone_matches(farm, model):
    bench = ("bench", str(model), "--on")
    refused(farm.farm(*bench, "gpu=adreno-631"), ExitCode.NO_PHONE, "gpu=adreno-631", "adreno-630")
    done = farm.farm(*bench, "android", "--target", "adreno")
    assert done.returncode == ExitCode.USAGE
    assert "no phone that matches android has the target 'adreno'" in done.stderr
    assert "targets: cpu" in done.stderr


def test_a_bundle_without_the_server(farm, tmp_path):
    folder = Path(shutil.copytree(farm.folder / "bundle", tmp_path / "bundle"))
    (folder / "tvm_rpc").unlink()
    refused(farm.farm("bundle", "add", str(folder)), ExitCode.USAGE, "there is no tvm_rpc", "docs/bundles.md")
