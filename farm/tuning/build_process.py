"""The owner's side of a build server: its process, and the orders that it has not answered.

A server that dies or hangs is replaced by another one, which gets those orders again. No TVM is imported here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm import RELEASE
from farm.bundle.model import Abi, Platform
from farm.common.errors import HostError, ProtocolError
from farm.common.frames import FrameReader, frame
from farm.compiler.link import Linker, find_linker
from farm.compiler.tvm_errors import die_with_parent
from farm.tuning.build_server import BuildServer, import_tvm, processors
from farm.tuning.candidate import CannotBuildError, cannot_build_error

CLOSE_WAIT_S = 5.0
ANSWER_BYTES = 1 << 16
MAX_DEATHS = 3  # of build servers, one after the other without a single answer: then none will work
# beyond a candidate's time without any answer: a server that begins imports TVM, 10 s from a cold disk
SERVER_HANG_S = 90.0
POLL_S = 1.0
MAX_TRIES = 5  # servers that died with one candidate, though they answered others: then it is at fault
RECIPE = 2  # raise it when candidates are built differently: what is cached, and who has another one, is then not used
VERSION_LIMIT_S = 10.0


class BuildError(Exception):
    """A candidate could not be built; the message says why."""


@dataclass(frozen=True, slots=True)
class BuildServerProcess:
    """A running build server."""

    link: socket.socket
    pid: int  # and process group
    wait: Callable[[], object]  # until the process has ended
    again: Callable[[], BuildServerProcess]  # starts another one


def forked_server() -> BuildServerProcess:
    """A build server forked from this process, which must have no threads yet: TVM need not be imported again."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    import_tvm()
    pid = os.fork()
    if pid:
        theirs.close()
        return BuildServerProcess(ours, pid, functools.partial(os.waitpid, pid, 0), started_server)
    try:
        os.setsid()
        ours.close()
        die_with_parent(parent)
        BuildServer(theirs, processors()).serve()
    finally:
        os._exit(0)


def started_server() -> BuildServerProcess:
    """A build server in an interpreter of its own."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "farm.tuning.build_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return BuildServerProcess(ours, process.pid, process.wait, started_server)


@dataclass(slots=True)
class _Unanswered:
    order: bytes
    tries: int = 1


class LocalBuilds:
    """The orders at this host's build server. Each one ends once, in the thread that reads answers or in `close`."""

    def __init__(
        self,
        server: BuildServerProcess,
        folder: Path,
        timeout_s: float,
        ended: Callable[[int, Exception | None], None],
    ) -> None:
        """`folder`: where is built. `ended`: called at each order's end, without an error when it is built."""
        self.over: Exception | None = None  # why nothing is built any more
        self._server, self._folder, self._timeout_s, self._ended = server, folder, timeout_s, ended
        self._lock = threading.Lock()  # over what follows, and over writing to the server
        self._unanswered: dict[int, _Unanswered] = {}
        self._deaths = 0
        self._last_answer_s = time.monotonic()  # since when the server owes an answer, if there is an order
        self._reader = threading.Thread(target=self._read_answers, name="builds", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._server.pid

    def order(self, fields: Mapping[str, Any], module: bytes) -> Exception | None:
        """Have a candidate built; else why nothing is."""
        with self._lock:
            if self.over is None:
                if not self._unanswered:
                    self._last_answer_s = time.monotonic()
                new = self._unanswered[fields["number"]] = _Unanswered(frame(fields, module))
                self._send(new.order)
            return self.over

    def close(self) -> None:
        """End the server; unbuilt candidates fail."""
        with self._lock:
            self.over = self.over or BuildError("the run was closed")
            with contextlib.suppress(OSError):
                self._server.link.shutdown(socket.SHUT_RDWR)
        self._reader.join(CLOSE_WAIT_S)

    def _send(self, order: bytes) -> None:
        with contextlib.suppress(OSError):  # it has died: the reader finds out, and sends all orders again
            self._server.link.sendall(order)

    def _read_answers(self) -> None:
        """The reader thread: answers, and another server when one dies. Whatever ends it, every request is answered."""
        why: Exception = CannotBuildError(
            "the thread that reads the build server's answers has failed", hint="this is a bug in farm"
        )
        try:
            while True:
                self._read_until_death()
                self._kill_server(self._server)
                if (end := self._restart_server()) is not None:
                    why = end
                    return
        except OSError as error:
            why = cannot_build_error(error.errno or 0, self._folder)
        finally:
            self._fail_all(why)

    def _read_until_death(self) -> None:
        """Answers, until the server dies or hangs: it ends each build that takes too long, so some answer comes."""
        link, answers = self._server.link, FrameReader()
        with contextlib.suppress(OSError, ProtocolError):
            while self._wait_readable(link) and (data := link.recv(ANSWER_BYTES)):
                for answer, _ in answers.feed(data):
                    self._deaths, self._last_answer_s = 0, time.monotonic()
                    self._finish(answer["number"], self._error(answer["error"], answer["errno"]))

    def _wait_readable(self, link: socket.socket) -> bool:
        """Wait until there is something to read; False when the server owes an answer for too long."""
        poll = select.poll()
        poll.register(link, select.POLLIN)
        while not poll.poll(POLL_S * 1e3):
            if self._unanswered and time.monotonic() - self._last_answer_s > self._timeout_s + SERVER_HANG_S:
                return False
        return True

    def _error(self, error: str, errno: int) -> Exception | None:
        if errno:
            return cannot_build_error(errno, self._folder)
        return BuildError(error) if error else None

    def _finish(self, number: int, error: Exception | None) -> None:
        with self._lock:
            known = self._unanswered.pop(number, None)
        if known is not None:
            self._ended(number, error)

    def _restart_server(self) -> Exception | None:
        """The server has died. Start another one and repeat its orders; returns why not once the work is over."""
        with self._lock:
            self._deaths += 1
            if self.over is not None:
                return self.over
            lost = [number for number, each in self._unanswered.items() if each.tries >= MAX_TRIES]
        if self._deaths > MAX_DEATHS:
            return CannotBuildError(
                f"the process that builds candidates died {self._deaths} times without a single answer",
                hint="dmesg says whether this host has too little memory; what was measured is kept",
            )
        for number in lost:
            self._finish(number, BuildError("the build server died"))
        return self._resend_to(self._server.again())

    def _resend_to(self, server: BuildServerProcess) -> Exception | None:
        """Repeat the open orders of the server before it; returns why not if this was closed meanwhile."""
        with self._lock:
            over = self.over
            if over is None:
                self._server, self._last_answer_s = server, time.monotonic()
                for each in self._unanswered.values():
                    each.tries += 1
                    self._send(each.order)
        if over is not None:
            self._kill_server(server)
        return over

    def _kill_server(self, server: BuildServerProcess) -> None:
        server.link.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()

    def _fail_all(self, why: Exception) -> None:
        """From here on nothing is built: waiting and later orders end with this error."""
        with self._lock:
            self.over = self.over or why
            waiting = list(self._unanswered)
        for number in waiting:
            self._finish(number, self.over)


@functools.cache
def build_identity(abi: Abi, platform: Platform) -> tuple[str, Mapping[str, Any]]:
    """The identity of this host for candidates for that ABI and platform, and its facts. Imports TVM."""
    import tvm
    import tvm_ffi

    linker = find_linker(abi, platform)
    facts = {
        "recipe": RECIPE,
        "tvm": str(tvm.__version__),
        "ffi": str(tvm_ffi.__version__),
        "linker": linker.name,
        "linker_version": _version(linker),
        "farm": RELEASE,
        "abi": str(abi),
        "platform": str(platform),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(), facts


def build_identities() -> dict[str, Mapping[str, Any]]:
    """Those of everything that this host can build, with their facts."""
    found = []
    for abi, platform in itertools.product(Abi, Platform):
        with contextlib.suppress(HostError):
            found.append(build_identity(abi, platform))
    return dict(found)


def _version(linker: Linker) -> str:
    try:
        done = subprocess.run(
            [*linker.command, "--version"], capture_output=True, text=True, timeout=VERSION_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip()
