"""Worker tasks that go wrong in every way a worker can; run by a real zygote in test_workers.py."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from farm.core.errors import ModelError


def main(payload, daemon):
    return globals()[payload["do"]](payload, daemon)


def answer(payload, daemon):
    daemon.progress("answering", number=1)
    return {
        "pid": os.getpid(), "pgid": os.getpgid(0), "sid": os.getsid(0), "cwd": str(Path.cwd()), "uid": os.getuid(),
        "tvm": "tvm" in sys.modules, "environment": sorted(os.environ),
        "core": __import__("resource").getrlimit(__import__("resource").RLIMIT_CORE)[0],
    }  # fmt: skip


def segfault(payload, daemon):
    daemon.progress("about to crash")
    ctypes.string_at(0)


def leave(payload, daemon):
    os._exit(7)


def kill_itself(payload, daemon):
    os.kill(os.getpid(), signal.SIGKILL)


def raise_model_error(payload, daemon):
    raise ModelError("no good", hint="another one")


def raise_bug(payload, daemon):
    raise ZeroDivisionError("oops")


def ignore_sigterm(payload, daemon):
    """Ignores SIGTERM, and so does the process it starts: only SIGKILL to the whole group ends both."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    daemon.progress("stuck", grandchild=grandchild.pid, pid=os.getpid())
    while True:
        time.sleep(60)


def stop_itself(payload, daemon):
    daemon.progress("stopping", pid=os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)
    return {}


def leave_a_process(payload, daemon):
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return {"orphan": orphan.pid}


def too_many_results(payload, daemon):
    daemon.succeed({"first": True})
    daemon.succeed({"second": True})
    return {}


def artifacts(payload, daemon):
    sha256 = daemon.put_artifact(b"made by a worker")
    return {"sha256": sha256, "same": daemon.artifact(sha256) == b"made by a worker"}


def eat_memory(payload, daemon):
    hoard = bytearray(payload["bytes"])
    return {"got": len(hoard)}
