"""A running zygote as the daemon sees it: start it, ask it for children, receive their ends, notice its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import farm
from farm.common.errors import Code, HostError, ProtocolError
from farm.common.install import pip_install
from farm.common.tasks import at_most
from farm.jobs.messages import (
    MAX_MESSAGE_BYTES,
    Exited,
    Kill,
    Ready,
    Spawn,
    Spawned,
    ToZygote,
    decode_from_zygote,
    encode,
)
from farm.jobs.worker_user import kill_groups
from farm.model.toolchain import Toolchain

START_LIMIT_S = 90.0  # importing TVM takes 0.5 s warm and 10 s from a cold disk; a small host may be busy with two
SPAWN_LIMIT_S = 10.0  # a fork takes about 5 ms
STOP_LIMIT_S = 3.0
LOG_TAIL_BYTES = 2000
# One thread at fork: numpy's BLAS would start a pool at import, and a child could inherit a lock one of them held.
SINGLE_THREADED: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# Workers run other people's models: of the daemon's environment they get only what compilers need.
INHERITED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH",
    "ANDROID_NDK_HOME",
)  # fmt: skip

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ToolchainError(HostError):
    """A toolchain's interpreter cannot be used."""

    code = "toolchain_failed"


class ZygoteDiedError(HostError):
    """The process that forks the workers died, and its workers with it."""

    code = "zygote_died"


class Zygote:
    """One zygote process. Made by `start`; `ended` is set when it has died or been stopped."""

    def __init__(self, toolchain: Toolchain, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self.toolchain = toolchain
        self.ready: Ready | None = None
        self.ended = asyncio.Event()
        self._process = process
        self._link = link
        # asyncio's kill() may reap the process and so hide its exit from asyncio; a pidfd cannot hit another process.
        self._pidfd = _pidfd(process.pid)
        self._greeting: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._spawning: dict[str, asyncio.Future[int]] = {}
        self._exits: dict[str, asyncio.Future[Exited]] = {}
        self._pids: dict[str, int] = {}
        self._users: dict[str, tuple[int, int]] = {}  # uid and gid of children that are not the daemon's own
        asyncio.get_running_loop().add_reader(link.fileno(), self._readable)

    @classmethod
    async def start(cls, toolchain: Toolchain, folder: Path) -> Zygote:
        """Start the interpreter and wait until it has imported TVM. Its output goes to a file in `folder`.

        Call it from the main thread: the zygote dies with the thread that started it (PR_SET_PDEATHSIG).

        Raises:
            ToolchainError: the interpreter is missing, lacks TVM or farm, or takes too long.
        """
        log = folder / f"zygote-{toolchain.name}.log"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            log.unlink(missing_ok=True)  # whatever it is: opening a fifo waits forever
            with theirs, log.open("wb") as out:
                process = await asyncio.create_subprocess_exec(
                    str(toolchain.python), "-P", "-m", "farm.worker.zygote", str(theirs.fileno()), str(os.getpid()),
                    stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
                    pass_fds=(theirs.fileno(),), start_new_session=True, env=worker_environment(), cwd=folder,
                )  # fmt: skip
        except BaseException as error:
            ours.close()
            if not isinstance(error, OSError):
                raise
            raise ToolchainError(
                f"toolchain {toolchain.name}: cannot run {toolchain.python}: {error.strerror}",
                hint=f"set [toolchain.{toolchain.name}] python to one with farm and TVM: {pip_install('tvm')}",
            ) from error
        zygote = cls(toolchain, process, ours)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                zygote.ready = await zygote._greeting
        except (TimeoutError, ZygoteDiedError) as error:
            raise ToolchainError(
                f"toolchain {toolchain.name}: {toolchain.python} did not become a worker host",
                hint=f"try: {toolchain.python} -c 'import farm.worker.zygote'",
                evidence=_tail(log) or str(error),
            ) from error
        finally:
            if zygote.ready is None:
                await zygote.stop()
        if zygote.ready.threads != 1:
            logger.warning("toolchain %s forks with %d threads", toolchain.name, zygote.ready.threads)
        return zygote

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of python, tvm, tvm_ffi and onnx in the toolchain."""
        return self.ready.versions if self.ready else {}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def spawn(self, order: Spawn, output: int) -> int:
        """Fork a child; returns its pid, which is also its process group. `output` becomes its stdout and stderr.

        Raises:
            ZygoteDiedError: the zygote died.
            HostError: the host cannot fork.
            ProtocolError: the order is too large.
        """
        loop = asyncio.get_running_loop()
        spawned = self._spawning[order.attempt] = loop.create_future()
        exit_ = self._exits[order.attempt] = loop.create_future()
        if order.uid is not None and order.gid is not None:
            self._users[order.attempt] = order.uid, order.gid
        exit_.add_done_callback(_retrieved)
        spawned.add_done_callback(_retrieved)
        try:
            with _pipe_with(order.token) as token:
                self._send(replace(order, token=""), output, token)
            async with asyncio.timeout(SPAWN_LIMIT_S):
                return await asyncio.shield(spawned)
        except TimeoutError as error:
            self._die("it did not fork in time")
            raise ZygoteDiedError("the process that forks the workers hangs; it was killed") from error
        except (HostError, ProtocolError):
            self.forget(order.attempt)  # there is no child whose end could come
            raise
        finally:
            self._spawning.pop(order.attempt, None)

    async def exited(self, attempt: str) -> Exited:
        """Wait for the end of an attempt's child.

        Raises:
            ZygoteDiedError: the zygote died, and with it the child.
        """
        return await asyncio.shield(self._exits[attempt])

    def kill(self, attempt: str, signum: int) -> None:
        """Signal an attempt's process group. The zygote does it: as the parent it knows the pid is not reused."""
        if attempt in self._exits and not self._exits[attempt].done():
            with contextlib.suppress(ZygoteDiedError):  # then the children are dead already
                self._send(Kill(attempt, signum))

    def forget(self, attempt: str) -> None:
        """Drop the data of an ended attempt."""
        self._exits.pop(attempt, None)
        self._users.pop(attempt, None)

    async def stop(self) -> None:
        """End the zygote and every child."""
        self._signal(signal.SIGTERM)
        async with at_most(STOP_LIMIT_S):
            await self._process.wait()
        self._die("it was stopped")
        await self._process.wait()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _signal(self, signum: int) -> None:
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signum)

    def _send(self, message: ToZygote, *files: int) -> None:
        if self.ended.is_set():
            raise ZygoteDiedError
        try:
            socket.send_fds(self._link, [encode(message)], files)
        except OSError as error:  # a full buffer means it has not read for a long time: it hangs
            self._die(str(error))
            raise ZygoteDiedError(evidence=str(error)) from error

    def _readable(self) -> None:
        try:
            packet = self._link.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._die(str(error))
            return
        if not packet:
            self._die("it closed its end")
            return
        try:
            self._received(packet)
        except ProtocolError as error:
            logger.exception("zygote of toolchain %s", self.toolchain.name)
            self._die(str(error))

    def _received(self, packet: bytes) -> None:
        message = decode_from_zygote(packet)
        match message:
            case Ready():
                if not self._greeting.done():
                    self._greeting.set_result(message)
            case Spawned(attempt, 0, problem):
                why = f"this host cannot start a worker: {problem}"
                _fail(self._spawning.get(attempt), HostError(why, Code.HOST_IMPAIRED, hint="`farm doctor` looks"))
            case Spawned(attempt, pid):
                self._pids[attempt] = pid
                _set(self._spawning.get(attempt), pid)
            case Exited(attempt):
                self._pids.pop(attempt, None)
                _set(self._exits.get(attempt), message)

    def _die(self, reason: str) -> None:
        """The zygote is gone or useless: make sure of it, and fail everything that waits."""
        if self.ended.is_set():
            return
        self.ended.set()
        asyncio.get_running_loop().remove_reader(self._link.fileno())
        self._link.close()
        self._signal(signal.SIGKILL)
        # Its children die with it (PR_SET_PDEATHSIG), but not what they started: a linker, say. Their groups are
        # signalled in the same moment, before any of these pids can have been given to another process.
        others: dict[tuple[int, int], list[int]] = {}
        for attempt, pid in self._pids.items():
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                others.setdefault(self._users[attempt], []).append(pid)
        for user, groups in others.items():
            kill_groups(groups, *user)
        error = ZygoteDiedError(evidence=reason)
        _fail(self._greeting, error)
        self._greeting.add_done_callback(_retrieved)
        for spawning in self._spawning.values():
            _fail(spawning, error)
        for exiting in self._exits.values():
            _fail(exiting, error)


@contextlib.contextmanager
def _pipe_with(token: str) -> Iterator[int]:
    """A pipe with an attempt's token for its child alone: what a zygote reads, all its later children inherit."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        os.write(writer, token.encode())  # far below a pipe's 64 KiB
        os.close(writer)
        yield reader
    finally:
        os.close(reader)


def _pidfd(pid: int) -> int:
    """A handle on a child; -1 when it has ended and asyncio has reaped it already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _set(future: asyncio.Future[T] | None, value: T) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any] | None, error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)


def _retrieved(future: asyncio.Future[Any]) -> None:
    """Mark a failure as seen: the waiting task may have been cancelled meanwhile."""
    if not future.cancelled():
        future.exception()


def worker_environment() -> dict[str, str]:
    """A worker's part of the daemon's environment; with this very farm importable when it runs from a source tree."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    inherited |= {name: value for name, value in os.environ.items() if name.startswith("TVM_")}
    environment = {**inherited, **SINGLE_THREADED, "PYTHONUNBUFFERED": "1"}
    home = Path(farm.__file__).resolve().parents[1]
    if home.name not in ("site-packages", "dist-packages"):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH"))))
    return environment


def _tail(log: Path) -> str:
    """The last line of a log, however long the log is."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            data = file.read(LOG_TAIL_BYTES)
    except OSError as error:
        return str(error)
    lines = data.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
