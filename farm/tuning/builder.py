"""FarmBuilder: a MetaSchedule builder that forks a child for each candidate from a process that imported TVM once.

<cache>/candidates/<hash>.so     a built candidate; the hash is over everything that shapes it
<cache>/building/<owner>/<n>/    the path a runner gets: a hard link, which MetaSchedule deletes with its folder
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tvm
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder

from farm.common.errors import FarmError
from farm.compiler.files import drop_unused
from farm.compiler.link import find_linker
from farm.compiler.targets import abi_of
from farm.compiler.tvm_errors import die_with_parent
from farm.tuning.build_server import BuildServer, import_tvm, processors
from farm.tuning.host_faults import CannotBuildError, cannot_build_error
from farm.tuning.runner import PoolRunner

RECIPE = 1  # raise it when candidates are built differently: what is cached is then not used
CLOSE_WAIT_S = 5.0
ANSWER_BYTES = 1 << 16
MAX_DEATHS = 3  # of build servers, one after the other without a single answer: then none will work
# beyond a candidate's time without any answer: a server that begins imports TVM, 10 s from a cold disk
SERVER_HANG_S = 90.0
POLL_S = 1.0
MAX_TRIES = 5  # servers that died with one candidate, though they answered others: then it is to blame

_Base: Any = PyBuilder._tvm_metadata["cls"]  # noqa: SLF001 - what derived_object would derive from


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
            [sys.executable, "-m", "farm.tuning.build_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return BuildServerProcess(ours, process.pid, process.wait, started_server)


class FarmBuilder(_Base):  # type: ignore[misc]
    """Builds candidates, at most one per core at a time. Close it, or use it as a context manager."""

    __slots__ = ("__dict__",)

    def __init__(
        self,
        runner: PoolRunner | None = None,
        *,
        cache: Path | None = None,
        timeout_s: float = 30.0,
        server: BuildServerProcess | None = None,
    ) -> None:
        """Start the build server.

        Args:
            runner: whose candidates these are. `build` then returns before they are built and the runner waits for
                each: phones measure while the next ones are compiled. Without it `build` waits for all.
            cache: the folder of built candidates; None: ~/.cache/farm.
            timeout_s: of building one candidate; it is killed then.
            server: a server that runs already (`forked_server`).

        Raises:
            HostError: the host has no room for the cache, or starts no process.
        """
        cache = cache or Path.home() / ".cache" / "farm"
        try:
            server = server or started_server()
            self._build = BuildOwner(runner, cache, timeout_s, server)
        except OSError as error:
            if server is not None:
                server.link.close()
            raise cannot_build_error(error.errno or 0, cache) from error
        self.__init_handle_by_constructor__(_ffi_api.BuilderPyBuilder, self._build.build)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, given: Any) -> Future[Path]:
        """Have one candidate (a BuilderInput) built.

        The answer is its library, a BuildError, or a HostError when this host cannot build and nothing is its fault.
        """
        return self._build.submit(given)

    def close(self) -> None:
        """End the server and what it builds. May be called twice."""
        self._build.close()


@dataclass(slots=True, eq=False)
class _Pending:
    order: bytes
    cached: Path
    link: Path
    built: Future[Path]
    tries: int = 1


class BuildOwner:
    """The owner's side of a build server."""

    def __init__(self, runner: PoolRunner | None, cache: Path, timeout_s: float, server: BuildServerProcess) -> None:
        self._runner, self._timeout_s, self._server = runner, timeout_s, server
        self._cache = cache / "candidates"
        self._cache.mkdir(parents=True, exist_ok=True)
        building = cache / "building"
        building.mkdir(exist_ok=True)
        drop_unused(self._cache.iterdir())
        _drop_left(building)
        self._own = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=building))
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # over what follows, and over writing to the server
        self._pending: dict[int, _Pending] = {}
        self._by_key: dict[str, list[_Pending]] = {}  # the same candidate twice is built once
        self._over: Exception | None = None  # why nothing is built any more
        self._deaths = 0
        self._last_answer_s = time.monotonic()  # since when the server owes an answer, if there is anything pending
        self._reader = threading.Thread(target=self._read_answers, name="builds", daemon=True)
        self._reader.start()

    def build(self, inputs: Sequence[Any]) -> list[Any]:
        """MetaSchedule's Builder.build."""
        ordered = [self._order(each) for each in inputs]
        if self._runner is not None:
            for pending in ordered:
                self._runner.expect(str(pending.link), pending.built)
            return [BuilderResult(str(pending.link), None) for pending in ordered]
        return [_result(pending) for pending in ordered]

    def submit(self, given: Any) -> Future[Path]:
        """One candidate."""
        return self._order(given).built

    def close(self) -> None:
        """End the server; what is not built fails."""
        with self._lock:
            self._over = self._over or BuildError("the run was closed")
            with contextlib.suppress(OSError):
                self._server.link.shutdown(socket.SHUT_RDWR)
        self._reader.join(CLOSE_WAIT_S)
        shutil.rmtree(self._own, ignore_errors=True)

    def _order(self, given: Any) -> _Pending:
        number = next(self._numbers)
        place = self._own / str(number)
        built: Future[Path] = Future()
        try:
            place.mkdir()
            key, order = self._describe(given, number)
        except Exception as error:  # noqa: BLE001 - of one candidate: TVM raises its own kinds
            built.set_exception(self._error_of(error))
            return _Pending(b"", Path(), place / "none.so", built)
        pending = _Pending(order, self._cache / f"{key}.so", place / f"{key}.so", built)
        if _has_bytes(pending.cached):
            self._deliver(pending, None)
            return pending
        with self._lock:
            over = self._over
            if over is None:
                twins = self._by_key.setdefault(key, [])
                twins.append(pending)
                if len(twins) == 1:
                    if not self._pending:
                        self._last_answer_s = time.monotonic()
                    self._pending[number] = pending
                    self._send(order)
        if over is not None:
            self._deliver(pending, over)
        return pending

    def _error_of(self, error: Exception) -> Exception:
        """Why a candidate is not even ordered: the host's fault, or its own."""
        if isinstance(error, OSError):
            return cannot_build_error(error.errno or 0, self._cache.parent)
        return error if isinstance(error, FarmError) else BuildError(str(error))

    def _describe(self, given: Any, number: int) -> tuple[str, bytes]:
        module = tvm.ir.save_json(given.mod).encode()
        target = given.target
        abi, platform = abi_of(target)
        shaped_by = [RECIPE, json.loads(str(target)), tvm.__version__, find_linker(abi, platform).name]
        key = hashlib.sha256(json.dumps(shaped_by, sort_keys=True).encode() + b"\n" + module).hexdigest()
        fields = {
            "number": number, "target": shaped_by[1], "abi": str(abi), "platform": str(platform),
            "folder": str(self._own), "output": str(self._cache / f"{key}.so"),
            "timeout_s": self._timeout_s, "module_bytes": len(module),
        }  # fmt: skip
        return key, json.dumps(fields).encode() + b"\n" + module

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
            why = self._error_of(error)
        finally:
            self._fail_all(why)

    def _read_until_death(self) -> None:
        """Answers, until the server dies or hangs: it ends each build that takes too long, so some answer comes."""
        link, begun = self._server.link, b""
        with contextlib.suppress(OSError, ValueError):  # it died mid-word
            while self._wait_readable(link) and (data := link.recv(ANSWER_BYTES)):
                *lines, begun = (begun + data).split(b"\n")
                for line in lines:
                    answer = json.loads(line)
                    self._deaths, self._last_answer_s = 0, time.monotonic()
                    self._finish(answer["number"], self._error(answer["error"], answer["errno"]))

    def _wait_readable(self, link: socket.socket) -> bool:
        """Wait until there is something to read; False when the server owes an answer for too long."""
        poll = select.poll()
        poll.register(link, select.POLLIN)
        while not poll.poll(POLL_S * 1e3):
            if self._pending and time.monotonic() - self._last_answer_s > self._timeout_s + SERVER_HANG_S:
                return False
        return True

    def _error(self, error: str, errno: int) -> Exception | None:
        if errno:
            return cannot_build_error(errno, self._cache.parent)
        return BuildError(error) if error else None

    def _finish(self, number: int, error: Exception | None) -> None:
        """The end of a candidate and its twins; without an error it is a good one."""
        with self._lock:
            pending = self._pending.pop(number, None)
            twins = self._by_key.pop(pending.cached.stem, []) if pending else []
        for twin in twins:
            self._deliver(twin, error)

    def _restart_server(self) -> Exception | None:
        """The server has died. Start another one and order anew what it had; why not, when that is all over.

        Raises:
            OSError: this host starts no process.
        """
        with self._lock:
            self._deaths += 1
            if self._over is not None:
                return self._over
            lost = [number for number, pending in self._pending.items() if pending.tries >= MAX_TRIES]
        if self._deaths > MAX_DEATHS:
            return CannotBuildError(
                f"the process that builds candidates died {self._deaths} times without a single answer",
                hint="dmesg says whether this host has too little memory; what was measured is kept",
            )
        for number in lost:
            self._finish(number, BuildError("the build server died"))
        return self._resend_to(self._server.again())

    def _resend_to(self, server: BuildServerProcess) -> Exception | None:
        """Have it build what the one before it did not; why not, when we were closed while it was started."""
        with self._lock:
            over = self._over
            if over is None:
                self._server, self._last_answer_s = server, time.monotonic()
                for pending in self._pending.values():
                    pending.tries += 1
                    self._send(pending.order)
        if over is not None:
            self._kill_server(server)
        return over

    def _kill_server(self, server: BuildServerProcess) -> None:
        server.link.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()

    def _fail_all(self, why: Exception) -> None:
        """From here on nothing is built: what waits, and what is ordered later, ends so."""
        with self._lock:
            self._over = self._over or why
            waiting = list(self._pending)
        for number in waiting:
            self._finish(number, self._over)

    def _deliver(self, pending: _Pending, error: Exception | None) -> None:
        if error is None:
            try:
                os.utime(pending.cached)
                os.link(pending.cached, pending.link)
            except OSError as trouble:
                error = self._error_of(trouble)
        if error is not None:
            pending.built.set_exception(error)
        else:
            pending.built.set_result(pending.link)


def _result(pending: _Pending) -> Any:
    try:
        return BuilderResult(str(pending.built.result()), None)
    except BuildError as error:
        return BuilderResult(None, f"farm: it could not be built: {error}")


def _has_bytes(path: Path) -> bool:
    """Whether a candidate was built before. A power cut leaves empty files, which no phone could load."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _drop_left(building: Path) -> None:
    """Delete what killed owners left."""
    for path in building.iterdir():
        if not Path("/proc", path.name.partition("-")[0]).exists():
            shutil.rmtree(path, ignore_errors=True)
