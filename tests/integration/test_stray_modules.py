"""Files of other programs, and of other versions of farm, that lie where Python looks for modules."""

import os
import subprocess
import sys
import time

import pytest

from farm.simulation.virtual_farm import DaemonProcess

STRAY = ("click", "json", "numpy", "typer", "zmq", "logging", "socket")


@pytest.fixture
def strays(tmp_path):
    """A folder with modules that must not be imported."""
    for name in STRAY:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the stray {name}.py was imported')\n")
    return tmp_path


def test_a_command_imports_nothing_of_the_working_directory(strays):
    environ = os.environ | {"FARM_SOCKET": str(strays / "absent.sock")}
    for words, code in ((["--version"], 0), (["status"], 4), (["bench", "absent.onnx", "--on", "android"], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "farm", *words], cwd=strays, env=environ, capture_output=True, text=True, check=False
        )
        assert "stray" not in done.stderr, done
        assert done.returncode == code, done


def test_a_daemon_and_its_children_import_nothing_of_the_working_directory(strays, monkeypatch):
    (strays / "types.py").write_text("raise SystemExit('the stray types.py was imported')\n")  # `-m` needs it
    monkeypatch.chdir(strays)
    (strays / "lab").mkdir()
    daemon = DaemonProcess(strays / "lab")
    daemon.wrapper = ("env", "LANG=C.UTF-8")  # a process of its own, not a fork of one that has imported all
    with daemon.start() as client:
        while not all(row["up"] for row in client.call("toolchain.list")["toolchains"]):
            time.sleep(0.05)
    daemon.stop()
    assert daemon.wait() == "exit code 0"
    assert "stray" not in daemon.log.read_text()
