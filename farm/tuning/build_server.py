"""A process that builds tuning candidates: TVM is imported once, and each candidate is built in a fork of its own.

    python -m farm.tuning.build_server FD

FD is one end of a stream socket pair; the other one is FarmBuilder's, and the server ends when that is closed, however
its owner ended. (PDEATHSIG would fire when the owner's *thread* ends that started it.) Orders and answers are messages
of farm.common.frames; an order's payload is its module. The server starts no threads. A candidate that crashes its
compiler, loops forever or ignores SIGTERM costs itself only: it has a process group of its own, and a time limit. One
that the host could not build, for lack of room for example, is answered with the errno: it is not at fault.

TVM's tensor intrinsics, which take ten seconds to import, are not needed: a schedule that uses one has already put
its body into the module.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.bundle.model import Abi, Platform
from farm.common.frames import FrameReader, frame
from farm.common.os_errors import host_errno, lacking
from farm.compiler.link import exporter
from farm.compiler.nodes import load_nodes
from farm.compiler.tvm_errors import die_with_parent, first_line

ERROR_CHARS = 2000
CRASHES = {signal.SIGSEGV: "crashed", signal.SIGABRT: "aborted", signal.SIGBUS: "crashed", signal.SIGKILL: "was killed"}


@dataclass(slots=True)
class _Order:
    number: int
    fields: Mapping[str, Any]
    module: bytes
    server: int  # process id: a server that was killed leaves the folders of its builds

    @property
    def place(self) -> Path:
        """The folder of everything that is made on the way."""
        return Path(self.fields["folder"]) / f"candidate-{self.number}-{self.server}"


@dataclass(slots=True)
class _Running:
    order: _Order
    deadline_s: float
    error_pipe: int  # read end; the child writes its error into the other one
    timed_out: bool = False


class BuildServer:
    """Serves orders until the other end is closed."""

    def __init__(self, link: socket.socket, at_once: int) -> None:
        self._link, self._at_once = link, at_once
        self._input = FrameReader()
        self._waiting: deque[_Order] = deque()
        self._running: dict[int, _Running] = {}

    def serve(self) -> None:
        """Work; when the owner is gone, kill the builds that still run and return."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.freeze()  # keeps the collector of each child from touching, and so copying, what it shares with us
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(self._select_timeout_s()):
                    if key.fileobj is not self._link:
                        os.read(wake_read, 4096)
                    elif not self._read():
                        for pid in self._running:
                            _kill_group(pid)
                        return
                self._kill_overdue()
                self._reap()
                while self._waiting and len(self._running) < self._at_once:
                    self._start(self._waiting.popleft())

    def _read(self) -> bool:
        data = self._link.recv(1 << 20)
        server = os.getpid()
        self._waiting += [_Order(fields["number"], fields, module, server) for fields, module in self._input.feed(data)]
        return bool(data)

    def _select_timeout_s(self) -> float | None:
        # One that was killed ends by itself: SIGCHLD reports it.
        deadlines = [each.deadline_s for each in self._running.values() if not each.timed_out]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _start(self, order: _Order) -> None:
        ends: tuple[int, ...] = ()
        try:
            ends = read_end, write_end = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
        except OSError as error:
            for end in ends:
                os.close(end)
            self._answer(order, f"the host cannot start another process: {error.strerror}", error.errno or 0)
            return
        if pid == 0:
            _build_in_child(order, write_end)
        os.close(write_end)
        self._running[pid] = _Running(order, time.monotonic() + order.fields["timeout_s"], read_end)

    def _kill_overdue(self) -> None:
        now_s = time.monotonic()
        for pid, running in self._running.items():
            if now_s >= running.deadline_s and not running.timed_out:
                running.timed_out = True
                _kill_group(pid)

    def _reap(self) -> None:
        for pid, running in list(self._running.items()):
            # Its group is killed while its pid is still taken: a linker may have outlived it.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            del self._running[pid]
            with os.fdopen(running.error_pipe, "rb") as pipe:
                child_error = pipe.read()
            order = running.order
            error, errno = _failure_of(running, os.waitstatus_to_exitcode(status), child_error)
            if error and not running.timed_out:
                errno = errno or lacking(order.place.parent)
            shutil.rmtree(order.place, ignore_errors=True)  # not before the disk was looked at
            self._answer(order, error, errno)

    def _answer(self, order: _Order, error: str, errno: int = 0) -> None:
        answer = frame({"number": order.number, "error": error, "errno": errno})
        with contextlib.suppress(BrokenPipeError):  # the owner is gone; the next read says so
            self._link.sendall(answer)


def _failure_of(running: _Running, code: int, child_error: bytes) -> tuple[str, int]:
    """The error, empty when there is none, and its errno when the host is at fault."""
    if running.timed_out:
        return f"it took more than {running.order.fields['timeout_s']:g} s and was killed", 0
    if code < 0:
        how = CRASHES.get(signal.Signals(-code), "ended")
        return f"the compiler {how} with {signal.Signals(-code).name}", 0
    if child_error:
        error, errno = json.loads(child_error)
        return str(error), int(errno)
    return "" if code == 0 else f"the compiler ended with {code}", 0


def _build_in_child(order: _Order, error_pipe: int) -> None:
    """Build one candidate. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # TVM's handler allocates memory for its trace: in a compiler that crashed in malloc it waits forever.
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        die_with_parent(order.server)
        order.place.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(order.place)
        build(order.fields, order.module, order.place)
        code = 0
    except BaseException as error:  # noqa: BLE001 - a child must not fall back into the server's loop
        text = f"{type(error).__name__}: {first_line(error)}"
        answer = [text[:ERROR_CHARS], host_errno(error)]
        os.write(error_pipe, json.dumps(answer).encode())  # fits into a pipe: the reader waits for our end
    finally:
        os._exit(code)


def build(fields: Mapping[str, Any], module: bytes, place: Path) -> None:
    """Compile and link one candidate, as MetaSchedule's own builder does; the result appears at once and whole."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    given = load_nodes(module.decode(), "the candidate")
    scheduled = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(given)
    library = tvm.tirx.build(scheduled, target=tvm.target.Target(fields["target"]))
    made = place / "candidate.so"
    library.export_library(str(made), fcompile=_exporter(fields["abi"], fields["platform"], fields["folder"]))
    made.rename(fields["output"])


def _exporter(abi: str, platform: str, folder: str) -> Any:
    stubs = Path(folder) / f"{abi}-{platform}"
    stubs.mkdir(exist_ok=True)
    return exporter(Abi(abi), Platform(platform), stubs=stubs)


def _kill_group(pid: int) -> None:
    # Between fork and setsid a child is in no group of its own yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
            return


def main(arguments: list[str]) -> int:
    """Import, then serve."""
    link = socket.socket(fileno=int(arguments[0]))
    for signum in (signal.SIGINT, signal.SIGHUP):  # they are for the owner, whose end is ours
        signal.signal(signum, signal.SIG_IGN)
    import_tvm()
    BuildServer(link, processors()).serve()
    return 0


def import_tvm() -> None:
    """Import the parts of TVM that children use."""
    import tvm.s_tir.transform
    import tvm.tirx  # noqa: F401


def processors() -> int:
    """How many builds may run at once: as many as this process has cores."""
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
