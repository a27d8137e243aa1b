"""Worker tasks that go wrong in every way a worker can; run by a real zygote in test_workers.py."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from farm.common.errors import FarmError, ModelError
from farm.control.client import ControlClient
from farm.jobs.attempt import YieldedError

LIMITS = ("CORE", "NOFILE", "FSIZE", "CPU", "DATA", "NPROC")


def main(payload, daemon):
    return globals()[payload["do"]](payload, daemon)


def answer(payload, daemon):
    daemon.progress("answering", number=1)
    return {
        "pid": os.getpid(), "pgid": os.getpgid(0), "sid": os.getsid(0), "cwd": str(Path.cwd()), "uid": os.getuid(),
        "tvm": "tvm" in sys.modules, "environment": sorted(os.environ),
        "gid": os.getgid(), "groups": os.getgroups(), "temporary": tempfile.gettempdir(),
        "oom": int(Path("/proc/self/oom_score_adj").read_text()),
        "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in LIMITS},
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


def detach(payload, daemon):
    """What leaves its group and its parent, as a daemon does; and what that starts in turn."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            os.write(writer, f"{os.getpid()} {sleeper.pid}".encode())
            while True:
                time.sleep(60)
        os._exit(0)
    return {"strays": [int(pid) for pid in os.read(reader, 100).split()]}


def write_without_end(payload, daemon):
    """More than anybody wants to keep, then a result all the same."""
    for _ in range(payload["lines"]):
        os.write(1, b"y" * 99 + b"\n")
    os.write(2, b"the last words\n")
    return {"written": payload["lines"]}


def say_things(payload, daemon):
    daemon.progress("talking", loudly=True)
    daemon.log("careful", "warning")
    print("to stdout")
    print("to stderr", file=sys.stderr)
    sys.stdout.write("no end of line")
    return {}


def a_result_of(payload, daemon):
    return {"x": "y" * payload["bytes"]}


def push_a_result_of(payload, daemon):
    daemon._client.call("result", value={"x": "y" * payload["bytes"]})
    time.sleep(60)


def no_json(payload, daemon):
    return {"x": float("nan")}


def yield_if_wanted(payload, daemon):
    if daemon.yield_wanted():
        raise YieldedError
    return {"kept": True}


def ask(payload, daemon):
    """What the daemon says to a request of one's own making."""
    credentials = daemon._client._credentials | payload.get("as", {})
    with ControlClient(Path(daemon._client.path), **credentials) as client:
        try:
            frames = (payload["frame"].encode(),) if "frame" in payload else ()
            return {"answer": client.call(payload["verb"], frames=frames, **payload.get("fields", {}))}
        except FarmError as error:
            return {"error": error.code, "message": error.message}


def artifacts(payload, daemon):
    sha256 = daemon.put_artifact(b"made by a worker")
    return {"sha256": sha256, "same": daemon.artifact(sha256) == b"made by a worker"}


def eat_memory(payload, daemon):
    """Bit by bit, and all of it used."""
    hoard = []
    while True:
        hoard.append(b"\1" * payload["bytes"])


def fill_the_disk(payload, daemon):
    with Path("big").open("wb") as file:
        file.truncate(payload["bytes"])
        return {"size": file.tell()}


def open_files(payload, daemon):
    return {"files": [os.open("/dev/null", os.O_RDONLY) for _ in range(10_000)]}


def reach(payload, daemon):
    """What it can do to another's attempt; the token comes backwards, or it would find its own request."""
    nekot = payload["nekot"].encode()
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: it may read its own memory again
    with Path("/proc/self/maps").open() as maps, Path("/proc/self/mem").open("rb", buffering=0) as memory:
        writable = [line.split()[0].split("-") for line in maps if " rw" in line and "[v" not in line]
        own = [memory.seek(int(begin, 16)) and memory.read(int(end, 16) - int(begin, 16)) for begin, end in writable]
    try:
        os.kill(payload["pid"], 0)
        signals = True
    except PermissionError:
        signals = False
    return {**read_all(payload, daemon), "signals": signals, "token": sum(part[::-1].count(nekot) for part in own)}


def read_all(payload, daemon):
    """Which of these can be read or written, or connected to."""
    return {"open": [path for path in payload["paths"] if os.access(path, os.R_OK) or os.access(path, os.W_OK)]}
