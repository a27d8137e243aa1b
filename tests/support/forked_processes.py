"""Processes of farm that tests start, as forks of a process that has imported farm: the imports of a daemon take 2 s.

`popen` takes the place of `subprocess.Popen`. It forks for commands of this interpreter: `-m farm ...`, `-m MODULE ...`
with a `main`, `-c CODE ...`. What a start itself does, such as importing only what is needed, is tested without it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

COMMAND, COMPILER, DAEMON, LAB, TVM = "command", "compiler", "daemon", "lab", "tvm"  # what a process has imported
_EXECUTORS = [f"farm.kinds.{kind}.executor" for kind in ("bench", "compare", "run", "shell", "tune")]
_COMMAND = ("pydantic", "farm.cli.main", "farm.client", "farm.control.client", "farm.model.specs")
IMPORTED = {
    COMMAND: _COMMAND,
    COMPILER: _COMMAND,
    DAEMON: ("farm.cli.main", "farm.cli.daemon", "farm.config", "farm.daemon.daemon", "farm.head.process", *_EXECUTORS),
    LAB: ("farm.simulation.lab",),
    TVM: ("tvm", "tvm.rpc", "tvm.runtime"),
}
WITH_EXTRAS = {  # the same as far as it is installed
    COMPILER: ("tvm", "tvm.relax", "onnx.reference", "tvm.relax.frontend.onnx", "farm.compiler.build"),
    DAEMON: ("psycopg",),
}
_PATHS = {"", str(Path(__file__).parents[2]), *sys.path}
PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MESSAGE_LIMIT_BYTES = 1 << 17
_ROOM = "-" * 8192  # where forks write their own commands


def popen(command: Sequence[Any], *, closed: Collection[int] = (), **options: Any) -> subprocess.Popen[Any]:
    """As `subprocess.Popen`; `options` are its streams, `cwd`, `env`, `start_new_session`, `text` and `errors`.

    `closed`: the numbers of standard streams that the command shall not have.
    """
    if command[0] == sys.executable and has_nothing_of_its_own(options.get("env") or os.environ):
        return _ForkedPopen(command, closed, **options)
    assert not closed
    return subprocess.Popen(command, **options)


def has_nothing_of_its_own(environ: Mapping[str, str]) -> bool:
    """Whether the interpreter would find the modules that a fork has: a test may put others before them."""
    return set(environ.get("PYTHONPATH", "").split(os.pathsep)) <= _PATHS


def run(command: Sequence[Any], *, timeout_s: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with captured text, unless `options` say other streams."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(command, text=True, **{**streams, **options}) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class _ForkedPopen(subprocess.Popen[Any]):
    """A process of its own, whose parent is the process that forked it."""

    def __init__(self, command: Sequence[Any], closed: Collection[int], **options: Any) -> None:
        self._closed = list(closed)
        super().__init__(command, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):  # type: ignore[no-untyped-def]
        ends = rest[3:9]  # p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        request = {
            "words": [os.fspath(each) for each in args[1:]], "folder": os.fspath(cwd or Path.cwd()),
            "environ": dict(os.environ if env is None else env), "new_session": bool(rest[14]),
            "closed": self._closed,
        }  # fmt: skip
        streams = [number if end == -1 else end for number, end in enumerate((ends[0], ends[3], ends[5]))]
        self._forker = _forker(_kind(request["words"]))
        with open("/proc/thread-self/ns/net") as network:  # noqa: PTH123 - it can only be opened
            self.pid = self._forker.fork(request, [*streams, network.fileno()])
        self._ended = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*ends)

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:
            if self.returncode is None:
                poll = select.poll()
                poll.register(self._ended, select.POLLIN)
                if not poll.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                self.returncode = self._forker.status(self.pid)
                os.close(self._ended)
        return self.returncode


def forkers() -> Iterator[psutil.Process]:
    """The processes that fork: they outlive the tests that need them, and what they have forked are their children."""
    for each in _forkers:
        yield psutil.Process(each.pid)


def _kind(words: Sequence[str]) -> str:
    match words[words[0] == "-P" :]:
        case ["-m", "farm.simulation.lab", *_]:
            return LAB
        case ["-m", "farm", "serve" | "head", *rest] if "--help" not in rest:
            return DAEMON
        case ["-m", "farm", "model" | "compile", *rest] if "--help" not in rest:
            return COMPILER
        case ["-c", code, *_] if "farm.head" in code:
            return DAEMON
        case ["-c", code, *_] if "import tvm" in code or "from tvm" in code:
            return TVM
    return COMMAND


_forkers: list[_Forker] = []


class _Forker:
    """The test's end of a process that forks."""

    def __init__(self, kind: str) -> None:
        from farm.jobs.zygote import SINGLE_THREADED

        self._lock, self._asked = threading.Lock(), 0
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, kind, _ROOM], stdin=theirs, stdout=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
                env={**os.environ, **SINGLE_THREADED, "PYTHONPATH": str(Path(__file__).parents[2])},
            )  # fmt: skip
        self.pid = process.pid
        _forkers.append(self)
        atexit.register(process.wait)
        atexit.register(self._link.close)  # which ends it; called before

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The new process's id."""
        return self._ask(request, streams)

    def status(self, pid: int) -> int:
        """The exit code of one that has ended; as `Popen.returncode`."""
        return self._ask({"ended": pid})

    def _ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> int:
        with self._lock:
            self._asked += 1
            socket.send_fds(self._link, [json.dumps({**request, "number": self._asked}).encode()], files)
            while True:  # a test's time limit may have ended the wait for the answer before this one
                number, answer = map(int, self._link.recv(_MESSAGE_LIMIT_BYTES).split())
                if number == self._asked:
                    return answer


@cache
def _forker(kind: str) -> _Forker:
    return _Forker(kind)


def _serve(kind: str) -> None:
    for name in IMPORTED[kind]:
        importlib.import_module(name)
    for name in WITH_EXTRAS.get(kind, ()):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if kind == DAEMON:
        from farm.worker.zygote import PRELOADED

        with contextlib.suppress(ModuleNotFoundError):  # without the extra `tvm`
            for name in PRELOADED:
                importlib.import_module(name)
    if kind in (COMMAND, COMPILER):
        _import_commands()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; it ends with the tests
    with socket.socket(fileno=0) as link:
        while True:
            data, files, _, _ = socket.recv_fds(link, _MESSAGE_LIMIT_BYTES, 4)
            if not data:
                return
            request = json.loads(data)
            if "ended" in request:
                answer = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
            elif not (answer := os.fork()):
                link.detach()
                break
            for each in files:
                os.close(each)
            link.send(f"{request['number']} {answer}".encode())
    _begin(request, files)


def _import_commands() -> None:
    import typer

    import farm.cli.main

    tree = typer.main.get_command(farm.cli.main.app)
    for name in tree.commands:  # type: ignore[attr-defined]
        tree.get_command(None, name)  # type: ignore[attr-defined]  # imports it


def _begin(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Run the command in this fork."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # however the tests end
    *streams, network = files
    if not os.path.samestat(os.fstat(network), Path("/proc/self/ns/net").stat()):  # of the thread that asked
        from tests.support.host_network import join_network

        join_network(network)
    os.close(network)
    become(request, streams)


def become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Run the command in this fork, which is as an interpreter finds itself at its start. Never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    _rename([sys.executable, *request["words"]])
    unbuffered = "PYTHONUNBUFFERED" in request["environ"]
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        os.dup2(streams[number], number)
        # As at an interpreter's start: stderr is line-buffered everywhere.
        line_buffered = number == 2 or (number == 1 and (unbuffered or os.isatty(number)))
        stream: Any = os.fdopen(number, mode, buffering=1 if line_buffered else -1, closefd=False)
        if number in request.get("closed", ()):
            os.close(number)
            stream = None
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for each in streams:
        os.close(each)
    option, what, *words = request["words"][request["words"][0] == "-P" :]
    if option == "-c":
        sys.argv = ["-c", *words]
        exec(what, {"__name__": "__main__"})
        sys.exit()
    if (what, *words[:1]) == ("farm", "serve"):
        from tests.support import seeds

        seeds.plant()
    sys.argv = [what, *words]
    main = importlib.import_module("farm.__main__" if what == "farm" else what).main
    sys.exit(main(words) if what == "farm.worker.zygote" else main())


def _rename(command: Sequence[str]) -> None:
    """Have /proc show this command in place of the forker's, as far as there is room for it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end (man 5 proc)
    text = b"".join(os.fsencode(word) + b"\0" for word in command)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    _serve(sys.argv[1])
