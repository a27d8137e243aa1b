"""Builds on a host that lacks room or descriptors: the host is blamed, and the candidate is built once it is well.

And no build server goes with the thread that started it, nor stays when its owner is killed.

The disk is a tmpfs of a few MiB in a mount namespace of its own.
"""

import contextlib
import resource
import subprocess
import sys
import threading

import psutil
import pytest

from tests.support.candidates import builder_inputs, module
from tests.support.small_disk import on_small_disk
from tests.support.tvm import ROOT, environment

pytest.importorskip("tvm")

from farm.tuning.build_process import started_server
from farm.tuning.builder import FarmBuilder
from farm.tuning.candidate import CannotBuildError

PATIENCE_S = 60.0

# Builds on a disk with hardly any room, again with room, and what cannot be built anyway; prints what each came to.
CHILD = """
import json, sys
from pathlib import Path
from farm.tuning.build_process import forked_server
from farm.tuning.builder import FarmBuilder
from tests.support.candidates import builder_inputs, module
disk = Path(sys.argv[1])
said = []
def told(kind, addend):
    error = builder.submit(builder_inputs([module(kind, addend)])[0]).exception(60)
    said.append([type(error).__name__, str(error), getattr(error, "hint", "")])
with FarmBuilder(cache=disk, timeout_s=4, server=forked_server()) as builder:
    for room in (0, 16384, 24576):  # for nothing; for no object file, which LLVM aborts over; for no library
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(file.tell() - room)
        told("add", 2.0)
        filler.unlink()
    told("add", 2.0)
    builder._build._timeout_s = 0.5  # nothing ends it sooner
    told("endless build", 2.0)
    left = sorted(path.name for path in builder._build._own.iterdir() if path.name.startswith("candidate-"))
print(json.dumps([said, left]))
"""


def test_without_disk_space_the_host_is_blamed_and_with_it_it_is_built(tmp_path):
    (*full, roomy, endless), left = on_small_disk("40m", tmp_path, CHILD)
    assert len(full) == 3
    for kind, message, hint in full:
        assert kind == "CannotBuildError", message
        assert f"in {tmp_path} (0 MB free): No space left on device" in message
        assert "no candidate counts as failed" in hint
    assert roomy[0] == "NoneType", roomy
    assert endless[0] == "BuildError"
    assert "more than 0.5 s" in endless[1]
    assert left == []


def test_without_descriptors_the_host_is_blamed_and_a_thread_that_ends_takes_no_server_along(tmp_path):
    started = []
    thread = threading.Thread(target=lambda: started.append(FarmBuilder(cache=tmp_path, server=started_server())))
    thread.start()
    thread.join()
    with started[0] as builder:
        server = psutil.Process(builder._build._local.pid)
        assert builder.submit(builder_inputs([module()])[0]).result(PATIENCE_S).exists()
        assert builder._build._local.pid == server.pid
        hard = server.rlimit(resource.RLIMIT_NOFILE)[1]
        for room in (0, 3):  # for the server itself; for the pipe to its child, which starts a linker
            server.rlimit(resource.RLIMIT_NOFILE, (server.num_fds() + room, hard))
            with pytest.raises(CannotBuildError, match="Too many open files"):
                builder.submit(builder_inputs([module("add", 7.0)])[0]).result(PATIENCE_S)
        server.rlimit(resource.RLIMIT_NOFILE, (hard, hard))
        assert builder.submit(builder_inputs([module("add", 7.0)])[0]).result(PATIENCE_S).exists()
    server.wait(PATIENCE_S)


KILLED = """
import os, signal
from farm.tuning.build_process import started_server
print(started_server().pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_does_not_outlive_an_owner_that_is_killed():
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(int(done.stdout))
        if "farm.tuning.build_server" in server.cmdline():
            server.wait(PATIENCE_S)
