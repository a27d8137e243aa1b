"""Connections that never speak: libzmq would abort the daemon when it is out of descriptors."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from farm.common.errors import DaemonUnreachableError, FarmError
from farm.control.client import ControlClient
from farm.control.limits import DESCRIPTOR_PART, OWNER_PART
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


def answers(path):
    """The user that a daemon knows us as; None: it does not answer."""
    with contextlib.suppress(FarmError), ControlClient(path) as client:
        return client.call("ping")["user"]
    return None


def refusal(client):
    """The error that a call gets; None: it is answered."""
    try:
        client.call("ping")
    except FarmError as error:
        return error
    return None


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

        assert max(used) < DESCRIPTORS
        if door == "tcp":
            assert answers(path)  # the crowd is still there, and has no share of this door
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
        until(lambda: answers(path) or child.poll() is not None)
        assert child.poll() is None
        said, _ = child.communicate("")
    assert child.returncode == 0
    assert "too many connections to control socket" in said


def test_who_has_too_many_connections_is_told_the_limit(tmp_path):
    command = [sys.executable, "-m", "tests.integration.control.crowded", str(tmp_path)]
    share = DESCRIPTORS // DESCRIPTOR_PART // OWNER_PART
    with (
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
        contextlib.ExitStack() as readers,
    ):
        child.stdout.readline()
        for _ in range(share):
            readers.enter_context(ControlClient(tmp_path / "control.sock", silent_after_s=60)).call("ping")
        one_more = readers.enter_context(ControlClient(tmp_path / "control.sock", silent_after_s=60))
        while (refused := refusal(one_more)) is None:
            pass  # a thread counts connections: the first call may come before it
        assert re.search(f"uid {os.geteuid()} has .* at most {share} are allowed", refused.message)
        assert (refused.code, "farm programs" in refused.hint) == ("busy", True)
        readers.close()
        until(lambda: answers(tmp_path / "control.sock"))
        child.communicate("")


def test_who_is_always_cut_off_is_told_so(tmp_path):
    """As where more clients than are answered with the limit connect again and again."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()

        def cut():
            with contextlib.suppress(OSError):  # it is shut down
                while True:
                    door.accept()[0].close()

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            with (
                ControlClient(path, silent_after_s=4) as client,
                pytest.raises(DaemonUnreachableError, match=r"ended this connection \d+ times in 4 s") as caught,
            ):
                client.call("ping")
            assert "too many connections" in caught.value.hint
        finally:
            door.shutdown(socket.SHUT_RDWR)
            cutting.join()
