"""Programs that use nothing but stock TVM, as processes: they can hang, be killed, and be let continue step by step."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from farm.simulation.virtual_farm import VirtualFarm
from tests.support.forked_processes import run
from tests.support.tvm import environment, process

END_LIMIT_S = 60.0

# What every program begins with. `tell` is heard by the test, `wait` waits for the test's `go`.
PRELUDE = """\
import json, sys
host, port, kernel = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def tell(value):
    print("@" + json.dumps(value), flush=True)

def wait():
    sys.stdin.readline()

def outcome(action, *arguments):
    try:
        action(*arguments)
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    return ""

def close(session):
    session._sess.get_function("CloseRPCConnection")()

def add_one(session):
    import numpy as np
    from tvm.runtime import tensor
    session.upload(kernel)
    function = session.load_module("add_one.so")["add_one"]
    given = np.arange(1024, dtype="float32")
    there, back = (tensor(array, session.cpu(0)) for array in (given, np.zeros_like(given)))
    function(there, back)
    return bool((back.numpy() == given + 1).all())

def connect():
    from tvm import rpc
    return rpc.connect_tracker(host, port)

"""

COMPILE = """\
import sys, tvm
from tvm import te
a = te.placeholder((1024,), name="a")
b = te.compute((1024,), lambda i: a[i] + 1.0, name="b")
function = te.create_prim_func([a, b]).with_attr("global_symbol", "add_one")
tvm.compile(function, target="llvm").export_library(sys.argv[1])
"""


def compile_kernel(folder: Path) -> Path:
    """A library with one function, compiled and linked by stock TVM for x86-64."""
    library = folder / "add_one.so"
    run([sys.executable, "-c", COMPILE, str(library)], env=environment()).check_returncode()
    return library


class StockClient:
    """One running program."""

    def __init__(self, child: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._child = child
        self._errors = errors

    def hear(self) -> Any:
        """The next thing it tells."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(b"@"):
                return json.loads(line[1:])
        self._errors.seek(0)
        raise AssertionError(f"it ended without telling: {self._errors.read().decode()}")

    def go(self) -> None:
        """Let it pass its next `wait()`."""
        assert self._child.stdin is not None
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()

    def finish(self) -> None:
        """Let it end by itself, past every `wait()`, its sessions closed as a program's end closes them."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        assert self._child.wait(END_LIMIT_S) == 0

    def kill(self) -> None:
        """End it as a crash does."""
        self._child.kill()
        self._child.wait(END_LIMIT_S)


class Clients:
    """Starts stock programs against one farm."""

    def __init__(self, farm: VirtualFarm, kernel: Path) -> None:
        self._farm = farm
        self._kernel = kernel

    @contextmanager
    def running(self, script: str) -> Iterator[StockClient]:
        """`script` after PRELUDE, as a process that is gone afterwards."""
        with self.at(*self._farm.tracker(), script) as client:
            yield client

    @contextmanager
    def at(self, host: str, port: int, script: str) -> Iterator[StockClient]:
        """The same, told where the farm is: for one whose daemon cannot say."""
        arguments = ["-c", PRELUDE + textwrap.dedent(script), host, str(port), str(self._kernel)]
        with (
            TemporaryFile() as errors,
            process(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as child,
        ):
            yield StockClient(child, errors)

    def result(self, script: str) -> Any:
        """What `script` tells first; it has ended by itself then."""
        with self.running(script) as client:
            told = client.hear()
            client.finish()
            return told
