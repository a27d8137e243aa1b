"""Connections that never speak: libzmq would abort the daemon when it is out of descriptors."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from farm.common.errors import FarmError
from farm.control.client import ControlClient
from farm.control.limits import raise_descriptor_limit
from tests.integration.control.crowded import DESCRIPTORS
from tests.support.tvm import ROOT
from tests.support.whole_farm import until

NOBODY = 65534


def silent(family, where):
    """A connection that says nothing."""
    opened = socket.socket(family)
    # A door that is full answers no TCP connection; a unix one waits in its queue, and without a timeout only.
    opened.settimeout(0.05 if family == socket.AF_INET else None)
    with contextlib.suppress(OSError):
        opened.connect(where)
    return opened


@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_silent_connections_block_no_interface(tmp_path, door):
    command = [sys.executable, "-m", "tests.integration.control.crowded", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        port = int(child.stdout.readline())
        path = tmp_path / "control.sock"
        where = (socket.AF_UNIX, str(path)) if door == "unix" else (socket.AF_INET, ("127.0.0.1", port))
        process, crowd, used = psutil.Process(child.pid), [], []
        for at in range(DESCRIPTORS + 500):
            crowd.append(silent(*where))
            if at % 50 == 0 and child.poll() is None:
                used.append(process.num_fds())

        def answers(path=path):
            with contextlib.suppress(FarmError), ControlClient(path) as client:
                return client.call("ping")["user"]
            return None

        assert max(used) < DESCRIPTORS
        if door == "tcp":
            assert answers()  # the crowd is still there, and has no share of this door
        elif os.geteuid() == 0:  # who has a share of their own
            path.chmod(0o666)
            tmp_path.chmod(0o711)
            os.chdir(tmp_path)  # folders above it are root's
            os.seteuid(NOBODY)
            try:
                until(lambda: answers(Path("control.sock")) == "nobody" or child.poll() is not None)
            finally:
                os.seteuid(0)
                os.chdir(ROOT)
        for each in crowd:
            each.close()
        until(lambda: answers() or child.poll() is not None)
        assert child.poll() is None
        said, _ = child.communicate("")
    assert child.returncode == 0
    assert "too many connections to control socket" in said


def test_the_daemon_takes_the_descriptors_it_may_have(monkeypatch):
    told = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: told.append(limits))
    raise_descriptor_limit()
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, resource.RLIM_INFINITY))
    raise_descriptor_limit()
    monkeypatch.setattr(resource, "getrlimit", lambda what: (65536, 65536))
    raise_descriptor_limit()
    assert told == [(4096, 4096), (65536, resource.RLIM_INFINITY)]
