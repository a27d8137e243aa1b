"""A lab whose owner is killed ends with it, and with the adb server that was the owner's."""

import signal
import subprocess
import sys

import pytest

OWNER = """
import sys
from pathlib import Path
from farm.simulation.control import running_lab
with running_lab(Path(sys.argv[1]), {}, adb_socket=sys.argv[2], owns_adb=sys.argv[3] == "True"):
    print("up", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("owns_adb", "killed", "stays"), [(True, True, False), (True, False, False), (False, True, True)]
)
def test_the_adb_server_ends_with_its_owner_only(adb_server, tmp_path, owns_adb, killed, stays):
    command = [sys.executable, "-c", OWNER, str(tmp_path / "lab"), adb_server.socket, str(owns_adb)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        if killed:
            owner.send_signal(signal.SIGKILL)
        else:
            owner.communicate("\n")
        owner.wait(60)
        assert owner.stdout.read() == "" if killed else True
    assert adb_server.process is not None
    if stays:
        assert adb_server.answers()
    else:
        assert adb_server.process.wait(60) is not None
