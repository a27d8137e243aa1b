"""`farm` commands with the standard streams of a test's choice: closed, full, without a reader, a terminal.

A process that has imported the command line forks for each of them, which costs a hundredth of a new interpreter; the
child ends as an interpreter does, with its last flush. As a program it serves one request of `ForkedCommands` per line.
`run_farm` is for tests that want a command's answer, and may be called by several threads at once.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from functools import cache
from pathlib import Path
from typing import Any, Self

from tests.support.terminal import LIMIT_S

CLOSED, FULL, LEFT, KEPT = "closed", "full", "left", "kept"  # what a stream is
KILLED = 137
# Commands that import TVM, and what of it.
WITH_TVM = frozenset({"model", "compile"})
TVM = ("tvm", "tvm.relax", "onnx.reference", "tvm.relax.frontend.onnx", "farm.compiler.build")


@dataclass(frozen=True, slots=True)
class Streams:
    """What a command writes to; stdin is closed with `stdin`."""

    stdout: str = KEPT
    stderr: str = KEPT
    stdin: str = KEPT
    columns: int = 0  # of a terminal in place of all three; 0: none


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a command."""

    code: int
    out: str  # of a terminal: all of it
    err: str


class ForkedCommands:
    """Runs commands one after the other."""

    def __init__(self, folder: Path, environ: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        """`folder` is where commands run; `environ` is added to their environment; `modules` are imported already."""
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "LANG": "C.UTF-8", **environ}
        for name in ("COLUMNS", "NO_COLOR", "ANDROID_SERIAL"):
            env.pop(name, None)
        self._environ = env
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules], env=env, cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends with its stdin

    @property
    def pid(self) -> int:
        """The process that forks."""
        return self._process.pid

    def run(self, words: Sequence[str], streams: Streams, **environ: str) -> Ended:
        """Run `farm` with `words`; one that does not end is killed (KILLED)."""
        return self.run_as(words, streams, {**self._environ, **environ}, self._folder, LIMIT_S)

    def run_as(
        self,
        words: Sequence[str | os.PathLike[str]],
        streams: Streams,
        environ: Mapping[str, str],
        folder: Path,
        limit_s: float,
    ) -> Ended:
        """The same with this environment and nothing else of it, in this folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "words": [os.fspath(each) for each in words], "environ": dict(environ), "folder": str(folder),
            "limit_s": limit_s, **{name: getattr(streams, name) for name in Streams.__slots__},
        }  # fmt: skip
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


class _Pool:
    """Processes that fork commands: as many as there were commands at once."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._made: list[ForkedCommands] = []
        self._idle: list[ForkedCommands] = []

    @contextlib.contextmanager
    def taken(self) -> Iterator[ForkedCommands]:
        try:
            commands = self._idle.pop()
        except IndexError:
            commands = ForkedCommands(Path("/"), {}, self._modules)
            self._made.append(commands)
        try:
            yield commands
        finally:
            self._idle.append(commands)

    def pids(self) -> set[int]:
        return {each.pid for each in self._made}

    def close(self) -> None:
        for each in self._made:
            each.__exit__()


@cache
def _pool(*modules: str) -> _Pool:
    pool = _Pool(modules)
    atexit.register(pool.close)
    return pool


def pool_pids() -> set[int]:
    """The processes that outlive the tests that called `run_farm`."""
    return _pool().pids() | _pool(*TVM).pids()


def run_farm(
    *words: str | os.PathLike[str], environ: Mapping[str, str], folder: Path | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """`farm` with `words` in this environment, as `subprocess.run` of a new interpreter would return it."""
    with _pool(*TVM if words[0] in WITH_TVM else ()).taken() as commands:
        ended = commands.run_as(words, Streams(), environ, folder or Path.cwd(), timeout_s)
    return subprocess.CompletedProcess(words, ended.code, ended.out, ended.err)


def _serve() -> None:
    import pydantic  # noqa: F401
    import typer

    import farm.cli.main
    import farm.client
    import farm.control.client  # what most commands import first
    import farm.model.specs

    tree = typer.main.get_command(farm.cli.main.app)
    for name in tree.commands:
        tree.get_command(None, name)  # imports it
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        answer = _forked(json.loads(line))
        if answer is None:  # the child: as `python -m farm`
            farm.cli.main.main()
            return
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _forked(request: dict[str, Any]) -> dict[str, Any] | None:
    """None in the child, whose streams are as asked for."""
    with contextlib.ExitStack() as stack:
        master, slave = pty.openpty() if request["columns"] else (-1, -1)
        files = [stack.enter_context(os.fdopen(os.memfd_create(name), "w+b")) for name in ("stdout", "stderr")]
        child = os.fork()
        if child == 0:
            stack.pop_all()
            _become(request, slave, [each.fileno() for each in files])
            return None
        out = ""
        if slave >= 0:
            os.close(slave)
            stack.callback(os.close, master)
            out = b"".join(_read(master)).decode(errors="replace")
        code = _code(child, request["limit_s"])
        streams = []
        for each in files:
            each.seek(0)
            streams.append(each.read().decode(errors="replace"))
        return {"code": code, "out": out or streams[0], "err": streams[1]}


def _read(master: int) -> Iterator[bytes]:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and select.select([master], [], [], LIMIT_S)[0]:
        try:
            data = os.read(master, 1 << 16)
        except OSError:  # the other side has ended
            return
        yield data


def _code(child: int, limit_s: float) -> int:
    watched = os.pidfd_open(child)
    if not select.select([watched], [], [], limit_s)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(watched)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def _become(request: dict[str, Any], slave: int, files: list[int]) -> None:
    """Replace the streams by those of the request, as an interpreter finds them at its start."""
    os.setsid()
    sys.argv = ["farm", *request["words"]]
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    if slave >= 0:
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, request["columns"], 0, 0))
        ioctl(slave, termios.TIOCSCTTY, 0)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        how, stream = request[name], None
        if how == CLOSED:
            os.close(number)
        else:
            os.dup2(slave if slave >= 0 else _opened(how, number, files), number)
            # As at an interpreter's start: stderr is line-buffered everywhere.
            stream = os.fdopen(number, mode, buffering=1 if slave >= 0 or number == 2 else -1, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _opened(how: str, number: int, files: list[int]) -> int:
    if how == FULL:
        return os.open("/dev/full", os.O_WRONLY)
    if how == LEFT:
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return files[number - 1] if number else os.open(os.devnull, os.O_RDONLY)


if __name__ == "__main__":
    _serve()
